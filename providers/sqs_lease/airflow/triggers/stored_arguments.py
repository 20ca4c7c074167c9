"""What a trigger's class makes of stored arguments that it cannot use: a TypeError, and nothing else.

Airflow's triggerer gives up a trigger whose class raises a TypeError, says so, and goes on. Any other error ends it and
all its triggers, and again after each restart, because the arguments are still in the database. They were good where
the DAG was parsed. They need not be so in the triggerer: another release of this package may run there, or one without
what the DAG processor has installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

_Trigger = TypeVar("_Trigger")
_Arguments = ParamSpec("_Arguments")
Init: TypeAlias = Callable[Concatenate[_Trigger, _Arguments], None]


def raises_type_errors_only(
    where: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> Callable[[Init[_Trigger, _Arguments]], Init[_Trigger, _Arguments]]:
    """Have a trigger's ``__init__`` raise nothing but TypeError.

    Args:
        where: Tells from the keyword arguments whether they are stored ones; any are, by default.
    """

    def decorated(init: Init[_Trigger, _Arguments]) -> Init[_Trigger, _Arguments]:
        @wraps(init)
        def guarded(trigger: _Trigger, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> None:
            try:
                init(trigger, *args, **kwargs)
            except TypeError:
                raise
            except Exception as error:
                if not where(kwargs):
                    raise
                raise TypeError(
                    f"{type(trigger).__name__} cannot be made of its stored arguments in this triggerer, which must "
                    f"run the same release of sqs-lease, with the same extras, as the DAG processor: {error!r}"
                ) from error

        return guarded

    return decorated
