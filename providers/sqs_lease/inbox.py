"""Values from any thread, taken in by an event loop, many of them by one wake of it: a wake costs more than a value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """Takes values from any thread into a loop.

    Args:
        post: Calls a function in the loop soon; may be called in any thread.
        take: Called in the loop with the values, in their order. It must not raise.
    """

    def __init__(self, post: Callable[[Callable[[], object]], object], take: Callable[[Sequence[_T]], object]) -> None:
        self._post = post
        self._take = take
        self._values: deque[_T] = deque()
        self._is_posted = False

    def put(self, value: _T) -> None:
        """Pass a value on, without waiting.

        Raises:
            Exception: What ``post`` raises.
        """
        self._values.append(value)
        if not self._is_posted:
            self._is_posted = True
            self._post(self._empty)

    def _empty(self) -> None:
        # First, so that a value that comes meanwhile is seen here, or posted again.
        self._is_posted = False
        values: list[_T] = []
        while self._values:
            values.append(self._values.popleft())
        self._take(values)
