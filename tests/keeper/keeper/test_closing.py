"""The keeper leaves its leases as its host asks, and makes the last calls in time."""

from __future__ import annotations

import asyncio

import pytest

from sqs_lease.core.calls import Verdict
from sqs_lease.core.policies import Never
from sqs_lease.keeper.batch import KeeperClosedError
from sqs_lease.keeper.keeper import Keeper, Leaving
from tests.keeper.held import POLICY, QUEUE, Setting, messages
from tests.keeper.scripted_transport import RecordedCall, never_answers


class TestClosing:
    @pytest.mark.parametrize(
        ("leaving", "expected"),
        [
            (Leaving.EXTEND, [("extend", 5.0, (("m0", 30), ("m1", 30)))]),
            (Leaving.RELEASE, [("release", 5.0, (("m0", 0), ("m1", 0)))]),
            (Leaving.NOTHING, []),
        ],
        ids=lambda value: value.value if isinstance(value, Leaving) else "",
    )
    def test_leases_that_are_still_held_are_treated_as_asked(
        self, setting: Setting, leaving: Leaving, expected: list[object]
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            keeper.open_batch(QUEUE, policy=POLICY).add(messages(2), received_at=setting.clock.now())
            await asyncio.sleep(5)

        setting.run(scenario, leaving)
        assert [(asked.method, asked.at, asked.entries) for asked in setting.transport.asked] == expected

    def test_calls_under_way_are_given_time_to_end_and_no_call_begins_after(self, setting: Setting) -> None:
        finished = []

        async def slowly(asked: RecordedCall) -> Verdict:
            await asyncio.sleep(4)
            finished.append(asked.method)
            return Verdict.DONE

        setting.transport.script = slowly

        async def scenario(keeper: Keeper) -> None:
            keeper.open_batch(QUEUE, policy=POLICY).add(messages(1), received_at=setting.clock.now())
            await asyncio.sleep(21)

        setting.run(scenario, Leaving.NOTHING)
        assert finished == ["extend"]
        assert setting.clock.now() == 24

    def test_an_extension_that_fails_while_the_keeper_closes_is_not_made_again(self, setting: Setting) -> None:
        async def slowly_in_vain(asked: RecordedCall) -> Verdict:
            await asyncio.sleep(4)
            return Verdict.UNAVAILABLE

        setting.transport.script = slowly_in_vain

        async def scenario(keeper: Keeper) -> None:
            keeper.open_batch(QUEUE, policy=POLICY).add(messages(1), received_at=setting.clock.now())
            await asyncio.sleep(21)
            await keeper.close(Leaving.NOTHING)
            await asyncio.sleep(10)

        setting.run(scenario)
        assert [asked.at for asked in setting.transport.asked] == [20.0]

    def test_a_service_that_does_not_answer_does_not_hold_up_the_end_for_long(self, setting: Setting) -> None:
        setting.transport.script = never_answers

        async def scenario(keeper: Keeper) -> None:
            keeper.open_batch(QUEUE, policy=POLICY).add(messages(50), received_at=setting.clock.now())

        setting.run(scenario, Leaving.RELEASE)
        assert setting.clock.now() <= 20

    def test_a_wait_for_a_settlement_is_told_that_it_will_not_come(self, setting: Setting) -> None:
        setting.transport.script = never_answers
        told: list[BaseException | object] = []

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            batch.add(messages(1), received_at=setting.clock.now())

            async def wait() -> None:
                told.extend(await asyncio.gather(batch.succeed(), return_exceptions=True))

            waiting = asyncio.ensure_future(wait())
            await asyncio.sleep(1)
            await keeper.close(Leaving.NOTHING)
            await waiting

        setting.run(scenario)
        assert [type(one) for one in told] == [KeeperClosedError]

    def test_a_closed_keeper_holds_and_settles_nothing_more(self, setting: Setting) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.open_batch(QUEUE, policy=POLICY)
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            await keeper.close()
            with pytest.raises(KeeperClosedError, match=QUEUE):
                await batch.succeed([message.receipt])
            with pytest.raises(KeeperClosedError, match=QUEUE):
                keeper.open_batch(QUEUE, policy=POLICY)

        setting.run(scenario)


def test_a_forgotten_batch_is_not_called_for_and_cannot_be_settled(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        keeper.drop(batch)
        await asyncio.sleep(100)
        with pytest.raises(KeeperClosedError, match="no longer held here"):
            await batch.succeed([message.receipt])

    setting.run(scenario, Leaving.RELEASE)
    assert setting.transport.asked == []


def test_extend_now_waits_for_the_answer_and_skips_what_cannot_be_extended(setting: Setting) -> None:
    async def slowly(_: RecordedCall) -> Verdict:
        await asyncio.sleep(1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch, never = keeper.open_batch(QUEUE, policy=POLICY), keeper.open_batch(QUEUE, policy=Never(visibility=30))
        first, second = messages(2)
        batch.add([first], received_at=setting.clock.now())
        never.add([second], received_at=setting.clock.now())
        await asyncio.sleep(5)
        await batch.extend_now()
        await never.extend_now()
        assert setting.clock.now() == 6
        assert batch.leases()[0].deadline == 35
        assert never.leases()[0].deadline == 30

    setting.run(scenario)


def test_the_last_calls_are_made_even_after_a_loop_that_ends_cancelled_all_tasks(setting: Setting) -> None:
    async def slowly(_: RecordedCall) -> Verdict:
        await asyncio.sleep(1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.open_batch(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(20.5)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(others) == 1, "an extension under way"
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        await batch.extend_now()
        assert batch.leases()[0].deadline == 50.5
        await batch.succeed()

    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["extend", "extend", "delete"]
