"""Checks of users' functions, before anything is received: a call of some kinds of functions does nothing yet.

A coroutine function and an async generator function do nothing until they are awaited, and a generator function until
it is looped over. Their result counts as true, so that the work would look done. The same holds for a
``functools.partial`` of one, and for an object with such a ``__call__``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Final

_IS_ASYNC: Final = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
_YIELDS: Final = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def is_async(function: object) -> bool:
    """Whether a call must be awaited, or looped over with ``async for``."""
    return _is_any(_IS_ASYNC, function)


def yields(function: object) -> bool:
    """Whether a call returns a generator."""
    return _is_any(_YIELDS, function)


def _is_any(kinds: tuple[Callable[[object], bool], ...], function: object) -> bool:
    return any(is_kind(each) for is_kind in kinds for each in (function, type(function).__call__))


def require_function(
    function: object,
    what: str,
    *,
    may_yield: bool = False,
    may_await: bool = False,
    instead: str = "give a plain function",
) -> None:
    """Refuse a function whose call alone does nothing.

    Args:
        function: The value of the argument.
        what: The name of the argument, for the error.
        may_yield: Whether it may be a generator function.
        may_await: Whether it may be a coroutine function.
        instead: What to do instead of giving a function that is ``async``, for the error.

    Raises:
        TypeError: It cannot be called, or is of a kind that it may not be.
    """
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {type(function).__name__}")
    if not may_await and is_async(function):
        raise TypeError(f"{what} is async, and is called without await: {instead}")
    if not may_yield and yields(function):
        raise TypeError(f"{what} yields, so calling it does nothing: give a function that returns when it is done")
