"""The behaviour of every transport: boto3 and aiobotocore against a real server process, and the in-memory one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from demo.sqs_server import SqsServer
from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.keeper.receiver import Receiver, Reception
from sqs_lease.sqs.errors import QueueNotFoundError
from tests.sqs.benches import HELD_SECONDS, Bench, MemoryBench, ServerBench
from tests.sqs.clients import aiobotocore_transport, boto3_transport


@pytest.fixture(
    params=[
        pytest.param(boto3_transport, id="boto3", marks=pytest.mark.processes),
        pytest.param(aiobotocore_transport, id="aiobotocore", marks=pytest.mark.processes),
        pytest.param(None, id="memory"),
    ]
)
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param is None:
        return MemoryBench()
    server: SqsServer = request.getfixturevalue("server")
    return ServerBench(request.param, server.endpoint_url)


async def send(bench: Bench, url: str, count: int) -> list[str]:
    fifo = url.endswith(".fifo")
    return [
        await bench.transport.send(
            url,
            f"body {number}",
            message_group_id=f"group-{number}" if fifo else None,
            deduplication_id=str(number) if fifo else None,
        )
        for number in range(count)
    ]


async def receive(bench: Bench, url: str, count: int = 10, *, wait_seconds: int = 0) -> list[Message]:
    messages = await bench.transport.receive(
        url, max_messages=count, wait_seconds=wait_seconds, visibility_seconds=None
    )
    return list(messages)


def receipts(messages: Sequence[Message]) -> list[Receipt]:
    return [message.receipt for message in messages]


async def change(bench: Bench, url: str, of: Sequence[Receipt], seconds: int) -> list[Verdict]:
    changes = [VisibilityChange(receipt, seconds) for receipt in of]
    answers = await bench.transport.change_visibility(url, changes)
    assert [answer.receipt for answer in answers] == list(of)
    return [answer.verdict for answer in answers]


async def delete(bench: Bench, url: str, of: Sequence[Receipt]) -> list[Verdict]:
    answers = await bench.transport.delete(url, of)
    assert [answer.receipt for answer in answers] == list(of)
    return [answer.verdict for answer in answers]


async def counts(bench: Bench, url: str) -> tuple[int, int]:
    attributes = await bench.transport.queue_attributes(url)
    return attributes.visible, attributes.in_flight


def test_a_message_arrives_whole(bench: Bench) -> None:
    url = bench.create_queue()
    attributes: dict[str, dict[str, Any]] = {
        "trace": {"DataType": "String", "StringValue": "abc"},
        "raw": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
    }
    body = '{"text": "Grüße, 日本, \\u0001"}' + "x" * 200_000

    async def scenario() -> None:
        sent = await bench.transport.send(url, body, message_attributes=attributes)
        (message,) = await receive(bench, url)
        assert (message.message_id, message.body, message.receive_count) == (sent, body, 1)
        assert message.message_attributes["trace"]["StringValue"] == "abc"
        assert message.message_attributes["raw"]["BinaryValue"] == b"\x00\xff"
        assert message.sent_at is not None
        assert message.receipt.handle

    bench.run(scenario)


def test_a_message_of_a_fair_queue_arrives_with_its_group(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        await bench.transport.send(url, "text", message_group_id="tenant-1")
        (message,) = await receive(bench, url)
        assert message.message_group_id == "tenant-1"

    bench.run(scenario)


def test_a_receive_returns_no_more_than_asked_for_and_nothing_when_nothing_is_visible(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        sent = await send(bench, url, 12)
        batches = [await receive(bench, url, count) for count in (1, 10, 10, 10)]
        assert [len(batch) for batch in batches] == [1, 10, 1, 0]
        assert {message.message_id for batch in batches for message in batch} == set(sent)

    bench.run(scenario)


def test_an_open_long_poll_gets_a_message_that_is_sent_meanwhile(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        sent = asyncio.Event()
        poll = asyncio.ensure_future(
            bench.transport.receive(
                url,
                max_messages=10,
                wait_seconds=20,
                visibility_seconds=None,
                on_sent=sent.set,
            )
        )
        await sent.wait()
        sent_at = bench.clock.now()
        message_id = await bench.transport.send(url, "text")
        assert [message.message_id for message in await poll] == [message_id]
        bench.check_no_time_passed_since(sent_at)

    bench.run(scenario)


def test_a_released_message_comes_again_with_another_receipt(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        await send(bench, url, 1)
        (first,) = await receive(bench, url)
        assert await change(bench, url, [first.receipt], 0) == [Verdict.DONE]
        (second,) = await receive(bench, url, wait_seconds=20)
        assert second.message_id == first.message_id
        assert second.receipt != first.receipt
        assert second.receive_count == 2

    bench.run(scenario)


def test_ten_messages_are_extended_and_deleted_in_one_call_each(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        await send(bench, url, 10)
        held = receipts(await receive(bench, url))
        assert await change(bench, url, held, 600) == [Verdict.DONE] * 10
        assert await counts(bench, url) == (0, 10)
        assert await delete(bench, url, held) == [Verdict.DONE] * 10
        assert await counts(bench, url) == (0, 0)

    bench.run(scenario)


def test_a_lease_that_is_lost_does_not_take_the_others_of_its_batch_along(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        await send(bench, url, 3)
        held = receipts(await receive(bench, url))
        await delete(bench, url, [held[1]])
        assert await change(bench, url, held, HELD_SECONDS) == [Verdict.DONE, Verdict.LOST, Verdict.DONE]
        unknown = Receipt("no-such-message", "no-such-handle")
        verdicts = await change(bench, url, [unknown, held[0], Receipt("handed-on", "")], HELD_SECONDS)
        assert verdicts[:2] == [Verdict.LOST, Verdict.DONE]
        assert verdicts[2] is not Verdict.DONE
        assert await delete(bench, url, [held[0], unknown, held[2]]) == [Verdict.DONE, Verdict.LOST, Verdict.DONE]

    bench.run(scenario)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "FIFO"])
def test_a_second_delete_with_the_same_handle_is_done_or_lost_and_never_refused(bench: Bench, fifo: bool) -> None:
    """AWS answers success on a standard queue; emulators say that the handle is invalid."""

    async def scenario() -> None:
        url = bench.create_queue(fifo=fifo)
        await send(bench, url, 2)
        held = receipts(await receive(bench, url))
        assert await delete(bench, url, held[:1]) == [Verdict.DONE]
        again, other = await delete(bench, url, held)
        assert again in {Verdict.DONE, Verdict.LOST}
        assert other is Verdict.DONE
        # Alone in its call, as after an answer that did not come.
        assert set(await delete(bench, url, held[:1])) <= {Verdict.DONE, Verdict.LOST}
        assert await counts(bench, url) == (0, 0)

    bench.run(scenario)


def test_a_batch_without_entries_needs_no_call(bench: Bench) -> None:
    url = bench.create_queue()

    async def scenario() -> None:
        assert await change(bench, url, [], 30) == []
        assert await delete(bench, url, []) == []

    bench.run(scenario)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_queue_is_found_by_name_arn_and_url_and_says_what_it_is(bench: Bench, fifo: bool) -> None:
    dead_letter_url = bench.create_queue(fifo=fifo)

    async def scenario() -> None:
        dead_letter_arn = (await bench.transport.queue_attributes(dead_letter_url)).arn
        url = bench.create_queue(fifo=fifo, visibility_seconds=777, dead_letters=(dead_letter_arn, 3))
        attributes = await bench.transport.queue_attributes(url)
        assert attributes.visibility_seconds == 777
        assert attributes.fifo is fifo
        assert (attributes.dead_letter_arn, attributes.max_receive_count) == (dead_letter_arn, 3)
        assert (attributes.visible, attributes.in_flight, attributes.delayed) == (0, 0, 0)
        name = url.rsplit("/", 1)[-1]
        for given in (name, attributes.arn, url):
            assert await bench.transport.queue_url(given) == url

    bench.run(scenario)


def test_a_queue_that_does_not_exist_is_named_in_the_error(bench: Bench) -> None:
    existing = bench.create_queue()
    missing = f"{existing}-missing"
    receipt = Receipt("message", "handle")

    async def scenario() -> None:
        with pytest.raises(QueueNotFoundError, match=r"no-such-queue.*Check its name"):
            await bench.transport.queue_url("no-such-queue")
        with pytest.raises(QueueNotFoundError, match=missing):
            await bench.transport.queue_attributes(missing)
        with pytest.raises(QueueNotFoundError, match=missing):
            await receive(bench, missing)
        with pytest.raises(QueueNotFoundError, match=missing):
            await bench.transport.send(missing, "text")
        assert await change(bench, missing, [receipt], 30) == [Verdict.REFUSED]
        assert await delete(bench, missing, [receipt]) == [Verdict.REFUSED]

    bench.run(scenario)


def test_a_fifo_queue_keeps_groups_and_takes_a_deduplication_id_once(bench: Bench) -> None:
    url = bench.create_queue(fifo=True)

    async def scenario() -> None:
        for number, group in enumerate("abab"):
            await bench.transport.send(url, f"{group}{number}", message_group_id=group, deduplication_id=str(number))
        await bench.transport.send(url, "again", message_group_id="a", deduplication_id="0")
        messages = await bench.transport.receive(
            url, max_messages=10, wait_seconds=0, visibility_seconds=HELD_SECONDS, attempt_id="attempt-1"
        )
        bodies = {group: [m.body for m in messages if m.message_group_id == group] for group in "ab"}
        assert bodies == {"a": ["a0", "a2"], "b": ["b1", "b3"]}
        assert await delete(bench, url, receipts(messages)) == [Verdict.DONE] * 4

    bench.run(scenario)


def test_input_that_the_service_would_refuse_is_refused_before_anything_is_sent(bench: Bench) -> None:
    standard, fifo = bench.create_queue(), bench.create_queue(fifo=True)
    eleven = [Receipt(f"id-{number}", f"handle-{number}") for number in range(11)]
    transport_calls = {
        "entries": lambda t: t.delete(standard, eleven),
        "11 entries": lambda t: t.change_visibility(standard, [VisibilityChange(r, 1) for r in eleven]),
        "visibility timeout": lambda t: t.change_visibility(standard, [VisibilityChange(eleven[0], 43_201)]),
        "max_messages": lambda t: t.receive(standard, max_messages=11, wait_seconds=0, visibility_seconds=None),
        "wait_seconds": lambda t: t.receive(standard, max_messages=1, wait_seconds=21, visibility_seconds=None),
        "0 to 43200": lambda t: t.receive(standard, max_messages=1, wait_seconds=0, visibility_seconds=-1),
        "attempt_id is for FIFO": lambda t: t.receive(
            standard, max_messages=1, wait_seconds=0, visibility_seconds=None, attempt_id="x"
        ),
        "deduplication_id is for FIFO": lambda t: t.send(standard, "text", deduplication_id="x"),
        "message_group_id is required": lambda t: t.send(fifo, "text"),
        "body": lambda t: t.send(standard, ""),
        "is not a queue name": lambda t: t.queue_url("a queue"),
    }

    async def scenario() -> None:
        for text, call in transport_calls.items():
            with pytest.raises(ValueError, match=text):
                await call(bench.transport)  # type: ignore[no-untyped-call]

    bench.run(scenario)


def test_a_receiver_collects_exactly_as_many_messages_as_asked_for(bench: Bench) -> None:
    url = bench.create_queue()
    handed: list[Message] = []

    def hold(reception: Reception) -> None:
        handed.extend(reception.messages)

    async def scenario() -> None:
        sent = await send(bench, url, 60)
        receiver = Receiver(bench.transport, url, visibility_seconds=HELD_SECONDS, clock=bench.clock)
        collected = await receiver.collect(47, wait=HELD_SECONDS, linger=HELD_SECONDS, on_received=hold)
        assert collected.error is None
        assert len(collected.messages) == len({message.message_id for message in handed}) == 47
        assert {message.message_id for message in handed} <= set(sent)
        assert await counts(bench, url) == (13, 47)

    bench.run(scenario)
