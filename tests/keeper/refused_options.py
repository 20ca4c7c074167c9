"""Options that every way to ask for a lease refuses, and defaults of options left out: one table for all hosts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest

from sqs_lease.core.policies import Fixed
from sqs_lease.keeper.options import LeaseOptions

_WHOLE_NUMBER: Final = (
    "max_messages must be an integer from 1 to 120000 (so many messages of a queue can be in flight), not"
)

REFUSED: Final = (
    ({"max_messages": 0}, ValueError, f"{_WHOLE_NUMBER} 0"),
    ({"max_messages": 120_001}, ValueError, f"{_WHOLE_NUMBER} 120001"),
    ({"max_messages": 2.5}, ValueError, f"{_WHOLE_NUMBER} 2.5"),
    ({"max_messages": True}, ValueError, f"{_WHOLE_NUMBER} True"),
    ({"wait": -1}, ValueError, "wait must be at least 0 seconds, not -1"),
    ({"wait": float("inf")}, ValueError, "wait must be at least 0 seconds, not inf"),
    ({"wait": "20"}, TypeError, "wait must be a number of seconds or a timedelta, not '20'"),
    ({"linger": timedelta(seconds=-2)}, ValueError, "linger must be at least 0 seconds, not -2"),
    ({"linger": float("nan")}, ValueError, "linger must be at least 0 seconds, not "),
    ({"linger": True}, TypeError, "linger must be a number of seconds or a timedelta, not True"),
    (
        {"policy": "gently"},
        ValueError,
        "policy must be one of growing, threshold, buffered, fixed, never or a policy object, not 'gently'",
    ),
    (
        {"policy": ["growing"]},
        ValueError,
        "policy must be one of growing, threshold, buffered, fixed, never or a policy object, not ['growing']",
    ),
    ({"visibility": 0}, ValueError, "visibility must be between 1 and 43200 seconds, not 0"),
    ({"visibility": timedelta(hours=13)}, ValueError, "visibility must be between 1 and 43200 seconds, not 46800"),
    ({"visibility": "60"}, TypeError, "visibility must be a number of seconds or a timedelta, not '60'"),
    (
        {"visibility": 60, "policy": Fixed(visibility=90, every=30)},
        ValueError,
        "visibility=60 contradicts the policy's own visibility=90; give it once",
    ),
    ({"on_failure": 30}, TypeError, "on_failure must be a failure rule such as dead_letter()"),
)
"""Options of a lease that cannot be, the error that they are, and what its text says."""


def refused(*names: str) -> pytest.MarkDecorator:
    """Give a test the ``options``, ``error`` and ``text`` of each row whose options have one of these names alone."""
    rows = [row for row in REFUSED if row[0].keys() <= set(names)]
    return pytest.mark.parametrize(("options", "error", "text"), rows, ids=[str(row[0]) for row in rows])


def assert_refuses(ask: Callable[..., Any], options: dict[str, Any], error: type[Exception], text: str) -> None:
    """Check how something refuses options of a lease."""
    with pytest.raises(error) as raised:
        ask(**options)
    assert type(raised.value) is error
    assert text in str(raised.value)


def other_defaults(ask: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of something that takes options of a lease, as far as they are not those of ``LeaseOptions``."""
    parameters = inspect.signature(ask).parameters
    return {
        name: parameters[name].default
        for name, option in inspect.signature(LeaseOptions.of).parameters.items()
        if name in parameters and parameters[name].default != option.default
    }
