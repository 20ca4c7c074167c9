"""A run of the checks on a service, one after the other: it makes the queues of each, and always deletes them."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from sqs_lease.cli.contract.checks import (
    MAX_RECEIVES,
    Check,
    CheckResult,
    DiffersError,
    Outcome,
    QueueKind,
    QueueService,
    TooSlowError,
)
from sqs_lease.cli.contract.dead_letters import DEAD_LETTERS, PERMISSIONS
from sqs_lease.cli.contract.fifo_queues import FIFO
from sqs_lease.cli.contract.ground import HELD_SECONDS, Ground
from sqs_lease.cli.contract.standard_queues import STANDARD
from sqs_lease.clock import Clock
from sqs_lease.core.calls import NOT_CARRIED_OUT, PASSING
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    InvalidRequestError,
    QueueNotFoundError,
    SqsError,
)
from sqs_lease.sqs.move_tasks import UNKNOWN_CALL_CODES

CHECKS: Final[tuple[Check, ...]] = (PERMISSIONS, *STANDARD, *DEAD_LETTERS, *FIFO)
"""The contract, in the order in which it is checked."""

PREFIX: Final = "sqs-lease-verify-"
"""The prefix of the names of all queues made here."""

UNITS: Final = (1, 2, 4)
"""The units of time, in seconds, of a check's first try, and of those after calls that took too long or failed."""

USABLE_SECONDS: Final = 1.0
"""The time after which a new queue of SQS can be used."""

_DELETE_TRIES: Final = 3


class MadeQueues:
    """The queues that were made, until they are deleted.

    Args:
        service: The service that makes them.
    """

    def __init__(self, service: QueueService) -> None:
        self._service = service
        # By name: the answer of a creation may be lost.
        self._urls: dict[str, str] = {}

    @property
    def left(self) -> Sequence[str]:
        """The URLs of queues that are not deleted; the name if the URL is not known."""
        return [url or name for name, url in self._urls.items()]

    @asynccontextmanager
    async def made(self, kind: QueueKind) -> AsyncIterator[tuple[str, str]]:
        """Make the queues of a check, and delete them at the end.

        Yields:
            The URL of the queue, and that of its dead-letter queue or an empty one.

        Raises:
            sqs_lease.sqs.errors.SqsError: They could not be made or deleted.
        """
        try:
            attributes = {"VisibilityTimeout": str(HELD_SECONDS)}
            dead_url = ""
            if kind is QueueKind.WITH_DEAD_LETTERS:
                dead_url = await self._make(attributes)
                target = (await self._service.queue_attributes(dead_url)).arn
                policy = {"deadLetterTargetArn": target, "maxReceiveCount": MAX_RECEIVES}
                attributes["RedrivePolicy"] = json.dumps(policy)
            if kind is QueueKind.FIFO:
                attributes["FifoQueue"] = "true"
            yield await self._make(attributes), dead_url
        finally:
            await self.delete()

    async def delete(self) -> None:
        """Delete the queues that are left.

        Raises:
            sqs_lease.sqs.errors.SqsError: One could not be deleted.
        """
        for name in list(self._urls):
            for tries in range(1, _DELETE_TRIES + 1):
                try:
                    await self._delete(name)
                except SqsError as error:
                    if error.verdict not in PASSING or tries == _DELETE_TRIES:
                        raise
                    await asyncio.sleep(tries)
                else:
                    break

    async def _make(self, attributes: dict[str, str]) -> str:
        name = f"{PREFIX}{secrets.token_hex(8)}{'.fifo' if 'FifoQueue' in attributes else ''}"
        self._urls[name] = ""
        try:
            url = await self._service.create_queue(name, attributes)
        except SqsError as error:
            if error.verdict in NOT_CARRIED_OUT:
                del self._urls[name]
            raise
        self._urls[name] = url
        return url

    async def _delete(self, name: str) -> None:
        # It may never have been made, or have been deleted by a call whose answer was lost.
        with suppress(QueueNotFoundError):
            await self._service.delete_queue(self._urls[name] or await self._service.queue_url(name))
        del self._urls[name]


async def check_all(
    service: QueueService,
    clock: Clock,
    queues: MadeQueues,
    *,
    checks: Sequence[Check] = CHECKS,
    on_begin: Callable[[Check], None] = lambda _check: None,
) -> list[CheckResult]:
    """Run checks on a service, one after the other, so that no check disturbs the times of another.

    Args:
        service: The service.
        clock: The clock of this machine.
        queues: The record of the queues that are made, also after an error.
        checks: The checks; all by default.
        on_begin: Called with each check before it begins.

    Raises:
        sqs_lease.sqs.errors.SqsError: Queues could not be made or deleted.
    """
    found = []
    for check in checks:
        on_begin(check)
        found.append(await _checked(check, service, clock, queues))
    return found


async def _checked(check: Check, service: QueueService, clock: Clock, queues: MadeQueues) -> CheckResult:
    why = ""
    for unit in UNITS:
        async with queues.made(check.kind) as (url, dead_letter_url):
            await asyncio.sleep(USABLE_SECONDS)
            try:
                said = await check.run(Ground(service, clock, url, dead_letter_url, unit))
            except DiffersError as differs:
                return CheckResult(check, differs.outcome, str(differs))
            except TooSlowError:
                why = "calls took too long to tell"
            except SqsError as error:
                if error.verdict not in PASSING and not isinstance(error, QueueNotFoundError):
                    return _failed(check, error)
                why = str(error)
            else:
                return CheckResult(check, Outcome.HOLDS, said)
    return CheckResult(check, Outcome.NOT_CHECKED, f"tried {len(UNITS)} times: {why}")


def _failed(check: Check, error: SqsError) -> CheckResult:
    """Return the result of a check from a call that the service did not carry out."""
    if isinstance(error, InvalidRequestError) or error.code in UNKNOWN_CALL_CODES:
        return CheckResult(check, Outcome.DIFFERS, str(error))
    return CheckResult(check, Outcome.NOT_CHECKED, error.remedy if isinstance(error, AccessDeniedError) else str(error))
