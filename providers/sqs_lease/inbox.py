"""Values from any thread for an event loop. One wake of the loop takes many, because a wake costs more than a value."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """An inbox of a loop for values from any thread.

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
            Exception: ``post`` raised it.
        """
        self._values.append(value)
        if not self._is_posted:
            self._is_posted = True
            self._post(self._empty)

    def _empty(self) -> None:
        # Reset first, so that a value that comes meanwhile is taken here, or posted again.
        self._is_posted = False
        values: list[_T] = []
        while self._values:
            values.append(self._values.popleft())
        self._take(values)
