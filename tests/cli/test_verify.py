"""`sqs-lease verify`: what it says of services that keep to the contract, and of some that break it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, TypeAlias

import pytest

from sqs_lease.cli import verify as command
from sqs_lease.cli.contract import running
from sqs_lease.cli.contract.checks import Check, CheckResult, DiffersError, Outcome, QueueKind, TooSlowError
from sqs_lease.cli.contract.client import ContractTransport
from sqs_lease.cli.contract.ground import Ground
from sqs_lease.cli.contract.running import CHECKS, PREFIX, MadeQueues, check_all
from sqs_lease.cli.permissions import VERIFY, VERIFY_ANYWHERE
from sqs_lease.cli.prices import DOLLARS_A_MILLION, FIFO_DOLLARS_A_MILLION
from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.client import make_client
from sqs_lease.sqs.errors import AccessDeniedError, InvalidRequestError, TransientError
from sqs_lease.sqs.move_tasks import MoveTask
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing import Fault, run_virtual
from tests.cli import conftest
from tests.cli.commands import sqs_lease
from tests.cli.memory_queues import MemoryQueueService
from tests.cli.terminal import CTRL_C, in_terminal, rest_of
from tests.cli.wire import Wire

BY_NAME = {check.name: check for check in CHECKS}


def found_in(service: MemoryQueueService, *checks: Check) -> list[CheckResult]:
    """Run checks against a service, in its virtual time."""

    async def main() -> list[CheckResult]:
        return await check_all(service, service.clock, MadeQueues(service), checks=checks or CHECKS)

    return run_virtual(main, clock=service.clock)


def test_sqs_in_memory_keeps_to_the_whole_contract() -> None:
    service = MemoryQueueService()

    found = found_in(service)

    assert [checked for checked in found if checked.outcome is not Outcome.HOLDS] == []
    assert len({checked.check.name for checked in found}) == len(CHECKS)
    assert service.urls == []
    assert all(name.startswith(PREFIX) for name in service.created)


def test_a_run_takes_about_as_many_requests_as_it_says_before() -> None:
    service = MemoryQueueService()
    found_in(service)
    # Each queue takes a request to make and one to delete, which a service in memory does not count.
    fifo = 2 * sum(name.endswith(".fifo") for name in service.created)
    standard = 2 * len(service.created) - fifo

    assert service.requests.standard + standard <= command.ABOUT_REQUESTS.standard <= 300
    assert service.requests.fifo + fifo <= command.ABOUT_REQUESTS.fifo <= 100


# Services that break one rule each.


class VisibleTooEarly(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return await super().receive(queue_url, **{**asked, "visibility_seconds": asked["visibility_seconds"] // 2})


class NeverVisibleAgain(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return await super().receive(queue_url, **{**asked, "visibility_seconds": 600})


class _OtherExtensions(MemoryQueueService):
    """Extensions by other times than were asked for."""

    def instead_of(self, seconds: int) -> int:
        raise NotImplementedError

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        others = [VisibilityChange(change.receipt, self.instead_of(change.seconds)) for change in changes]
        return await super().change_visibility(queue_url, others)


class CountsFromTheReceive(_OtherExtensions):
    def instead_of(self, seconds: int) -> int:
        return max(seconds - 1, 0)


class CountsFromTheOldEnd(_OtherExtensions):
    def instead_of(self, seconds: int) -> int:
        return seconds + 3


class NeverReleases(_OtherExtensions):
    def instead_of(self, seconds: int) -> int:
        return seconds or 60


class SaysOtherReceiveCounts(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return [
            Message(came.receipt, came.body, {**came.attributes, "ApproximateReceiveCount": "1"})
            for came in await super().receive(queue_url, **asked)
        ]


class SaysNoAttributes(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return [Message(came.receipt, came.body) for came in await super().receive(queue_url, **asked)]


class KeepsHandles(MemoryQueueService):
    """Each message has one handle, which stands for the newest one."""

    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, Receipt] = {}

    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        came = await super().receive(queue_url, **asked)
        self._newest.update({message.message_id: message.receipt for message in came})
        return [Message(Receipt(m.message_id, m.message_id), m.body, m.attributes) for m in came]

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        newest = [VisibilityChange(self._newest[change.receipt.message_id], change.seconds) for change in changes]
        answers = await super().change_visibility(queue_url, newest)
        return [EntryAnswer(c.receipt, a.verdict) for c, a in zip(changes, answers, strict=True)]


REFUSED = "InvalidParameterValue", "Value for parameter ReceiptHandle is invalid. Reason: An unknown text."


class AnswersLostLeasesByAnotherText(MemoryQueueService):
    """Handles of ended and of superseded leases, and of deleted messages, are refused by a text that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[Receipt, float] = {}

    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        came = await super().receive(queue_url, **asked)
        ends = self.clock.now() + asked["visibility_seconds"]
        self._ends.update({message.receipt: ends for message in came})
        return came

    def _refused(self, receipt: Receipt, answer: EntryAnswer) -> EntryAnswer:
        if self.clock.now() < self._ends.get(receipt, 0):
            return answer
        return EntryAnswer(receipt, Verdict.REFUSED, *REFUSED)

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        answers = await super().change_visibility(queue_url, changes)
        return [self._refused(answer.receipt, answer) for answer in answers]

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        answers = [self._refused(answer.receipt, answer) for answer in await super().delete(queue_url, receipts)]
        self._ends.update(dict.fromkeys(receipts, 0.0))
        return answers


class DeletesByOldHandles(MemoryQueueService):
    def __init__(self) -> None:
        super().__init__()
        self._newest: dict[str, Receipt] = {}

    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        came = await super().receive(queue_url, **asked)
        self._newest.update({message.message_id: message.receipt for message in came})
        return came

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        await super().delete(queue_url, [self._newest.get(receipt.message_id, receipt) for receipt in receipts])
        return await super().delete(queue_url, receipts)


class NeverDeletes(MemoryQueueService):
    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        await super().change_visibility(queue_url, [VisibilityChange(receipt, 0) for receipt in receipts])
        return [EntryAnswer(receipt, Verdict.DONE) for receipt in receipts]


class TakesNineEntries(MemoryQueueService):
    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        if len(receipts) < 10:
            return await super().delete(queue_url, receipts)
        return [EntryAnswer(receipt, Verdict.REFUSED, *REFUSED) for receipt in receipts]


class BringsMoreThanAskedFor(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        first = await super().receive(queue_url, **asked)
        return [*first, *(await super().receive(queue_url, **{**asked, "wait_seconds": 0}) if first else [])]


class OneLostFailsAll(MemoryQueueService):
    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        answers = await super().change_visibility(queue_url, changes)
        lost = next((answer for answer in answers if answer.verdict is Verdict.LOST), None)
        if lost is None:
            return answers
        return [EntryAnswer(answer.receipt, Verdict.LOST, lost.code, lost.text) for answer in answers]


class ExtendsDeletedMessages(MemoryQueueService):
    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        answers = await super().change_visibility(queue_url, changes)
        return [
            EntryAnswer(answer.receipt, Verdict.DONE) if "not available" in answer.text else answer
            for answer in answers
        ]


class CountsTwelveHoursFromTheSend(MemoryQueueService):
    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        return [
            EntryAnswer(change.receipt, Verdict.CAPPED, "InvalidParameterValue", "Total VisibilityTimeout ...")
            if change.seconds > 43_200 - 4
            else answer
            for change, answer in zip(changes, await super().change_visibility(queue_url, changes), strict=True)
        ]


class _CapAnsweredSo(MemoryQueueService):
    answer: tuple[Verdict, str, str]

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        answers = await super().change_visibility(queue_url, changes)
        return [
            EntryAnswer(answer.receipt, *self.answer) if answer.verdict is Verdict.CAPPED else answer
            for answer in answers
        ]


class CapsByAnotherText(_CapAnsweredSo):
    answer = (Verdict.REFUSED, *REFUSED)


class KnowsNoCap(_CapAnsweredSo):
    answer = (Verdict.DONE, "", "")


class _OtherSends(MemoryQueueService):
    """Takes other messages than were sent."""

    def body(self, given: str) -> str:
        return given

    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return given

    async def send(self, queue_url: str, body: str, **given: Any) -> str:
        return await super().send(queue_url, self.body(body), **self.options(given))


class CutsBodies(_OtherSends):
    def body(self, given: str) -> str:
        return given[:262_144]


class RefusesLongBodies(_OtherSends):
    def body(self, given: str) -> str:
        if len(given) > 262_144:
            raise InvalidRequestError("too long", code="InvalidParameterValue", text="too long")
        return given


class DropsAttributes(_OtherSends):
    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        attributes = dict(list((given["message_attributes"] or {}).items())[:9])
        return {**given, "message_attributes": attributes}


class TakesElevenAttributes(_OtherSends):
    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        attributes = given["message_attributes"] or {}
        return given if len(attributes) <= 10 else {**given, "message_attributes": {}}


class DeduplicatesNothing(_OtherSends):
    number = 0

    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.number += 1
        return {**given, "deduplication_id": given["deduplication_id"] and f"{self.number}"}


class ForgetsDeduplicationAtTheDelete(_OtherSends):
    deleted = 0

    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            **given,
            "deduplication_id": given["deduplication_id"] and f"{given['deduplication_id']}-{self.deleted}",
        }

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        self.deleted += 1
        return await super().delete(queue_url, receipts)


class SortsNoGroups(MemoryQueueService):
    """A receive brings the messages of a group in the reverse order."""

    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return list(reversed(await super().receive(queue_url, **asked)))


class BlocksNoGroups(_OtherSends):
    number = 0

    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        self.number += 1
        return {**given, "message_group_id": given["message_group_id"] and f"group-{self.number}"}


class BlocksAllGroups(_OtherSends):
    def options(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**given, "message_group_id": given["message_group_id"] and "one"}


class FreesAGroupByOneRelease(MemoryQueueService):
    """The release of one message of a group makes all others of it visible, too."""

    def __init__(self) -> None:
        super().__init__()
        self._held: list[Receipt] = []

    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        came = await super().receive(queue_url, **asked)
        self._held += [message.receipt for message in came]
        return came

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        answers = await super().change_visibility(queue_url, changes)
        if changes[0].seconds == 0:
            await super().change_visibility(queue_url, [VisibilityChange(receipt, 0) for receipt in self._held[-2:]])
        return answers


class RepeatsNoReceive(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return await super().receive(queue_url, **{**asked, "attempt_id": None})


class AnswersPollsAtOnce(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        return await super().receive(queue_url, **{**asked, "wait_seconds": 0})


class PollsSeeNothingNew(MemoryQueueService):
    async def receive(self, queue_url: str, **asked: Any) -> Sequence[Message]:
        came = await super().receive(queue_url, **{**asked, "wait_seconds": 0})
        if not came:
            await asyncio.sleep(asked["wait_seconds"])
        return came


class _OtherQueueAttributes(MemoryQueueService):
    changed: ClassVar[Mapping[str, Any]]

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        seen = await super().queue_attributes(queue_url)
        return QueueAttributes(**{**{name: getattr(seen, name) for name in seen.__slots__}, **self.changed})


class CountsNothing(_OtherQueueAttributes):
    changed: ClassVar = {"visible": 0}


class SaysAnotherVisibilityTimeout(_OtherQueueAttributes):
    changed: ClassVar = {"visibility_seconds": 30}


class KnowsNoDeadLetterQueue(_OtherQueueAttributes):
    changed: ClassVar = {"dead_letter_arn": None, "max_receive_count": None}


class MissingQueuesAreThere(MemoryQueueService):
    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        return await super().queue_attributes(queue_url.removesuffix("-missing"))


class MovesNoDeadLetters(MemoryQueueService):
    async def create_queue(self, name: str, attributes: Mapping[str, str]) -> str:
        redrive = {**json.loads(attributes.get("RedrivePolicy", "{}")), "maxReceiveCount": 1_000}
        if len(redrive) == 1:
            return await super().create_queue(name, attributes)
        return await super().create_queue(name, {**attributes, "RedrivePolicy": json.dumps(redrive)})

    async def queue_attributes(self, queue_url: str) -> QueueAttributes:
        seen = await super().queue_attributes(queue_url)
        values = {name: getattr(seen, name) for name in seen.__slots__}
        return QueueAttributes(**{**values, "max_receive_count": values["max_receive_count"] and 2})


class HasNoMoveTasks(MemoryQueueService):
    async def start_move_task(self, source_arn: str, **_: Any) -> str:
        raise InvalidRequestError("no such action", code="InvalidAction", text="no such action")


class MovesNothing(MemoryQueueService):
    async def start_move_task(self, source_arn: str, **_: Any) -> str:
        return "handle"


class ListsNoMoveTasks(MemoryQueueService):
    async def move_tasks(self, source_arn: str) -> Sequence[MoveTask]:
        return []


class RefusesSourcesByAnotherText(MemoryQueueService):
    async def start_move_task(self, source_arn: str, **given: Any) -> str:
        try:
            return await super().start_move_task(source_arn, **given)
        except InvalidRequestError:
            raise InvalidRequestError("no", code="InvalidParameterValue", text="no") from None


Breach: TypeAlias = tuple[str, Callable[[], MemoryQueueService], Outcome, str]

BREACHES: tuple[Breach, ...] = (
    ("visibility", VisibleTooEarly, Outcome.DIFFERS, "it came again 1.0 s after a receive for 2 s"),
    ("visibility", NeverVisibleAgain, Outcome.DIFFERS, "invisible 10 s after"),
    ("extension", CountsFromTheReceive, Outcome.DIFFERS, "it came again 4.0 s after an extension by 5 s"),
    ("extension", CountsFromTheOldEnd, Outcome.DIFFERS, "still invisible 2 s after an extension by 5 s"),
    ("release", NeverReleases, Outcome.DIFFERS, "still invisible 10 s after a visibility timeout of 0"),
    ("redelivery", SaysOtherReceiveCounts, Outcome.DIFFERS, "the receive counts 1 and 1"),
    ("redelivery", KeepsHandles, Outcome.DIFFERS, "the same receipt handle"),
    ("lapsed_lease", AnswersLostLeasesByAnotherText, Outcome.DIFFERS, "extending it: refused"),
    ("superseded_lease", AnswersLostLeasesByAnotherText, Outcome.DIFFERS, "deleting by it: refused"),
    ("superseded_lease", DeletesByOldHandles, Outcome.HARMLESS, "deleted the message of its next holder"),
    ("second_delete", AnswersLostLeasesByAnotherText, Outcome.DIFFERS, "the second delete was answered refused"),
    ("second_delete", NeverDeletes, Outcome.DIFFERS, "a message that was deleted came again"),
    ("batches", TakesNineEntries, Outcome.DIFFERS, "10 of 10 messages were not deleted"),
    ("batches", BringsMoreThanAskedFor, Outcome.DIFFERS, "brought"),
    ("entries_apart", OneLostFailsAll, Outcome.DIFFERS, "beside a lost message, another one was answered lost"),
    ("entries_apart", AnswersLostLeasesByAnotherText, Outcome.DIFFERS, "was answered refused"),
    ("entries_apart", ExtendsDeletedMessages, Outcome.HARMLESS, "could be extended"),
    ("twelve_hours", CountsTwelveHoursFromTheSend, Outcome.DIFFERS, "2 s before the end of the 12 hours"),
    ("twelve_hours", CapsByAnotherText, Outcome.DIFFERS, "beyond 12 hours was answered refused"),
    ("twelve_hours", KnowsNoCap, Outcome.HARMLESS, "was accepted"),
    ("message_size", CutsBodies, Outcome.DIFFERS, "altered"),
    ("message_size", RefusesLongBodies, Outcome.HARMLESS, "1 MiB was refused"),
    ("attributes", DropsAttributes, Outcome.DIFFERS, "of 10 attributes, 9 arrived"),
    ("attributes", SaysNoAttributes, Outcome.DIFFERS, "of 10 attributes, 0 arrived"),
    ("attributes", TakesElevenAttributes, Outcome.HARMLESS, "eleven"),
    ("long_polls", AnswersPollsAtOnce, Outcome.DIFFERS, "answered without one after 0.0 s"),
    ("long_polls", PollsSeeNothingNew, Outcome.DIFFERS, "did not bring a message that was sent meanwhile"),
    ("counts", CountsNothing, Outcome.DIFFERS, "0 visible and 1 in flight"),
    ("queue_attributes", SaysAnotherVisibilityTimeout, Outcome.DIFFERS, "its visibility timeout is 30 s"),
    ("queue_attributes", MissingQueuesAreThere, Outcome.DIFFERS, "a queue that does not exist has attributes"),
    ("redrive", MovesNoDeadLetters, Outcome.DIFFERS, "received once more"),
    ("redrive", KnowsNoDeadLetterQueue, Outcome.DIFFERS, "it says None after None"),
    ("move_task", HasNoMoveTasks, Outcome.HARMLESS, "has no move tasks"),
    ("move_task", MovesNothing, Outcome.DIFFERS, "did not come back"),
    ("move_task", ListsNoMoveTasks, Outcome.DIFFERS, "listed not at all"),
    ("move_task", RefusesSourcesByAnotherText, Outcome.HARMLESS, "not a dead-letter queue was answered"),
    ("fifo_order", SortsNoGroups, Outcome.DIFFERS, "in the order 1, 0"),
    ("fifo_order", SaysNoAttributes, Outcome.DIFFERS, "without their message group"),
    ("fifo_blocked_group", BlocksNoGroups, Outcome.DIFFERS, "while one before it was in flight"),
    ("fifo_blocked_group", BlocksAllGroups, Outcome.DIFFERS, "another group did not come"),
    ("fifo_blocked_group", FreesAGroupByOneRelease, Outcome.DIFFERS, "while a later one was in flight"),
    ("fifo_deduplication", DeduplicatesNothing, Outcome.DIFFERS, "brought two messages"),
    ("fifo_deduplication", ForgetsDeduplicationAtTheDelete, Outcome.DIFFERS, "after the message was deleted"),
    ("fifo_attempt_id", RepeatsNoReceive, Outcome.HARMLESS, "brought other messages"),
    ("fifo_lapsed_lease", AnswersLostLeasesByAnotherText, Outcome.DIFFERS, "extending it: refused"),
)


@pytest.mark.parametrize(
    ("name", "service", "outcome", "found"), BREACHES, ids=[f"{breach[0]}-{breach[1].__name__}" for breach in BREACHES]
)
def test_a_breach_of_each_rule_is_found(
    name: str, service: Callable[[], MemoryQueueService], outcome: Outcome, found: str
) -> None:
    (checked,) = found_in(service(), BY_NAME[name])

    assert found in checked.found
    assert checked.outcome is outcome


def test_each_check_has_a_service_that_breaks_its_rule() -> None:
    """Permissions are denied on the wire."""
    assert {breach[0] for breach in BREACHES} == set(BY_NAME) - {"permissions"}


# A slow network, and calls that fail.


@pytest.mark.parametrize("seconds", [0.1, 0.4, 1.5, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_slow_network_makes_no_difference(seconds: float, seed: int) -> None:
    service = MemoryQueueService()
    random = Random(seed)
    service.faults = lambda _call: Fault(
        before_seconds=random.random() * seconds, after_seconds=random.random() * seconds
    )

    found = found_in(service)

    allowed = {Outcome.HOLDS} if seconds < 0.2 else {Outcome.HOLDS, Outcome.NOT_CHECKED}
    assert [checked for checked in found if checked.outcome not in allowed] == []


async def _too_slow_at_first(ground: Ground) -> str:
    if ground.unit == 1:
        raise TooSlowError
    return f"by {ground.unit} s"


async def _never_fast_enough(_ground: Ground) -> str:
    raise TooSlowError


async def _wait(ground: Ground) -> str:
    await ground.receive(wait=20)
    return "waited"


def check_of(run: Any, kind: QueueKind = QueueKind.STANDARD) -> Check:
    return Check("rule", "It is kept.", "It hurts.", kind, run)


def test_a_check_that_proves_nothing_is_repeated_on_fresh_queues_with_longer_times() -> None:
    service = MemoryQueueService()

    (repeated,) = found_in(service, check_of(_too_slow_at_first))
    (given_up,) = found_in(service, check_of(_never_fast_enough))

    assert (repeated.outcome, repeated.found) == (Outcome.HOLDS, "by 2 s")
    assert (given_up.outcome, given_up.found) == (Outcome.NOT_CHECKED, "tried 3 times: calls took too long to tell")
    assert len(set(service.created)) == 2 + 3
    assert service.urls == []


def test_a_call_that_fails_once_fails_no_check() -> None:
    service = MemoryQueueService()
    service.faults = lambda _call: Fault(answer_lost=len(service.calls) == 1)

    (checked,) = found_in(service, BY_NAME["release"])

    assert checked.outcome is Outcome.HOLDS


def test_queues_are_deleted_when_a_check_is_cancelled() -> None:
    service = MemoryQueueService()
    queues = MadeQueues(service)

    async def main() -> None:
        checks = [check_of(_wait, QueueKind.WITH_DEAD_LETTERS)]
        task = asyncio.ensure_future(check_all(service, service.clock, queues, checks=checks))
        await asyncio.sleep(10)
        assert len(service.urls) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_virtual(main, clock=service.clock)

    assert service.urls == []
    assert queues.left == []


class LosesAnswersToCreations(MemoryQueueService):
    async def create_queue(self, name: str, attributes: Mapping[str, str]) -> str:
        await super().create_queue(name, attributes)
        raise TransientError("no answer", code="Timeout", text="no answer")


def test_a_queue_is_deleted_of_which_only_the_name_is_known() -> None:
    service = LosesAnswersToCreations()

    with pytest.raises(TransientError):
        found_in(service, BY_NAME["release"])

    assert (len(service.created), service.urls) == (1, [])


class DeletesNoQueue(MemoryQueueService):
    async def delete_queue(self, queue_url: str) -> None:
        raise AccessDeniedError("denied", queue=queue_url)


def test_the_first_queue_that_cannot_be_deleted_is_the_last_that_is_made() -> None:
    service = DeletesNoQueue()
    queues = MadeQueues(service)

    async def main() -> None:
        with pytest.raises(AccessDeniedError):
            await check_all(service, service.clock, queues)

    run_virtual(main, clock=service.clock)

    assert queues.left == service.urls
    assert len(service.urls) == 1


# The command, over a wire to a real server.

processes = pytest.mark.processes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two checks without waits."""
    monkeypatch.setattr(running, "USABLE_SECONDS", 0.0)
    monkeypatch.setattr(command, "CHECKS", (BY_NAME["permissions"], BY_NAME["redelivery"]))


def words(text: str) -> str:
    return " ".join(text.split())


def queues_of(ground: conftest.Ground) -> list[str]:
    return ground.sqs.list_queues(QueueNamePrefix=PREFIX).get("QueueUrls", [])


@processes
def test_it_says_where_and_for_how_much_and_makes_nothing_unasked(
    quick: None, wire: Wire, ground: conftest.Ground
) -> None:
    ran = sqs_lease("verify")

    said = words(ran.err)
    assert f"Where: {wire.endpoint_url}, region us-east-1, credentials from environment variables." in said
    assert "Price: about 250 requests, $0.0001 at AWS's price in us-east-1." in said
    assert "give --yes" in said
    assert ran.exit_code == 2
    assert {action for call in wire.calls for action in call.actions} == {"sqs:ListQueues"}


@processes
def test_all_is_as_relied_on(quick: None, wire: Wire, ground: conftest.Ground) -> None:
    shown, document = sqs_lease("verify", "--yes"), sqs_lease("verify", "--yes", "--json")

    assert (shown.exit_code, document.exit_code) == (0, 0)
    assert "Checks as relied on: 2." in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    answer = json.loads(document.out)
    assert [(checked["check"], checked["outcome"]) for checked in answer["checks"]] == [
        ("permissions", "as relied on"),
        ("redelivery", "as relied on"),
    ]
    assert answer["endpoint_url"] == wire.endpoint_url
    # Both runs made the same calls, each of which costs a request.
    assert 2 * answer["requests"]["standard"] == len(wire.calls)
    assert answer["dollars"] == pytest.approx(answer["requests"]["standard"] * DOLLARS_A_MILLION / 1e6, abs=1e-7)
    assert queues_of(ground) == []


@processes
@pytest.mark.parametrize(
    ("denied", "outcomes", "exit_code"),
    [
        ("sqs:ChangeMessageVisibility", ["differs", "not checked"], 1),
        ("sqs:GetQueueAttributes", ["differs", "as relied on"], 1),
        ("sqs:StartMessageMoveTask", ["differs, harmless", "as relied on"], 0),
    ],
)
def test_a_denied_permission_is_named(
    denied: str, outcomes: list[str], exit_code: int, quick: None, wire: Wire, ground: conftest.Ground
) -> None:
    wire.denied = {denied}

    ran = sqs_lease("verify", "--yes", "--json")

    checks = json.loads(ran.out)["checks"]
    assert [checked["outcome"] for checked in checks] == outcomes
    assert checks[0]["found"] == f"denied to this caller: {denied}. Allow it in its IAM policy"
    assert all(denied in checked["found"] for checked in checks if checked["outcome"] == "not checked")
    assert ran.exit_code == exit_code


@processes
def test_a_caller_that_may_make_no_queue_learns_what_it_needs(quick: None, wire: Wire, ground: conftest.Ground) -> None:
    wire.denied = {"sqs:CreateQueue"}

    ran = sqs_lease("verify", "--yes")

    assert ran.exit_code == 2
    assert f"allow on arn:aws:sqs:*:*:{PREFIX}*: {', '.join(sorted(VERIFY | {'sqs:TagQueue'}))}" in ran.err
    assert "could not be deleted" not in ran.err


@processes
def test_a_queue_that_could_not_be_deleted_is_named_with_its_command_then_and_later(
    quick: None, wire: Wire, ground: conftest.Ground
) -> None:
    wire.denied = {"sqs:DeleteQueue"}
    ran = sqs_lease("verify", "--yes", columns=500)
    (left,) = queues_of(ground)
    deletion = rf"aws --region us-east-1 sqs delete-queue --queue-url http://\S+/{left.rpartition('/')[2]}\n"

    assert ran.exit_code == 2
    assert re.search(f"A queue that was made could not be deleted. Delete it: {deletion}", ran.err)

    wire.denied = set()
    later = sqs_lease("verify", "--yes", "--json", columns=500)
    assert re.search(rf"\$ {deletion}", later.err)
    assert [url.rpartition("/")[2] for url in json.loads(later.out)["left_by_earlier_runs"]] == [
        left.rpartition("/")[2]
    ]
    assert queues_of(ground) == [left]
    ground.sqs.delete_queue(QueueUrl=left)


@processes
def test_a_user_without_the_right_to_list_queues_can_run_it(quick: None, wire: Wire, ground: conftest.Ground) -> None:
    wire.denied = {"sqs:ListQueues"}

    ran = sqs_lease("verify", "--yes")

    assert ran.exit_code == 0
    assert "Queues of an earlier run were not looked for. Allow sqs:ListQueues" in words(ran.err)


def test_a_server_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")

    ran = sqs_lease("verify", "--yes", "--region", "us-east-1", "--endpoint-url", "http://127.0.0.1:1")

    assert ran.exit_code == 2
    assert "the endpoint cannot be reached" in ran.err


@processes
@pytest.mark.parametrize(
    ("outcomes", "exit_code"),
    [
        ([Outcome.HOLDS, Outcome.HARMLESS], 0),
        ([Outcome.DIFFERS, Outcome.NOT_CHECKED], 1),
        ([Outcome.HOLDS, Outcome.NOT_CHECKED], 2),
    ],
)
def test_the_exit_code_says_whether_a_promise_breaks(
    outcomes: list[Outcome], exit_code: int, wire: Wire, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding(outcome: Outcome) -> Check:
        async def run(_ground: Ground) -> str:
            if outcome is Outcome.NOT_CHECKED:
                raise TooSlowError
            if outcome is not Outcome.HOLDS:
                raise DiffersError("it was\nseen \x1b[31m", outcome=outcome)
            return "kept"

        return check_of(run)

    monkeypatch.setattr(command, "CHECKS", tuple(finding(outcome) for outcome in outcomes))

    ran = sqs_lease("verify", "--yes")

    assert ran.exit_code == exit_code
    assert ("Otherwise: It hurts." in ran.out) is (Outcome.DIFFERS in outcomes)
    assert ("Relied on: It is kept." in ran.out) is (not {Outcome.DIFFERS, Outcome.HARMLESS}.isdisjoint(outcomes))
    # Text from a server does not steer the terminal.
    assert "\x1b" not in ran.out


@processes
def test_in_a_terminal_it_asks_and_ctrl_c_deletes_the_queues(wire: Wire, ground: conftest.Ground) -> None:
    with in_terminal("-m", "sqs_lease.cli", "verify") as child:
        child.expect(r"Make queues there\? \[y/N\]: ")
        assert queues_of(ground) == []
        child.sendline("y")
        child.expect(r"visibility \.\.\.")
        child.send(CTRL_C)
        text, code = rest_of(child)

    assert code == 130
    assert "Traceback" not in text
    assert "could not be deleted" not in text
    assert queues_of(ground) == []


@processes
def test_each_further_64_kib_counts_as_a_request(wire: Wire, ground: conftest.Ground) -> None:
    async def main() -> tuple[int, int]:
        service = ContractTransport(make_client())
        try:
            url = await service.create_queue(f"{PREFIX}long.fifo", {"FifoQueue": "true"})
            before = service.requests
            await service.send(url, "x" * 150_000, message_group_id="a", deduplication_id="a")
            sent = service.requests
            await service.receive(url, max_messages=1, wait_seconds=0, visibility_seconds=30)
            await service.delete_queue(url)
            return sent.fifo - before.fifo, service.requests.standard
        finally:
            await service.aclose()

    assert asyncio.run(main()) == (3, 2)


PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
MARKS = {Outcome.HOLDS: "✓", Outcome.HARMLESS: "·", Outcome.DIFFERS: "✗", Outcome.NOT_CHECKED: "?"}


def test_the_page_has_each_check_with_what_each_server_does() -> None:
    assert [row[0] for row in table_of_servers()[1:]] == list(BY_NAME)


@processes
def test_the_page_says_what_the_server_of_the_tests_does(wire: Wire, ground: conftest.Ground) -> None:
    ran = sqs_lease("verify", "--yes", "--json")

    answer = json.loads(ran.out)
    header, *rows = table_of_servers()
    (column,) = [place for place, name in enumerate(header) if name.startswith("ministack")]
    assert {checked["check"]: MARKS[Outcome(checked["outcome"])] for checked in answer["checks"]} == {
        row[0]: row[column] for row in rows
    }
    assert ran.exit_code == 0
    assert answer["requests"]["fifo"] > 0
    assert answer["dollars"] < (300 * DOLLARS_A_MILLION + 100 * FIFO_DOLLARS_A_MILLION) / 1e6
    called = {action for call in wire.calls for action in call.actions}
    assert called == VERIFY | VERIFY_ANYWHERE
    assert queues_of(ground) == []


def table_of_servers() -> list[list[str]]:
    """The cells of the table in the section of the command, without markup; its first row names the servers."""
    section = PAGE.read_text().partition("\n## `verify`")[2]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[re.sub(r"[`*]", "", cell).strip() for cell in row] for row in rows if "---" not in row[0]]
