"""A batch's answers about its leases, and the holder of a lease that several batches know."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sqs_lease.core.calls import Verdict
from sqs_lease.core.events import Ending, Outcome
from sqs_lease.core.failure_rules import Delete, dead_letter
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Fixed, Growing, Never
from sqs_lease.keeper.batch import KeeperClosedError
from sqs_lease.keeper.keeper import Keeper, Leaving
from tests.keeper.held import POLICY, QUEUE, Setting, messages
from tests.keeper.scripted_transport import RecordedCall, never_answers

FIFO = f"{QUEUE}.fifo"


class TestGroupOrder:
    def test_success_behind_work_that_goes_on_returns_and_its_delete_waits(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(FIFO, policy=POLICY)
            first, second = messages(2, group="a")
            batch.add([first, second], received_at=setting.clock.now())
            async with asyncio.timeout(1):
                assert await batch.succeed([second.receipt]) == {}
            assert batch.holds(second.receipt)
            await asyncio.sleep(60)
            await batch.fail("it broke", [first.receipt])
            await asyncio.sleep(1)
            assert {one.outcome for one in batch.outcomes().values()} == {Outcome.RELEASED}

        setting.run(scenario)
        assert setting.transport.calls("delete") == []

    @pytest.mark.parametrize("failed_first", [True, False])
    def test_failure_and_success_at_the_same_time_keep_the_order(self, setting: Setting, *, failed_first: bool) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(FIFO, policy=POLICY)
            first, second = messages(2, group="a")
            batch.add([first, second], received_at=setting.clock.now())
            both = [batch.fail("it broke", [first.receipt]), batch.succeed([second.receipt])]
            await asyncio.gather(*(both if failed_first else both[::-1]))
            await asyncio.sleep(1)

        setting.run(scenario)
        assert setting.transport.calls("delete") == []

    @pytest.mark.parametrize("again", [(0, 1, 2), (0,), (1,), (2,)])
    def test_messages_received_again_keep_their_places_and_return_nothing(
        self, setting: Setting, again: tuple[int, ...]
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(FIFO, policy=Never(visibility=30))
            received = messages(3, group="a")
            batch.add(received, received_at=setting.clock.now())
            await asyncio.sleep(31)
            for index in again:
                newer = Receipt(received[index].receipt.message_id, f"newer handle {index}")
                attributes = {**received[index].attributes, "ApproximateReceiveCount": "2"}
                received[index] = replace(received[index], receipt=newer, attributes=attributes)
                batch.add([received[index]], received_at=setting.clock.now())
            await batch.succeed([received[2].receipt])
            await asyncio.sleep(1)
            assert setting.transport.calls("delete") == []
            await batch.succeed([one.receipt for one in received[:2]])
            await asyncio.sleep(1)
            assert batch.outcomes().keys() >= {one.receipt for one in received}
            ended = {batch.outcomes()[one.receipt].outcome for one in received}
            assert ended <= {Outcome.DELETED, Outcome.UNCERTAIN}

        setting.run(scenario)
        assert [asked.entries[0][0] for asked in setting.transport.calls("delete")] == ["m0", "m1", "m2"]

    def test_one_settlement_keeps_the_order_when_a_forward_fails(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(FIFO, policy=POLICY, on_failure=dead_letter())
            first, second = messages(2, group="a")
            batch.add([first, second], received_at=setting.clock.now())
            outcomes = await batch.settle(batch.failing("it broke", [first.receipt]) | {second.receipt: Delete()})
            assert [one.outcome for one in outcomes.values()] == [Outcome.FAILED, Outcome.RELEASED]

        setting.run(scenario)
        assert setting.transport.calls("delete") == []


class TestCertainty:
    def test_a_lease_that_lapsed_is_not_still_held_even_when_it_was_extended_since(self, setting: Setting) -> None:
        async def late(asked: RecordedCall) -> Verdict:
            return Verdict.TRANSIENT if asked.method == "extend" and asked.at < 35 else Verdict.DONE

        setting.transport.script = late

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            assert batch.still_held(message.receipt)
            await asyncio.sleep(31)
            assert not batch.still_held(message.receipt)
            await asyncio.sleep(20)
            assert batch.holds(message.receipt), "it is extended all the same"
            assert not batch.still_held(message.receipt), "but another consumer may have it, too"
            await batch.succeed()
            assert (batch.report().deleted, batch.report().uncertain) == (0, 1)

        setting.run(scenario)

    def test_a_lease_past_its_deadline_is_not_still_held_before_any_answer_says_so(self, setting: Setting) -> None:
        setting.transport.script = never_answers

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            await asyncio.sleep(29.5)
            assert batch.still_held(message.receipt)
            await asyncio.sleep(1)
            assert setting.transport.under_way == 1
            assert not batch.still_held(message.receipt)

        setting.run(scenario)

    def test_the_end_that_a_listener_is_told_is_a_time_of_the_calendar(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            policy = Growing(visibility=30, max_lease=100)
            batch = keeper.open_batch(QUEUE, policy=policy, on_event=setting.events.append)
            batch.add(messages(1), received_at=setting.clock.now())
            received_at = setting.clock.wall()
            await asyncio.sleep(90)
            (event,) = setting.events
            assert isinstance(event, Ending)
            assert event.ends_at == pytest.approx(received_at + 100, abs=1)

        setting.run(scenario)

    @pytest.mark.parametrize("max_lease", [10, 30])
    def test_the_end_is_announced_at_once_where_the_longest_lease_is_no_longer_than_the_visibility_timeout(
        self, setting: Setting, max_lease: int
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            policy = Growing(visibility=30, max_lease=max_lease)
            batch = keeper.open_batch(QUEUE, policy=policy, on_event=setting.events.append)
            batch.add(messages(1), received_at=setting.clock.now())
            never = keeper.open_batch(QUEUE, policy=Never(visibility=30), on_event=setting.events.append)
            never.add([Message(Receipt("never", "handle"), "body")], received_at=setting.clock.now())
            assert [type(event) for event in setting.events] == [Ending]
            assert setting.events[0].receipt.message_id == "m0"

        setting.run(scenario)

    def test_a_fraction_of_a_visibility_timeout_counts_as_a_whole_second(self, setting: Setting) -> None:
        assert Fixed(visibility=1.2, every=0.5).visibility_seconds == 2

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=Fixed(visibility=1.2, every=0.5))
            batch.add(messages(1), received_at=setting.clock.now())
            assert batch.leases()[0].deadline == 2
            await asyncio.sleep(0.6)

        setting.run(scenario)
        assert [asked.entries for asked in setting.transport.asked] == [(("m0", 2),)]


class TestWhoHolds:
    def test_a_lease_that_another_batch_adopted_before_it_was_dropped_is_the_other_batchs(
        self, setting: Setting
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            old, new = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            old.add(messages(3), received_at=setting.clock.now())
            new.adopt(old.leases())
            assert (old.report().held, new.report().held) == (0, 3)
            keeper.drop(old)
            await asyncio.sleep(100)
            assert new.report().held == 3
            await new.succeed()
            assert new.report().deleted == 3

        setting.run(scenario)

    def test_a_batch_that_gave_up_one_lease_of_two_and_is_dropped_leaves_that_one_alone(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            old, new = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            old.add(messages(2), received_at=setting.clock.now())
            new.adopt(old.leases()[:1])
            keeper.drop(old)
            await asyncio.sleep(100)
            assert [lease.receipt.message_id for lease in new.leases()] == ["m0"]

        setting.run(scenario)
        assert {asked.entries for asked in setting.transport.asked} == {(("m0", 30),)}

    def test_a_batch_begins_no_settlement_of_a_lease_that_it_gave_up(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            old, new = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            (message,) = messages(1)
            old.add([message], received_at=setting.clock.now())
            new.adopt(old.leases())
            old.begin({message.receipt: Delete()})
            await asyncio.sleep(1)
            assert new.still_held(message.receipt)

        setting.run(scenario)
        assert setting.transport.asked == []

    def test_a_batch_that_is_dropped_while_the_keeper_closes_does_not_keep_it_from_closing(
        self, setting: Setting
    ) -> None:
        async def slow(_: RecordedCall) -> Verdict:
            await asyncio.sleep(2)
            return Verdict.DONE

        setting.transport.script = slow

        async def scenario(keeper: Keeper) -> None:
            one, other = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            for name, batch in (("one", one), ("other", other)):
                batch.add([Message(Receipt(name, "handle"), "body")], received_at=setting.clock.now())
            closing = asyncio.create_task(keeper.close(Leaving.RELEASE))
            await asyncio.sleep(1)
            keeper.drop(one)
            await closing
            assert other.report().released == 1

        setting.run(scenario)
        assert [task for task in setting.left if task.startswith("sqs-lease")] == []

    def test_a_batch_that_gave_a_lease_up_neither_settles_nor_counts_it(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            old, new = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            (message,) = messages(1)
            old.add([message], received_at=setting.clock.now())
            new.adopt(old.leases())
            with pytest.raises(KeeperClosedError):
                await old.succeed([message.receipt])
            assert [holding.leases for holding in keeper.holdings()] == [1]
            assert setting.transport.calls("delete") == []

        setting.run(scenario)

    def test_a_wait_for_a_settlement_is_told_that_another_batch_took_the_lease(self, setting: Setting) -> None:
        async def slow(_: RecordedCall) -> Verdict:
            await asyncio.sleep(2)
            return Verdict.DONE

        setting.transport.script = slow

        async def scenario(keeper: Keeper) -> None:
            old, new = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=POLICY)
            old.add(messages(1), received_at=setting.clock.now())
            leases = old.leases()
            settling = asyncio.create_task(old.succeed())
            await asyncio.sleep(1)
            new.adopt(leases)
            with pytest.raises(KeeperClosedError):
                await settling

        setting.run(scenario)

    def test_a_message_that_ended_is_not_taken_in_again(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            batch.add(messages(1), received_at=setting.clock.now())
            leases = batch.leases()
            await batch.release_all()
            batch.adopt(leases)
            await asyncio.sleep(60)
            assert (batch.report().released, batch.report().held) == (1, 0)

        setting.run(scenario)
        assert setting.transport.calls("extend") == []

    def test_a_call_that_was_cancelled_before_it_began_is_made_by_the_last_calls(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            batch.add(messages(3), received_at=setting.clock.now())
            releasing = asyncio.create_task(batch.release_all())
            for _ in range(3):
                await asyncio.sleep(0)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
            await keeper.close(Leaving.RELEASE)
            assert batch.report().released == 3

        setting.run(scenario)

    def test_an_older_reception_that_comes_late_does_not_take_the_place_of_the_newer_one(
        self, setting: Setting
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            newer, older = (
                Message(Receipt("m", f"handle {count}"), "body", {"ApproximateReceiveCount": str(count)})
                for count in (2, 1)
            )
            batch.add([newer], received_at=setting.clock.now())
            batch.add([older], received_at=setting.clock.now())
            assert [lease.receipt for lease in batch.leases()] == [newer.receipt]
            assert batch.report().received == 1
            await batch.succeed()
            assert batch.report().deleted == 1

        setting.run(scenario)

    def test_a_keeper_stays_in_its_event_loop(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            keeper.open_batch(QUEUE, policy=POLICY)

            async def elsewhere() -> None:
                with pytest.raises(RuntimeError, match="another event loop"):
                    keeper.open_batch(QUEUE, policy=POLICY)

            await asyncio.to_thread(asyncio.run, elsewhere())

        setting.run(scenario)

    def test_nothing_can_be_put_into_a_batch_that_is_not_extended(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            keeper.drop(batch)
            with pytest.raises(KeeperClosedError):
                batch.add(messages(1), received_at=setting.clock.now())

        setting.run(scenario)


class TestDeadLettering:
    @pytest.mark.parametrize(("queue", "group"), [("dead", "tenant"), ("dead.fifo", "tenant")])
    def test_a_forwarded_message_keeps_its_group(self, setting: Setting, queue: str, group: str) -> None:
        setting.transport.dead_letter_arn = f"arn:aws:sqs:eu-west-1:000000000000:{queue}"

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(1, group=group), received_at=setting.clock.now())
            await batch.fail("it broke")

        setting.run(scenario)
        assert [sent[3] for sent in setting.transport.sent] == [group]

    def test_a_body_near_the_services_limit_is_forwarded_with_as_much_of_the_reason_as_fits(
        self, setting: Setting
    ) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:000000000000:dead"
        bodies = ["x" * 1_048_576, "x" * (1_048_576 - 30)]

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            whole = [Message(Receipt(f"m{number}", "handle"), body) for number, body in enumerate(bodies)]
            batch.add(whole, received_at=setting.clock.now())
            await batch.fail("a long reason")

        setting.run(scenario)
        attributes = [sent[2] for sent in setting.transport.sent]
        assert attributes[0] == {}
        assert attributes[1]["sqs_lease_reason"]["StringValue"] == "a long r"

    def test_a_message_that_cannot_be_dead_lettered_ends_at_once(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(10), received_at=setting.clock.now())
            began = setting.clock.now()
            assert {one.outcome for one in (await batch.fail("it broke")).values()} == {Outcome.FAILED}
            assert setting.clock.now() - began < 1

        setting.run(scenario)
