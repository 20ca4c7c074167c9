"""The move task of a dead-letter queue, from its start to its end.

SQS moves messages by a move task (``StartMessageMoveTask``): all messages that are visible in the queue, up to 500 a
second, by one task for a queue at a time. The task belongs to the queue, not to the process that started it: it goes
on when that is killed, and each user with the permission may cancel it.

SQS lists a task's handle only while the task runs. So this process recognizes its own task as the first one that began
after the tasks that were listed before. That is certain, because SQS refuses a second task beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

from sqs_lease.cli.output import CommandError, ExitCode
from sqs_lease.clock import SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.sqs.errors import AccessDeniedError, SqsError
from sqs_lease.sqs.move_tasks import CANCELLING, MoveTask, RedriveTransport

LOOK_SECONDS: Final = 1.0
"""Pause between two questions for a move task's progress."""

NOT_LISTED_SECONDS: Final = 60.0
"""How long a started move task may be missing in SQS's list, or SQS may fail to answer, before the command ends."""

CANCEL_SECONDS: Final = 10.0
"""How long to try to cancel a move task, and to wait for its end in SQS's list."""

_GOES_ON: Final = "The move task may go on; `sqs-lease redrive QUEUE --cancel` ends it."


class FollowedTask:
    """A move task that may be running.

    Args:
        transport: Reaches SQS.
        source_arn: The dead-letter queue.
        began_after: When the last task before it began, by the service's clock, in seconds since the epoch; 0 if there
            was none.
    """

    def __init__(self, transport: RedriveTransport, source_arn: str, began_after: float) -> None:
        self._transport = transport
        self._source_arn = source_arn
        self._began_after = began_after
        self._clock = SystemClock()

    @classmethod
    async def next_one(cls, transport: RedriveTransport, source_arn: str) -> Self:
        """Return the task of a queue that :meth:`start` will start.

        Raises:
            SqsError: The tasks cannot be listed.
        """
        began = [task.started_at for task in await transport.move_tasks(source_arn)]
        return cls(transport, source_arn, max(began, default=0.0))

    @classmethod
    async def running(cls, transport: RedriveTransport, source_arn: str) -> Self | None:
        """Find the running move task of a queue; None without one.

        Raises:
            SqsError: The tasks cannot be listed.
        """
        tasks = await transport.move_tasks(source_arn)
        began = [task.started_at for task in tasks if not task.is_active]
        if len(began) == len(tasks):
            return None
        return cls(transport, source_arn, max(began, default=0.0))

    async def start(self, destination_arn: str | None, rate: int | None) -> None:
        """Start it.

        Args:
            destination_arn: The destination; None moves each message back to the queue that it came from.
            rate: Most messages in a second; None leaves it to SQS.

        Raises:
            SqsError: It was not started.
        """
        try:
            await self._transport.start_move_task(
                self._source_arn, destination_arn=destination_arn, max_per_second=rate
            )
        except SqsError as error:
            # The answer may be lost although the task started.
            if error.verdict is not Verdict.TRANSIENT or await self.listed() is None:
                raise

    async def listed(self) -> MoveTask | None:
        """Ask SQS for its progress; None if SQS does not list it.

        Raises:
            SqsError: The tasks cannot be listed.
        """
        tasks = await self._transport.move_tasks(self._source_arn)
        later = (task for task in tasks if task.started_at > self._began_after)
        return min(later, key=lambda task: task.started_at, default=None)

    async def follow(self, show: Callable[[MoveTask], None]) -> MoveTask:
        """Wait until it has ended, and return it as SQS lists it then.

        Args:
            show: Called with the task after each answer of SQS.

        Raises:
            CommandError: SQS refuses to list it, or has not listed it for :data:`NOT_LISTED_SECONDS`.
        """
        listed_at = self._clock.now()
        while True:
            try:
                task = await self.listed()
            except SqsError as error:
                if error.verdict is Verdict.REFUSED:
                    raise CommandError(f"{error} {_GOES_ON}", ExitCode.TROUBLE) from error
                task = None
            if task is not None:
                listed_at = self._clock.now()
                show(task)
                if not task.is_active:
                    return task
            elif self._clock.now() - listed_at > NOT_LISTED_SECONDS:
                said = f"SQS has not listed the move task for {NOT_LISTED_SECONDS:g} s."
                raise CommandError(f"{said} {_GOES_ON}", ExitCode.TROUBLE)
            await asyncio.sleep(LOOK_SECONDS)

    async def cancel(self) -> MoveTask:
        """Cancel it unless it has ended, and return it as SQS lists it at its end.

        Raises:
            CommandError: It could not be cancelled, or SQS did not confirm that within :data:`CANCEL_SECONDS`.
        """
        give_up_at = self._clock.now() + CANCEL_SECONDS
        task: MoveTask | None = None
        while True:
            failure = f"SQS did not confirm within {CANCEL_SECONDS:g} s that the move task has ended."
            try:
                task = await self.listed()
                if task is not None and not task.is_active:
                    return task
                if task is not None and task.handle:
                    await self._transport.cancel_move_task(self._source_arn, task.handle)
            except SqsError as error:
                # SQS also refuses to cancel a task that just ended: the next list shows its end.
                failure = str(error)
                if isinstance(error, AccessDeniedError):
                    give_up_at = self._clock.now()
            if self._clock.now() >= give_up_at:
                if task is not None and task.status == CANCELLING:
                    return task
                raise CommandError(f"{failure} {_GOES_ON}", ExitCode.TROUBLE)
            await asyncio.sleep(LOOK_SECONDS / 4)
