"""The keeper ends each lease once, as its work ended."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Lapsed, Outcome, Settled
from sqs_lease.core.failure_rules import backoff, dead_letter, expire
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.sqs.errors import TransientError
from tests.keeper.held import POLICY, QUEUE, Setting, messages
from tests.keeper.scripted_transport import RecordedCall, done, never_answers


def test_failed_work_releases_at_once_and_succeeded_messages_of_the_same_batch_are_deleted(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        first, second, third = messages(3)
        batch.add([first, second, third], received_at=setting.clock.now())
        await batch.fail("it broke", [second.receipt])
        await batch.succeed([first.receipt])
        assert [lease.receipt for lease in batch.leases()] == [third.receipt]
        assert not batch.holds(second.receipt)
        assert batch.holds(third.receipt)

    setting.run(scenario)
    assert [asked.entries for asked in setting.transport.calls("release")] == [(("m1", 0),)]
    assert [asked.entries for asked in setting.transport.calls("delete")] == [(("m0", None),)]


def test_settling_waits_for_the_extension_under_way(setting: Setting) -> None:
    async def slow_extension(asked: RecordedCall) -> Verdict:
        await asyncio.sleep(3 if asked.method == "extend" else 0)
        return Verdict.DONE

    setting.transport.script = slow_extension

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(21)
        await batch.succeed()

    setting.run(scenario)
    assert [(asked.method, asked.at) for asked in setting.transport.asked] == [("extend", 20.0), ("delete", 23.0)]


def test_settling_twice_gives_the_first_outcome_again_and_calls_nothing_more(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        both = await asyncio.gather(batch.succeed([message.receipt]), batch.fail("late", [message.receipt]))
        again = await batch.fail("later", [message.receipt])
        assert {one[message.receipt].outcome for one in (*both, again)} == {Outcome.DELETED}

    setting.run(scenario)
    assert len(setting.transport.asked) == 1


def test_cancelling_one_wait_for_a_settlement_leaves_it_to_another(setting: Setting) -> None:
    async def slowly(_: RecordedCall) -> Verdict:
        await asyncio.sleep(2)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        first = asyncio.ensure_future(batch.succeed())
        second = asyncio.ensure_future(batch.succeed())
        await asyncio.sleep(1)
        first.cancel()
        assert (await second)[message.receipt].outcome is Outcome.DELETED

    setting.run(scenario)


def test_a_lost_lease_is_settled_as_lost_without_a_call(setting: Setting) -> None:
    async def lost(_: RecordedCall) -> Verdict:
        return Verdict.LOST

    setting.transport.script = lost

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        await asyncio.sleep(21)
        assert not batch.holds(message.receipt)
        outcomes = await batch.fail("too late", [message.receipt])
        assert outcomes[message.receipt].outcome is Outcome.LOST
        assert batch.report().lost == 1

    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["extend"]


def test_backoff_counts_by_receives(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=backoff(10, jitter=0))
        batch.add(messages(1, receive_count=3), received_at=setting.clock.now())
        await batch.fail("it broke")

    setting.run(scenario)
    assert [asked.entries for asked in setting.transport.asked] == [(("m0", 40),)]


def test_a_settlement_that_ends_together_with_a_lapse_is_told_all_the_same(setting: Setting) -> None:
    setting.transport.script = never_answers

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=expire(), on_event=setting.events.append)
        await asyncio.sleep(100)
        receipt = Receipt("m0", "handle")
        batch.adopt([Lease(receipt, received_at=0.0, deadline=30.0)])
        await asyncio.sleep(0.5)
        outcomes = await batch.fail("it broke")
        assert outcomes[receipt].outcome is Outcome.EXPIRED

    setting.run(scenario)
    assert [type(event) for event in setting.events] == [Lapsed, Settled]


def test_expire_calls_nothing(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=expire())
        batch.add(messages(1), received_at=setting.clock.now())
        await batch.fail("it broke")
        assert batch.report().expired == 1
        await asyncio.sleep(100)

    setting.run(scenario)
    assert setting.transport.asked == []


class TestDeadLettering:
    def test_the_message_is_sent_with_its_attributes_and_the_reason_then_deleted(self, setting: Setting) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead"

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(1), received_at=setting.clock.now())
            await batch.fail("not JSON")
            assert batch.report().dead_lettered == 1

        setting.run(scenario)
        reason = {"DataType": "String", "StringValue": "not JSON"}
        assert setting.transport.sent == [("https://dead", "body 0", {"sqs_lease_reason": reason}, None)]
        assert [asked.method for asked in setting.transport.asked] == ["delete"]

    @pytest.mark.parametrize(
        ("reason", "sent"),
        [("two\nlines\x00", {"StringValue": "two lines", "DataType": "String"}), ("\x00\n", None), ("", None)],
        ids=["control characters", "nothing else", "none"],
    )
    def test_the_reason_is_made_fit_for_the_service(
        self, setting: Setting, reason: str, sent: dict[str, str] | None
    ) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead"

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(1), received_at=setting.clock.now())
            await batch.fail(reason)

        setting.run(scenario)
        ((_, _, attributes, _),) = setting.transport.sent
        assert attributes.get("sqs_lease_reason") == sent

    def test_content_of_adopted_leases_comes_from_the_batchs_source(self, setting: Setting) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead"
        (message,) = messages(1)

        async def source(ids: object) -> dict[str, Message]:
            assert ids == ["m0"]
            return {"m0": message}

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter(), message_source=source)
            batch.adopt([Lease(message.receipt, 0.0, 30.0)])
            await batch.fail("not JSON")

        setting.run(scenario)
        assert [body for _, body, _, _ in setting.transport.sent] == ["body 0"]

    def test_without_a_dead_letter_queue_the_message_is_visible_again_and_the_outcome_says_why(
        self, setting: Setting
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            outcome = (await batch.fail("not JSON"))[message.receipt]
            assert outcome.outcome is Outcome.FAILED
            assert "no dead-letter queue" in outcome.detail

        setting.run(scenario)
        assert setting.transport.calls("delete") == []
        assert [asked.entries for asked in setting.transport.calls("release")] == [(("m0", 0),)]

    def test_a_message_with_unknown_content_is_not_deleted(self, setting: Setting) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead"
        (message,) = messages(1)

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.adopt([Lease(message.receipt, 0.0, 30.0)])
            assert (await batch.fail("not JSON"))[message.receipt].outcome is Outcome.FAILED

        setting.run(scenario)
        assert setting.transport.sent == []
        assert [asked.entries for asked in setting.transport.asked] == [(("m0", 0),)]

    def test_each_try_at_a_fifo_dead_letter_queue_has_the_same_deduplication_id(
        self, setting: Setting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead.fifo"
        tries: list[str | None] = []

        async def answered_at_the_third_try(*_: object, deduplication_id: str | None, **others: object) -> str:
            tries.append(deduplication_id)
            if len(tries) < 3:
                raise TransientError("no answer", queue="dead.fifo", code="Timeout", text="no answer")
            return "sent"

        monkeypatch.setattr(setting.transport, "send", answered_at_the_third_try)

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(1), received_at=setting.clock.now())
            await batch.fail("not JSON")
            assert batch.report().dead_lettered == 1

        setting.run(scenario)
        assert tries == ["m0", "m0", "m0"]


def test_a_release_that_fails_within_the_transport_is_not_repeated_for_it_may_have_been_made(setting: Setting) -> None:
    async def broken(asked: RecordedCall) -> Verdict:
        raise RuntimeError("a bug of the transport")

    setting.transport.script = broken

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await batch.release_all()
        assert batch.report().expired == 1

    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["release"]


def test_fifo_messages_behind_a_failed_one_are_released_with_it(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch: Batch = keeper.open_batch(f"{QUEUE}.fifo", policy=POLICY)
        first, second, third = messages(3, group="a")
        batch.add([first, second, third], received_at=setting.clock.now())
        await batch.succeed([first.receipt])
        await batch.fail("it broke", [second.receipt])
        outcome = await batch.succeed([third.receipt])
        assert outcome[third.receipt].outcome is Outcome.RELEASED

    setting.transport.script = done
    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["delete", "release", "release"]
