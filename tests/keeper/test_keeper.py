"""The keeper holds leases for as long as the work takes, whatever single calls do, and ends them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from sqs_lease.core.events import Ending, Lapsed, LeaseEvent, Lost, Outcome, Refused, Settled
from sqs_lease.core.leases import Lease
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.policies import Fixed, Growing, Never
from sqs_lease.core.settlements import backoff, dead_letter, expire
from sqs_lease.core.verdicts import Verdict
from sqs_lease.keeper import HeldBatch, Keeper, KeeperClosedError, Leaving
from sqs_lease.testing import VirtualClock, run_virtual
from tests.keeper.scripted_transport import Asked, ScriptedTransport, done, never_answers

QUEUE = "https://queue"
OTHER = "https://other"
POLICY = Fixed(visibility=30, every=20)


def messages(count: int, *, receive_count: int = 1, group: str | None = None) -> list[Message]:
    attributes = {"ApproximateReceiveCount": str(receive_count)} | ({"MessageGroupId": group} if group else {})
    return [Message(Receipt(f"m{number}", f"handle-{number}"), f"body {number}", attributes) for number in range(count)]


class Setting:
    """A keeper on a scripted transport and a virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.transport = ScriptedTransport(self.clock)
        self.events: list[LeaseEvent] = []

    def run(self, scenario: Callable[[Keeper], Awaitable[None]], leaving: Leaving = Leaving.NOTHING) -> None:
        async def within() -> None:
            keeper = Keeper(self.transport, clock=self.clock, random=Random(0))
            await scenario(keeper)
            await keeper.close(leaving)

        run_virtual(within, clock=self.clock)


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_leases_are_extended_while_the_work_runs_and_deleted_when_it_succeeded(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(25), received_at=setting.clock.now())
        await asyncio.sleep(65)
        assert len(batch.leases()) == 25
        outcomes = await batch.succeed()
        assert {settled.outcome for settled in outcomes.values()} == {Outcome.DELETED}
        assert batch.leases() == []
        report = batch.report()
        assert (report.received, report.held, report.deleted, report.late) == (25, 0, 25, 0)
        assert (report.extensions, report.extension_calls) == (75, 9)

    setting.run(scenario)
    assert [asked.at for asked in setting.transport.calls("extend")] == [20.0] * 3 + [40.0] * 3 + [60.0] * 3
    assert [len(asked.entries) for asked in setting.transport.calls("delete")] == [10, 10, 5]


def test_failed_work_releases_at_once_and_succeeded_messages_of_the_same_batch_are_deleted(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
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


def test_many_batches_and_queues_are_held_at_once_with_calls_shared_within_a_queue(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        one, two, other = (keeper.hold(url, policy=POLICY) for url in (QUEUE, QUEUE, OTHER))
        first, *rest = messages(8)
        one.add([first], received_at=setting.clock.now())
        two.add(rest[:4], received_at=setting.clock.now())
        other.add(rest[4:], received_at=setting.clock.now())
        await asyncio.sleep(25)
        assert [batch.report().extensions for batch in (one, two, other)] == [1, 4, 3]
        assert [batch.report().extension_calls for batch in (one, two, other)] == [1, 1, 1]
        await one.succeed()
        assert len(two.leases()) == 4

    setting.run(scenario)
    assert {(asked.queue_url, len(asked.entries)) for asked in setting.transport.calls("extend")} == {
        (QUEUE, 5),
        (OTHER, 3),
    }


def test_a_call_that_hangs_delays_nobody_else_and_is_tried_again_within_the_lease(setting: Setting) -> None:
    hung = 0

    async def script(asked: Asked) -> Verdict:
        nonlocal hung
        if "m0" in dict(asked.entries) and not hung:
            hung += 1
            return await never_answers(asked)
        return Verdict.DONE

    setting.transport.script = script

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(30), received_at=setting.clock.now())
        await asyncio.sleep(29.9)
        assert {lease.deadline for lease in batch.leases()[10:]} == {50.0}, "the other calls went through at once"
        assert all(lease.deadline > 44 for lease in batch.leases()), "the hung one was repeated before the deadline"
        assert batch.report().late == 0

    setting.run(scenario)
    assert hung == 1


def test_a_transport_that_raises_is_tried_again_and_the_other_queue_goes_on(setting: Setting) -> None:
    async def script(asked: Asked) -> Verdict:
        if asked.queue_url == QUEUE and asked.at < 25:
            raise RuntimeError("a bug of the transport")
        return Verdict.DONE

    setting.transport.script = script

    async def scenario(keeper: Keeper) -> None:
        batch, other = keeper.hold(QUEUE, policy=POLICY), keeper.hold(OTHER, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        other.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(29)
        assert batch.leases()[0].deadline > 50
        assert other.leases()[0].deadline == 50

    setting.run(scenario)


def test_calls_overlap_but_only_so_many_of_a_queue_are_under_way_at_once(setting: Setting) -> None:
    async def slowly(_: Asked) -> Verdict:
        await asyncio.sleep(0.1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(1_000), received_at=setting.clock.now())
        await asyncio.sleep(22)
        assert batch.report().extensions == 1_000
        assert batch.report().late == 0

    setting.run(scenario)
    assert setting.transport.most_under_way == 32


def test_settling_waits_for_the_extension_under_way(setting: Setting) -> None:
    async def slow_extension(asked: Asked) -> Verdict:
        await asyncio.sleep(3 if asked.method == "extend" else 0)
        return Verdict.DONE

    setting.transport.script = slow_extension

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(21)
        await batch.succeed()

    setting.run(scenario)
    assert [(asked.method, asked.at) for asked in setting.transport.asked] == [("extend", 20.0), ("delete", 23.0)]


def test_settling_twice_gives_the_first_outcome_again_and_calls_nothing_more(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        both = await asyncio.gather(batch.succeed([message.receipt]), batch.fail("late", [message.receipt]))
        again = await batch.fail("later", [message.receipt])
        assert {one[message.receipt].outcome for one in (*both, again)} == {Outcome.DELETED}

    setting.run(scenario)
    assert len(setting.transport.asked) == 1


def test_cancelling_one_who_waits_for_a_settlement_leaves_it_to_another(setting: Setting) -> None:
    async def slowly(_: Asked) -> Verdict:
        await asyncio.sleep(2)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        first = asyncio.ensure_future(batch.succeed())
        second = asyncio.ensure_future(batch.succeed())
        await asyncio.sleep(1)
        first.cancel()
        assert (await second)[message.receipt].outcome is Outcome.DELETED

    setting.run(scenario)


def test_listeners_hear_of_lost_lapsed_refused_and_ending_leases_and_may_fail(setting: Setting) -> None:
    verdicts = {"m0": Verdict.LOST, "m1": Verdict.CAPPED, "m2": Verdict.REFUSED}

    async def script(asked: Asked) -> Verdict:
        ((message_id, _),) = asked.entries
        return verdicts[message_id]

    setting.transport.script = script

    def listener(event: LeaseEvent) -> None:
        setting.events.append(event)
        raise ValueError("a listener's own error")

    async def scenario(keeper: Keeper) -> None:
        # A queue each, so that their entries do not share a call.
        for number, message in enumerate(messages(3)):
            batch = keeper.hold(f"{QUEUE}-{number}", policy=POLICY, on_event=listener)
            batch.add([message], received_at=setting.clock.now())
        await asyncio.sleep(31)

    setting.run(scenario)
    kinds = {message_id: [] for message_id in verdicts}  # type: dict[str, list[type]]
    for event in setting.events:
        kinds[event.receipt.message_id].append(type(event))
    assert kinds == {"m0": [Lost], "m1": [Ending, Lapsed], "m2": [Refused, Lapsed]}


def test_a_lost_lease_is_settled_as_lost_without_a_call(setting: Setting) -> None:
    async def lost(_: Asked) -> Verdict:
        return Verdict.LOST

    setting.transport.script = lost

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        await asyncio.sleep(21)
        assert not batch.holds(message.receipt)
        outcomes = await batch.fail("too late", [message.receipt])
        assert outcomes[message.receipt].outcome is Outcome.LOST
        assert batch.report().lost == 1

    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["extend"]


def test_a_message_received_again_within_the_batch_is_held_by_its_new_receipt_alone(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        (message,) = messages(1)
        again = Message(Receipt("m0", "newer handle"), message.body)
        batch.add([message], received_at=setting.clock.now())
        batch.add([again], received_at=setting.clock.now())
        assert batch.messages() == [again]
        assert batch.report().received == 1
        assert not batch.holds(message.receipt)
        with pytest.raises(KeyError, match="not in this batch"):
            await batch.fail("stale", [message.receipt])
        await batch.succeed()

    setting.run(scenario)


def test_a_repeated_receive_counts_its_visibility_from_the_last_try_and_its_12_hours_from_the_first(
    setting: Setting,
) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=0.0, sent_at=15.0)
        (lease,) = batch.leases()
        assert (lease.received_at, lease.deadline) == (0.0, 45.0)

    setting.run(scenario)


def test_an_adopted_lease_is_extended_at_once_and_counts_from_its_own_receive(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        await asyncio.sleep(1_000)
        batch = keeper.hold(QUEUE, policy=Growing(visibility=30))
        batch.adopt([Lease(Receipt("m0", "handle"), received_at=400.0, deadline=990.0)])
        await asyncio.sleep(0.1)
        assert batch.leases()[0].deadline == 1_600

    setting.run(scenario)
    assert [(asked.at, asked.entries) for asked in setting.transport.asked] == [(1_000.0, (("m0", 600),))]


def test_backoff_counts_by_receives(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY, on_failure=backoff(10, jitter=0))
        batch.add(messages(1, receive_count=3), received_at=setting.clock.now())
        await batch.fail("it broke")

    setting.run(scenario)
    assert [asked.entries for asked in setting.transport.asked] == [(("m0", 40),)]


def test_a_settlement_that_ends_together_with_a_lapse_is_told_all_the_same(setting: Setting) -> None:
    setting.transport.script = never_answers

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY, on_failure=expire(), on_event=setting.events.append)
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
        batch = keeper.hold(QUEUE, policy=POLICY, on_failure=expire())
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
            batch = keeper.hold(QUEUE, policy=POLICY, on_failure=dead_letter())
            batch.add(messages(1), received_at=setting.clock.now())
            await batch.fail("not JSON")
            assert batch.report().dead_lettered == 1

        setting.run(scenario)
        reason = {"DataType": "String", "StringValue": "not JSON"}
        assert setting.transport.sent == [("https://dead", "body 0", {"sqs_lease_reason": reason}, None)]
        assert [asked.method for asked in setting.transport.asked] == ["delete"]

    def test_content_of_adopted_leases_comes_from_the_batchs_source(self, setting: Setting) -> None:
        setting.transport.dead_letter_arn = "arn:aws:sqs:eu-west-1:1:dead"
        (message,) = messages(1)

        async def source(ids: object) -> dict[str, Message]:
            assert ids == ["m0"]
            return {"m0": message}

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.hold(QUEUE, policy=POLICY, on_failure=dead_letter(), message_source=source)
            batch.adopt([Lease(message.receipt, 0.0, 30.0)])
            await batch.fail("not JSON")

        setting.run(scenario)
        assert [body for _, body, _, _ in setting.transport.sent] == ["body 0"]

    def test_without_a_dead_letter_queue_the_message_is_not_deleted_and_the_outcome_says_why(
        self, setting: Setting
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            batch = keeper.hold(QUEUE, policy=POLICY, on_failure=dead_letter())
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            outcome = (await batch.fail("not JSON"))[message.receipt]
            assert outcome.outcome is Outcome.FAILED
            assert "no dead-letter queue" in outcome.detail

        setting.run(scenario)
        assert setting.transport.calls("delete") == []


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
    def test_what_is_still_held_is_treated_as_asked(
        self, setting: Setting, leaving: Leaving, expected: list[object]
    ) -> None:
        async def scenario(keeper: Keeper) -> None:
            keeper.hold(QUEUE, policy=POLICY).add(messages(2), received_at=setting.clock.now())
            await asyncio.sleep(5)

        setting.run(scenario, leaving)
        assert [(asked.method, asked.at, asked.entries) for asked in setting.transport.asked] == expected

    def test_calls_under_way_are_given_time_to_end_and_none_begins_after(self, setting: Setting) -> None:
        finished = []

        async def slowly(asked: Asked) -> Verdict:
            await asyncio.sleep(4)
            finished.append(asked.method)
            return Verdict.DONE

        setting.transport.script = slowly

        async def scenario(keeper: Keeper) -> None:
            keeper.hold(QUEUE, policy=POLICY).add(messages(1), received_at=setting.clock.now())
            await asyncio.sleep(21)

        setting.run(scenario, Leaving.NOTHING)
        assert finished == ["extend"]
        assert setting.clock.now() == 24

    def test_a_service_that_does_not_answer_does_not_hold_up_the_end_for_long(self, setting: Setting) -> None:
        setting.transport.script = never_answers

        async def scenario(keeper: Keeper) -> None:
            keeper.hold(QUEUE, policy=POLICY).add(messages(50), received_at=setting.clock.now())

        setting.run(scenario, Leaving.RELEASE)
        assert setting.clock.now() <= 20

    def test_who_waits_for_a_settlement_is_told_that_it_will_not_come(self, setting: Setting) -> None:
        setting.transport.script = never_answers
        told: list[BaseException | object] = []

        async def scenario(keeper: Keeper) -> None:
            batch = keeper.hold(QUEUE, policy=POLICY)
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
            batch = keeper.hold(QUEUE, policy=POLICY)
            (message,) = messages(1)
            batch.add([message], received_at=setting.clock.now())
            await keeper.close()
            with pytest.raises(KeeperClosedError, match=QUEUE):
                await batch.succeed([message.receipt])
            with pytest.raises(KeeperClosedError, match=QUEUE):
                keeper.hold(QUEUE, policy=POLICY)

        setting.run(scenario)


def test_a_forgotten_batch_is_not_called_for_and_cannot_be_settled(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        (message,) = messages(1)
        batch.add([message], received_at=setting.clock.now())
        keeper.drop(batch)
        await asyncio.sleep(100)
        with pytest.raises(KeeperClosedError, match="not held here any more"):
            await batch.succeed([message.receipt])

    setting.run(scenario, Leaving.RELEASE)
    assert setting.transport.asked == []


def test_extend_now_waits_for_the_answer_and_skips_what_cannot_be_extended(setting: Setting) -> None:
    async def slowly(_: Asked) -> Verdict:
        await asyncio.sleep(1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch, never = keeper.hold(QUEUE, policy=POLICY), keeper.hold(QUEUE, policy=Never(visibility=30))
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
    async def slowly(_: Asked) -> Verdict:
        await asyncio.sleep(1)
        return Verdict.DONE

    setting.transport.script = slowly

    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(20.5)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert len(others) == 2, "the driver's loop, and an extension under way"
        for task in others:
            task.cancel()
        await asyncio.wait(others)
        await batch.extend_now()
        assert batch.leases()[0].deadline == 50.5
        await batch.succeed()

    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["extend", "extend", "delete"]


def test_the_last_calls_are_made_even_when_the_drivers_loop_was_cancelled_and_has_not_ended_yet(
    setting: Setting,
) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch = keeper.hold(QUEUE, policy=POLICY)
        batch.add(messages(1), received_at=setting.clock.now())
        await asyncio.sleep(10)
        # An event loop that ends cancels all tasks at once; one with last calls to make may run before the driver's.
        (loop_task,) = asyncio.all_tasks() - {asyncio.current_task()}
        loop_task.cancel()
        await batch.extend_now()
        assert batch.leases()[0].deadline == 40

    setting.run(scenario)
    assert [asked.at for asked in setting.transport.asked] == [10]


def test_a_policy_without_a_known_visibility_is_refused_before_anything_is_held(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        with pytest.raises(ValueError, match="for_queue"):
            keeper.hold(QUEUE, policy=Growing())

    setting.run(scenario)


def test_fifo_messages_behind_a_failed_one_are_released_with_it(setting: Setting) -> None:
    async def scenario(keeper: Keeper) -> None:
        batch: HeldBatch = keeper.hold(f"{QUEUE}.fifo", policy=POLICY)
        first, second, third = messages(3, group="a")
        batch.add([first, second, third], received_at=setting.clock.now())
        await batch.succeed([first.receipt])
        await batch.fail("it broke", [second.receipt])
        outcome = await batch.succeed([third.receipt])
        assert outcome[third.receipt].outcome is Outcome.RELEASED

    setting.transport.script = done
    setting.run(scenario)
    assert [asked.method for asked in setting.transport.asked] == ["delete", "release", "release"]
