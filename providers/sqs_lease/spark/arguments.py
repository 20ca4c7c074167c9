"""Checks of the arguments of sources, sinks and an ingestion, before anything is read or written."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence


def require_names(names: object, what: str) -> None:
    """Refuse anything but a sequence of texts: a set has no order, and an iterator is empty when it is read again.

    Args:
        names: The value of the argument.
        what: The name of the argument and of its elements, for the error, e.g. ``upsert_by is a list of columns``.

    Raises:
        TypeError: It is one text, not a sequence, or has an element that is not a text or is empty.
    """
    if isinstance(names, str):
        raise TypeError(f"{what}: put brackets around the one")
    if not isinstance(names, Sequence):
        raise TypeError(f"{what}, not {type(names).__name__}")
    for name in names:
        if not isinstance(name, str) or not name:
            raise TypeError(f"{what}, each by its name, and {name!r} is not a name")


def require_path(path: object, what: str) -> None:
    """Refuse None and an empty text, as a variable that is not set gives them.

    Raises:
        TypeError: It is neither a text nor a path.
        ValueError: It is empty.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{what} must be a path, not {type(path).__name__}")
    if not str(path).strip():
        raise ValueError(f"{what} is empty: give a path")


def require_methods(value: object, what: str, kind: str, *methods: str) -> None:
    """Refuse a value without the methods of a source or a sink.

    Raises:
        TypeError: It is a class instead of a value, or lacks a method.
    """
    if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in methods):
        shown = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise TypeError(f"{what} is not a {kind}, but {shown}")


Answer = Callable[[], object]


def answer_of(function: Answer) -> object:
    """Call a function of the user's, and return its answer.

    Raises:
        TypeError: The answer is a coroutine, of a function that only seems to be plain, such as a lambda.
    """
    answer = function()
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("it gave a coroutine, which says nothing until it is awaited")
    return answer
