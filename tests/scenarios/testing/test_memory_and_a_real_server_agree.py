"""The in-memory service and a real server process agree: each scenario runs on both, through the same transport.

Where ministack and the real service differ, the in-memory one follows the real service: see
``test_memory_sqs.py``. On ministack time is real, so what is to become visible again has a visibility timeout
of a second and is awaited; what is not has one of minutes. How soon something happens is checked in virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from demo.sqs_server import SqsServer
from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.sqs.errors import QueueNotFoundError
from tests.scenarios.testing.grounds import HELD_SECONDS, Ground, MemoryGround, MinistackGround

LIMIT_SECONDS = 600
"""How long something is awaited that is to happen after a second at most."""


@pytest.fixture(scope="module")
def ministack(server: SqsServer) -> MinistackGround:
    return MinistackGround(server)


@pytest.fixture(params=["memory", pytest.param("ministack", marks=pytest.mark.processes)])
def ground(request: pytest.FixtureRequest) -> Ground:
    if request.param == "memory":
        return MemoryGround()
    ministack: MinistackGround = request.getfixturevalue("ministack")
    return ministack


async def receive(
    ground: Ground, queue_url: str, *, count: int = 10, wait: int = 0, visibility: int | None = None
) -> list[Message]:
    messages = await ground.transport.receive(
        queue_url, max_messages=count, wait_seconds=wait, visibility_seconds=visibility
    )
    return list(messages)


async def receive_all(ground: Ground, queue_url: str, count: int) -> list[Message]:
    """So many messages, in the order in which they come."""
    messages: list[Message] = []
    began_at = ground.clock.now()
    while len(messages) < count:
        assert ground.clock.now() - began_at < LIMIT_SECONDS
        messages += await receive(ground, queue_url, count=count - len(messages), wait=20)
    return messages


async def receive_one(ground: Ground, queue_url: str) -> Message:
    (message,) = await receive_all(ground, queue_url, 1)
    return message


async def change(ground: Ground, queue_url: str, receipt: Receipt, seconds: int) -> Verdict:
    (answer,) = await ground.transport.change_visibility(queue_url, [VisibilityChange(receipt, seconds)])
    return answer.verdict


async def delete(ground: Ground, queue_url: str, receipts: Sequence[Receipt]) -> list[Verdict]:
    return [answer.verdict for answer in await ground.transport.delete(queue_url, receipts)]


async def send_in_groups(ground: Ground, queue_url: str, groups: str) -> list[str]:
    return [
        await ground.transport.send(queue_url, f"{group}{place}", message_group_id=group, deduplication_id=str(place))
        for place, group in enumerate(groups)
    ]


def test_a_message_comes_as_it_was_sent_and_is_invisible_then(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        attributes = {"trace": {"DataType": "String", "StringValue": "x"}}
        began = ground.clock.wall()
        sent = await ground.transport.send(url, "a body", message_attributes=attributes)
        message = await receive_one(ground, url)
        assert (message.message_id, message.body, message.receive_count) == (sent, "a body", 1)
        assert message.message_attributes["trace"]["StringValue"] == "x"
        assert message.sent_at is not None
        assert began - 1 < message.sent_at.timestamp() < ground.clock.wall() + 1
        assert await receive(ground, url) == []

    ground.run(scenario)


def test_a_message_is_visible_again_after_its_visibility_timeout_with_a_new_handle(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(visibility_seconds=1)
        await ground.transport.send(url, "body")
        asked_at = ground.clock.now()
        first = await receive_one(ground, url)
        second = await receive_one(ground, url)
        ground.check_passed(asked_at, least=1, most=1)
        assert second.message_id == first.message_id
        assert second.receipt.handle != first.receipt.handle
        assert (first.receive_count, second.receive_count) == (1, 2)

    ground.run(scenario)


def test_a_receive_can_have_a_visibility_timeout_of_its_own(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        await ground.transport.send(url, "body")
        asked_at = ground.clock.now()
        (first,) = await receive(ground, url, visibility=1)
        assert first.receive_count == 1
        assert (await receive_one(ground, url)).receive_count == 2
        ground.check_passed(asked_at, least=1, most=1)

    ground.run(scenario)


async def held_for_a_second_and_the_first_extended(ground: Ground, url: str) -> list[Message]:
    """Receive two messages, give each a second, and the first one more before that is over: again, if it was over."""
    began_at = ground.clock.now()
    while True:
        first, second = await receive_all(ground, url, 2)
        asked_at = ground.clock.now()
        changes = [VisibilityChange(message.receipt, 1) for message in (first, second)]
        assert {answer.verdict for answer in await ground.transport.change_visibility(url, changes)} == {Verdict.DONE}
        verdict = await change(ground, url, first.receipt, HELD_SECONDS)
        if ground.clock.now() - asked_at < 0.9:
            assert verdict is Verdict.DONE
            return [first, second]
        assert ground.clock.now() - began_at < LIMIT_SECONDS, "the machine is too slow for two calls in a second"
        for message in (first, second):
            await change(ground, url, message.receipt, 0)


def test_a_message_extended_again_and_again_stays_invisible_while_one_comes_back_that_had_as_much_time(
    ground: Ground,
) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        for body in ("extended", "left alone"):
            await ground.transport.send(url, body)
        extended, left_alone = await held_for_a_second_and_the_first_extended(ground, url)
        for seconds in (2 * HELD_SECONDS, HELD_SECONDS, 3 * HELD_SECONDS):
            assert await change(ground, url, extended.receipt, seconds) is Verdict.DONE
        assert (await receive_one(ground, url)).message_id == left_alone.message_id
        assert await receive(ground, url) == []
        assert await delete(ground, url, [extended.receipt]) == [Verdict.DONE]

    ground.run(scenario)


def test_a_released_message_is_visible_at_once(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        await ground.transport.send(url, "body")
        message = await receive_one(ground, url)
        assert await change(ground, url, message.receipt, 0) is Verdict.DONE
        assert (await receive_one(ground, url)).receive_count == 2

    ground.run(scenario)


def test_a_message_released_with_a_delay_is_visible_after_it(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        await ground.transport.send(url, "body")
        message = await receive_one(ground, url)
        released_at = ground.clock.now()
        assert await change(ground, url, message.receipt, 1) is Verdict.DONE
        assert (await receive_one(ground, url)).receive_count == 2
        ground.check_passed(released_at, least=1, most=1)

    ground.run(scenario)


def test_a_release_wakes_a_long_poll_that_waits(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        await ground.transport.send(url, "body")
        message = await receive_one(ground, url)
        sent = asyncio.Event()
        call = ground.transport.receive(
            url, max_messages=10, wait_seconds=20, visibility_seconds=None, on_sent=sent.set
        )
        poll = asyncio.ensure_future(call)
        await sent.wait()
        released_at = ground.clock.now()
        assert await change(ground, url, message.receipt, 0) is Verdict.DONE
        assert len(await poll) == 1
        ground.check_passed(released_at, least=0, most=0)

    ground.run(scenario)


def test_a_deleted_message_never_comes_back(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        for body in ("deleted", "left alone"):
            await ground.transport.send(url, body)
        deleted, left_alone = await receive_all(ground, url, 2)
        changes = [VisibilityChange(message.receipt, 1) for message in (deleted, left_alone)]
        assert {answer.verdict for answer in await ground.transport.change_visibility(url, changes)} == {Verdict.DONE}
        assert await delete(ground, url, [deleted.receipt]) == [Verdict.DONE]
        # It had as much time, by the same call.
        assert (await receive_one(ground, url)).message_id == left_alone.message_id
        assert await receive(ground, url) == []
        attributes = await ground.transport.queue_attributes(url)
        assert (attributes.visible, attributes.in_flight) == (0, 1)

    ground.run(scenario)


def test_a_deleted_message_is_lost_for_an_extension_and_does_not_sink_the_others_of_its_batch(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        for number in range(10):
            await ground.transport.send(url, str(number))
        receipts = [message.receipt for message in await receive_all(ground, url, 10)]
        await delete(ground, url, [receipts[4]])
        answers = await ground.transport.change_visibility(url, [VisibilityChange(receipt, 60) for receipt in receipts])
        assert [answer.receipt for answer in answers] == receipts
        verdicts = [answer.verdict for answer in answers]
        assert verdicts.pop(4) is Verdict.LOST
        assert verdicts == [Verdict.DONE] * 9

    ground.run(scenario)


def test_a_malformed_handle_is_lost(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        assert await change(ground, url, Receipt("id", "malformed"), 30) is Verdict.LOST

    ground.run(scenario)


def test_a_message_received_too_often_is_found_in_the_dead_letter_queue(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        dead_letter_url = ground.create_queue()
        url = ground.create_queue(dead_letter_queue_url=dead_letter_url, max_receive_count=2)
        sent = await ground.transport.send(url, "poison")
        for _ in range(2):
            message = await receive_one(ground, url)
            assert await change(ground, url, message.receipt, 0) is Verdict.DONE
        assert await receive(ground, url) == []
        dead = await receive_one(ground, dead_letter_url)
        assert (dead.message_id, dead.body, dead.sent_at) == (sent, "poison", message.sent_at)
        attributes = await ground.transport.queue_attributes(url)
        assert attributes.max_receive_count == 2
        assert await ground.transport.queue_url(str(attributes.dead_letter_arn)) == dead_letter_url

    ground.run(scenario)


def test_a_delayed_message_comes_after_its_delay(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(delay_seconds=1)
        sent_at = ground.clock.now()
        await ground.transport.send(url, "body")
        await receive_one(ground, url)
        ground.check_passed(sent_at, least=1, most=1)

    ground.run(scenario)


def test_the_queue_says_what_it_is_and_holds(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(visibility_seconds=777)
        for number in range(3):
            await ground.transport.send(url, str(number))
        await receive(ground, url, count=1)
        attributes = await ground.transport.queue_attributes(url)
        assert (attributes.visibility_seconds, attributes.fifo) == (777, False)
        assert (attributes.visible, attributes.in_flight) == (2, 1)
        assert attributes.dead_letter_arn is None
        fifo = await ground.transport.queue_attributes(ground.create_queue(fifo=True))
        assert fifo.fifo

    ground.run(scenario)


def test_there_is_no_such_queue(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue() + "x"
        with pytest.raises(QueueNotFoundError):
            await receive(ground, url)
        with pytest.raises(QueueNotFoundError):
            await ground.transport.queue_url("nowhere")
        answers = await ground.transport.delete(url, [Receipt("id", "handle")])
        assert [answer.verdict for answer in answers] == [Verdict.REFUSED]

    ground.run(scenario)


def test_a_fifo_queue_keeps_the_order_within_a_group_and_blocks_it_while_one_is_in_flight(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(fifo=True)
        a0, a1, b2 = await send_in_groups(ground, url, "aab")
        (first,) = await receive(ground, url, count=1)
        assert first.message_id == a0
        assert first.message_group_id == "a"
        (other,) = await receive(ground, url)
        assert other.message_id == b2
        assert await delete(ground, url, [first.receipt]) == [Verdict.DONE]
        assert (await receive_one(ground, url)).message_id == a1

    ground.run(scenario)


def test_a_released_fifo_message_comes_before_those_behind_it(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(fifo=True)
        sent = await send_in_groups(ground, url, "aaa")
        (first,) = await receive(ground, url, count=1)
        assert await change(ground, url, first.receipt, 0) is Verdict.DONE
        assert [message.message_id for message in await receive_all(ground, url, 3)] == sent

    ground.run(scenario)


def test_a_fifo_message_is_visible_again_after_its_visibility_timeout_and_first(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(fifo=True, visibility_seconds=1)
        sent = await send_in_groups(ground, url, "aa")
        (first,) = await receive(ground, url, count=1)
        again = await receive_one(ground, url)
        assert first.message_id == again.message_id == sent[0]
        assert again.receive_count == 2

    ground.run(scenario)


def test_a_duplicate_is_sent_once(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue(fifo=True)
        for _ in range(2):
            await ground.transport.send(url, "body", message_group_id="a", deduplication_id="same")
        assert len(await receive(ground, url)) == 1
        assert (await ground.transport.queue_attributes(url)).visible == 0

    ground.run(scenario)


def test_a_long_poll_on_an_empty_queue_ends_with_nothing_after_its_wait(ground: Ground) -> None:
    async def scenario(ground: Ground) -> None:
        url = ground.create_queue()
        began = ground.clock.now()
        assert await receive(ground, url, wait=1) == []
        ground.check_passed(began, least=1, most=1)

    ground.run(scenario)
