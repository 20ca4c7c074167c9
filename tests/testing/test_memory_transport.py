"""The transport to the in-memory SQS: real codes and texts through the real classification, and faults on the way."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Receipt
from sqs_lease.sqs.errors import (
    EndpointUnreachableError,
    OverLimitError,
    QueueNotFoundError,
    SqsError,
    ThrottledError,
    TransientError,
    UnavailableError,
)
from sqs_lease.sqs.transport import Transport
from sqs_lease.testing import (
    NO_FAULT,
    Fault,
    FaultRule,
    MemorySqs,
    MemoryTransport,
    MessageState,
    Operation,
    Outages,
    RandomFaults,
    ScriptedFaults,
    VirtualClock,
    no_faults,
    run_virtual,
)
from sqs_lease.testing.service_errors import INTERNAL_ERROR, THROTTLED, UNAVAILABLE


class Setting:
    """A service with a queue of three messages, and a transport to it."""

    def __init__(self, faults: FaultRule = no_faults, *, name: str = "orders", in_flight_limit: int = 120_000) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock, in_flight_limit=in_flight_limit)
        self.url = self.sqs.create_queue(name, visibility_seconds=30)
        fifo = name.endswith(".fifo")
        for number in range(3):
            self.sqs.send(
                self.url,
                f"body {number}",
                message_group_id="a" if fifo else None,
                deduplication_id=str(number) if fifo else None,
            )
        self.transport = MemoryTransport(self.sqs, faults=faults, name="me")

    def run(self, work: Callable[[Transport], Awaitable[None]]) -> None:
        async def main() -> None:
            await work(self.transport)

        run_virtual(main, clock=self.clock)

    async def receive(self, count: int = 3) -> list[Receipt]:
        messages = await self.transport.receive(self.url, max_messages=count, wait_seconds=0, visibility_seconds=None)
        return [message.receipt for message in messages]

    async def extend(self, receipt: Receipt, seconds: int = 60) -> Verdict:
        (answer,) = await self.transport.change_visibility(self.url, [VisibilityChange(receipt, seconds)])
        return answer.verdict

    async def delete(self, receipt: Receipt) -> Verdict:
        (answer,) = await self.transport.delete(self.url, [receipt])
        return answer.verdict


def test_a_refusal_has_the_verdict_of_its_real_code_and_text() -> None:
    setting = Setting()

    async def work(_: Transport) -> None:
        deleted, released, capped = await setting.receive()
        assert await setting.delete(deleted) is Verdict.DONE
        assert await setting.extend(deleted) is Verdict.LOST
        assert await setting.extend(released, 0) is Verdict.DONE
        assert await setting.extend(released) is Verdict.LOST
        await asyncio.sleep(1)
        assert await setting.extend(capped, 43_200) is Verdict.CAPPED
        assert await setting.extend(Receipt("x", "malformed")) is Verdict.LOST

    setting.run(work)


def test_a_fifo_delete_after_expiry_is_a_lost_lease() -> None:
    setting = Setting(name="orders.fifo")

    async def work(_: Transport) -> None:
        receipt, *_rest = await setting.receive()
        await asyncio.sleep(31)
        assert await setting.delete(receipt) is Verdict.LOST

    setting.run(work)


def test_errors_of_whole_calls_are_raised_by_their_kind() -> None:
    setting = Setting(in_flight_limit=1)

    async def work(transport: Transport) -> None:
        with pytest.raises(QueueNotFoundError, match="nowhere"):
            await transport.queue_url("nowhere")
        with pytest.raises(QueueNotFoundError):
            await transport.queue_attributes(setting.url + "x")
        await setting.receive(1)
        with pytest.raises(OverLimitError, match="in flight"):
            await setting.receive(1)

    setting.run(work)


def test_a_queue_is_found_by_name_arn_or_url() -> None:
    setting = Setting()

    async def work(transport: Transport) -> None:
        attributes = await transport.queue_attributes(setting.url)
        assert await transport.queue_url("orders") == setting.url
        assert await transport.queue_url(attributes.arn) == setting.url
        assert await transport.queue_url(setting.url) == setting.url

    setting.run(work)


def test_more_than_ten_entries_are_the_callers_error() -> None:
    setting = Setting()

    async def work(transport: Transport) -> None:
        with pytest.raises(ValueError, match="11 entries"):
            await transport.delete(setting.url, [Receipt("a", "b")] * 11)

    setting.run(work)


def test_single_entries_of_a_batch_fail_while_the_others_go_through() -> None:
    faults = ScriptedFaults(Fault(entry_errors={0: THROTTLED, 2: INTERNAL_ERROR}), operation=Operation.DELETE)
    setting = Setting(faults)

    async def work(transport: Transport) -> None:
        receipts = await setting.receive()
        answers = await transport.delete(setting.url, receipts)
        assert [answer.receipt for answer in answers] == receipts
        assert [answer.verdict for answer in answers] == [Verdict.THROTTLED, Verdict.DONE, Verdict.TRANSIENT]
        assert len(setting.sqs.contents(setting.url)) == 2

    setting.run(work)
    assert faults.left == 0


def test_a_refused_call_does_nothing_and_concerns_each_entry() -> None:
    setting = Setting(ScriptedFaults(NO_FAULT, Fault(error=THROTTLED)))

    async def work(transport: Transport) -> None:
        answers = await transport.delete(setting.url, await setting.receive())
        assert [answer.verdict for answer in answers] == [Verdict.THROTTLED] * 3
        assert len(setting.sqs.contents(setting.url)) == 3

    setting.run(work)


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        (Fault(request_lost=True, after_seconds=7), 3),
        (Fault(answer_lost=True, after_seconds=7), 2),
        (Fault(error=INTERNAL_ERROR, after_seconds=7), 3),
        (Fault(error=INTERNAL_ERROR, carried_out=True, after_seconds=7), 2),
        (Fault(error=INTERNAL_ERROR, carried_out=True, answer_lost=True, after_seconds=7), 2),
    ],
    ids=["lost request", "lost answer", "500", "500, carried out", "500, carried out, lost"],
)
def test_the_caller_cannot_tell_whether_a_call_without_a_clear_answer_was_carried_out(fault: Fault, left: int) -> None:
    setting = Setting(ScriptedFaults(fault, operation=Operation.DELETE))

    async def work(_: Transport) -> None:
        receipt, *_rest = await setting.receive()
        assert await setting.delete(receipt) is Verdict.TRANSIENT
        assert setting.clock.now() == 7
        assert len(setting.sqs.contents(setting.url)) == left

    setting.run(work)


def test_a_refusal_with_a_lost_answer_is_a_verdict_too() -> None:
    setting = Setting(ScriptedFaults(Fault(answer_lost=True)))

    async def work(transport: Transport) -> None:
        answers = await transport.delete(setting.url + "x", [Receipt("a", "b")])
        assert [answer.verdict for answer in answers] == [Verdict.TRANSIENT]

    setting.run(work)


def test_a_receive_with_a_lost_answer_leaves_the_messages_invisible() -> None:
    setting = Setting(ScriptedFaults(Fault(answer_lost=True), Fault(request_lost=True)))

    async def work(_: Transport) -> None:
        with pytest.raises(TransientError):
            await setting.receive()
        assert set(setting.sqs.contents(setting.url).values()) == {MessageState.IN_FLIGHT}
        with pytest.raises(TransientError):
            await setting.receive()

    setting.run(work)


@pytest.mark.parametrize(
    "fault",
    [Fault(error=UNAVAILABLE, after_seconds=2), Fault(unreachable=True, after_seconds=2)],
    ids=["503", "refused"],
)
def test_a_call_that_is_turned_away_is_certainly_not_carried_out(fault: Fault) -> None:
    setting = Setting(ScriptedFaults(fault, operation=Operation.DELETE))

    async def work(transport: Transport) -> None:
        receipts = await setting.receive()
        answers = await transport.delete(setting.url, receipts)
        assert {answer.verdict for answer in answers} == {Verdict.UNAVAILABLE}
        assert setting.clock.now() == 2
        assert len(setting.sqs.contents(setting.url)) == 3

    setting.run(work)


def test_a_request_and_its_answer_take_their_time() -> None:
    setting = Setting(ScriptedFaults(NO_FAULT, Fault(before_seconds=3, after_seconds=4)))

    async def work(_: Transport) -> None:
        receipt, *_rest = await setting.receive()
        assert await setting.extend(receipt, 60) is Verdict.DONE
        assert setting.clock.now() == 7
        (change,) = [entry for entry in setting.sqs.trail().entries() if entry.kind.value == "changed"]
        assert (change.at, change.until, change.caller) == (3, 63, "me")

    setting.run(work)


def test_a_call_cancelled_on_its_way_is_withdrawn() -> None:
    setting = Setting(ScriptedFaults(NO_FAULT, Fault(before_seconds=3)))

    async def work(_: Transport) -> None:
        receipt, *_rest = await setting.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(setting.delete(receipt), 1)
        await asyncio.sleep(5)
        assert len(setting.sqs.contents(setting.url)) == 3

    setting.run(work)


def test_a_call_that_cannot_be_stopped_is_carried_out_although_the_caller_gave_it_up() -> None:
    setting = Setting(ScriptedFaults(NO_FAULT, Fault(before_seconds=3, unstoppable=True)))

    async def work(_: Transport) -> None:
        receipt, *_rest = await setting.receive()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(setting.delete(receipt), 1)
        assert len(setting.sqs.contents(setting.url)) == 3
        await asyncio.sleep(5)
        assert len(setting.sqs.contents(setting.url)) == 2

    setting.run(work)


def test_the_failure_of_a_call_that_was_given_up_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(ScriptedFaults(Fault(before_seconds=3, error=THROTTLED, unstoppable=True)))

    async def work(_: Transport) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(setting.receive(), 1)
        await asyncio.sleep(5)
        gc.collect()

    setting.run(work)
    assert not caplog.records


@pytest.mark.parametrize(
    ("unreachable", "error"), [(False, UnavailableError), (True, EndpointUnreachableError)], ids=["answers", "silent"]
)
def test_an_outage_lasts_as_long_as_it_lasts(unreachable: bool, error: type[SqsError]) -> None:
    setting = Setting(Outages([(10, 20)], unreachable=unreachable))

    async def work(_: Transport) -> None:
        await setting.receive(1)
        await asyncio.sleep(10)
        with pytest.raises(error):
            await setting.receive(1)
        await asyncio.sleep(10)
        assert len(await setting.receive(1)) == 1

    setting.run(work)


def test_random_faults_are_the_same_for_the_same_seed_and_different_for_another() -> None:
    def outcomes(seed: int) -> list[object]:
        faults = RandomFaults(
            random=Random(seed),
            latency_seconds=1,
            throttled=0.1,
            unavailable=0.05,
            failed=0.05,
            done_but_failed=0.05,
            refused_connections=0.1,
            lost_requests=0.05,
            lost_answers=0.05,
            throttled_entries=0.2,
            failed_entries=0.2,
            unstoppable=0.5,
        )
        setting = Setting(faults)
        seen: list[object] = []

        async def work(transport: Transport) -> None:
            for _ in range(50):
                try:
                    receipts = await setting.receive()
                    answers = await transport.change_visibility(
                        setting.url, [VisibilityChange(receipt, 0) for receipt in receipts]
                    )
                    seen.append([answer.verdict for answer in answers])
                except SqsError as error:
                    seen.append(type(error))
                seen.append(setting.clock.now())

        setting.run(work)
        return seen

    first = outcomes(1)
    assert first == outcomes(1)
    assert first != outcomes(2)
    assert ThrottledError in first
    assert TransientError in first
    assert EndpointUnreachableError in first
    assert any(Verdict.DONE in entry and len(set(entry)) > 1 for entry in first if isinstance(entry, list))


def test_calls_are_counted_by_operation() -> None:
    setting = Setting()

    async def work(transport: Transport) -> None:
        await transport.delete(setting.url, await setting.receive())
        await transport.delete(setting.url, [])

    setting.run(work)
    assert setting.transport.count(Operation.RECEIVE) == 1
    assert setting.transport.count(Operation.DELETE) == 1


def test_a_closed_transport_takes_no_calls() -> None:
    setting = Setting()

    async def work(transport: Transport) -> None:
        await transport.aclose()
        with pytest.raises(TransientError, match="closed"):
            await setting.receive()

    setting.run(work)
