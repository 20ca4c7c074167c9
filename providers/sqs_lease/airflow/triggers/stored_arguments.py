"""What a trigger's class makes of stored arguments that it cannot use: a TypeError, and nothing else.

Airflow's triggerer gives up a trigger whose class raises a TypeError, says so, and goes on. Any other error ends it and
all its triggers, and again after each restart, because the arguments are still in the database. They were good where
the DAG was parsed. They need not be so in the triggerer: another release of this package may run there, or one without
what the DAG processor has installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec

_Arguments = ParamSpec("_Arguments")


def raises_type_errors_only(
    where: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> Callable[[Callable[_Arguments, None]], Callable[_Arguments, None]]:
    """Have a trigger's ``__init__`` raise nothing but TypeError.

    Args:
        where: Tells from the keyword arguments whether they are stored ones; any are, by default.
    """

    def decorated(init: Callable[_Arguments, None]) -> Callable[_Arguments, None]:
        @wraps(init)
        def guarded(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            try:
                init(*args, **kwargs)
            except TypeError:
                raise
            except Exception as error:
                if not where(kwargs):
                    raise
                raise TypeError(
                    f"{type(args[0]).__name__} cannot be made of its stored arguments in this triggerer, which must "
                    f"run the same release of sqs-lease, with the same extras, as the DAG processor: {error!r}"
                ) from error

        return guarded

    return decorated
