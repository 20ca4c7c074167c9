"""The move tasks of :class:`sqs_lease.testing.MemorySqs`: each moves its messages one by one, at its own pace.

A task moves messages that were visible when it started; those that are in flight at their turn stay. As with SQS:

- one active task for each source queue; a task that is being cancelled is active for a second more;
- a listed task has its handle only while it runs;
- a task without a destination fails at the first message without a known source queue, and leaves the rest.

The service moves due messages at the next call. So a message that was due earlier has the time of that call as its sent
time.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from sqs_lease.clock import Clock
from sqs_lease.sqs.move_tasks import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    MAX_LISTED_TASKS,
    RUNNING,
    UNKNOWN_SOURCE,
    MoveTask,
)
from sqs_lease.testing import service_errors as errors
from sqs_lease.testing.memory_queue import MemoryQueue, MessageState, StoredMessage
from sqs_lease.testing.service_errors import MemorySqsError

CANCELLING_SECONDS: Final = 1.0
"""How long a task that was cancelled is active."""

TargetOf: TypeAlias = Callable[[StoredMessage], MemoryQueue | None]
CopyOf: TypeAlias = Callable[[StoredMessage], StoredMessage]


@dataclass(slots=True, eq=False)
class _Move:
    """One move task."""

    handle: str
    source: MemoryQueue
    target_of: TargetOf
    copy_of: CopyOf
    per_second: int
    began_at: float
    started_at: float
    waiting: deque[StoredMessage]
    to_move: int
    moved: int = 0
    status: str = RUNNING
    failure: str = ""
    cancelled_at: float = 0.0

    def next_at(self) -> float:
        """The time of the next move."""
        return self.began_at + self.moved / self.per_second

    def advance(self, now: float) -> None:
        """Move the messages that are due."""
        if self.status == CANCELLING and now >= self.cancelled_at + CANCELLING_SECONDS:
            self.status = CANCELLED
        while self.status == RUNNING and self.next_at() <= now:
            if not self.waiting:
                self.status = COMPLETED
                return
            message = self.waiting.popleft()
            if message.state is not MessageState.VISIBLE:
                continue
            if (target := self.target_of(message)) is None:
                self.status, self.failure = FAILED, UNKNOWN_SOURCE
                return
            self.source.give_up(message)
            target.put(self.copy_of(message), delay_seconds=0)
            self.moved += 1
        if self.status == RUNNING and not self.waiting:
            self.status = COMPLETED

    def listed(self) -> MoveTask:
        """Return the task as the service lists it."""
        handle = self.handle if self.status == RUNNING else ""
        return MoveTask(self.status, self.moved, self.to_move, self.failure, handle, self.started_at)


class MoveTasks:
    """All move tasks of a service."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._moves: list[_Move] = []

    def start(self, source: MemoryQueue, target_of: TargetOf, copy_of: CopyOf, per_second: int) -> str:
        """Start a task, and return its handle.

        Raises:
            MemorySqsError: One is active already.
        """
        now = source.catch_up()
        if any(move.source is source and move.listed().is_active for move in self._moves):
            raise MemorySqsError(errors.MOVE_TASK_RUNNING)
        handle = base64.b64encode(f"move task {len(self._moves)} of {source.settings.arn}".encode()).decode()
        waiting = deque(message for message in source.messages() if message.state is MessageState.VISIBLE)
        self._moves.append(
            _Move(
                handle, source, target_of, copy_of, per_second, now, self._clock.wall(), waiting, to_move=len(waiting)
            )
        )
        return handle

    def advance(self) -> None:
        """Move the messages that are due."""
        for move in self._moves:
            if move.listed().is_active:
                move.advance(move.source.catch_up())

    def next_move_at(self) -> float | None:
        """Return when the next message is moved; None if no task runs."""
        return min((move.next_at() for move in self._moves if move.status == RUNNING), default=None)

    def of(self, source: MemoryQueue) -> Sequence[MoveTask]:
        """Return the last tasks of a queue, the newest first."""
        return [move.listed() for move in reversed(self._moves) if move.source is source][:MAX_LISTED_TASKS]

    def cancel(self, handle: str) -> None:
        """End a running task.

        Raises:
            MemorySqsError: No running task has this handle.
        """
        move = next((move for move in self._moves if move.handle == handle), None)
        if move is None:
            raise MemorySqsError(errors.INVALID_TASK_HANDLE)
        if move.status != RUNNING:
            raise MemorySqsError(errors.NO_SUCH_TASK)
        move.status, move.cancelled_at = CANCELLING, self._clock.now()
