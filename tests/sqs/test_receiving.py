"""How a receiver polls: how many polls, how long, what is handed over and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random

import pytest
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    OverLimitError,
    SqsError,
    ThrottledError,
    TransientError,
)
from sqs_lease.sqs.receiving import MAX_POLLS, Collected, Receiver, Reception
from sqs_lease.testing import VirtualClock, run_virtual

from tests.sqs.scripted_polls import Reply, ScriptedPolls, message, messages

URL = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
FIFO = f"{URL}.fifo"

TRANSIENT = TransientError("no answer", queue=URL)
THROTTLED = ThrottledError("slower", queue=URL)
OVER_LIMIT = OverLimitError("too many in flight", queue=URL)
DENIED = AccessDeniedError("denied", queue=URL)


class Collecting:
    """A receiver over scripted polls, and what it handed over: (when, reception)."""

    def __init__(self, *script: Reply, url: str = URL, visibility_seconds: int = 30) -> None:
        self.clock = VirtualClock(start=1000.0)
        self.polls = ScriptedPolls(self.clock, list(script))
        self.receiver = Receiver(
            self.polls, url, visibility_seconds=visibility_seconds, clock=self.clock, random=Random(1)
        )
        self.handed: list[tuple[float, Reception]] = []
        self.seconds = 0.0

    def hold(self, reception: Reception) -> None:
        self.handed.append((self.clock.now() - 1000.0, reception))

    @property
    def handed_ids(self) -> list[str]:
        return [held.message_id for _, reception in self.handed for held in reception.messages]

    async def collecting(self, max_messages: int, *, wait: float, linger: float = 0.0) -> Collected:
        try:
            return await self.receiver.collect(max_messages, wait=wait, linger=linger, on_received=self.hold)
        finally:
            self.seconds = self.clock.now() - 1000.0

    def collect(self, max_messages: int, *, wait: float, linger: float = 0.0) -> Collected:
        return self.run(lambda: self.collecting(max_messages, wait=wait, linger=linger))

    def run(self, main: Callable[[], Awaitable[Collected]]) -> Collected:
        async def scenario() -> Collected:
            return await main()

        return run_virtual(scenario, clock=self.clock)

    def waits(self) -> list[int]:
        return [poll.wait_seconds for poll in self.polls.polls]

    def sent_at(self) -> list[float]:
        return [poll.sent_at - 1000.0 for poll in self.polls.polls if poll.sent_at is not None]


class TestWaiting:
    @pytest.mark.parametrize(
        ("visibility_seconds", "waits"),
        [(30, [10, 10, 10, 10, 5]), (600, [20, 20, 5]), (60, [20, 20, 5]), (45, [15, 15, 15]), (2, [1] * 45)],
    )
    def test_one_poll_after_the_other_waits_and_none_for_longer_than_a_third_of_the_visibility_timeout(
        self, visibility_seconds: int, waits: list[int]
    ) -> None:
        case = Collecting(visibility_seconds=visibility_seconds)
        assert case.collect(500, wait=45) == Collected(())
        assert case.waits() == waits
        assert case.polls.most_in_flight == 1
        assert case.seconds == 45
        assert {poll.visibility_seconds for poll in case.polls.polls} == {visibility_seconds}

    def test_without_waiting_it_looks_once(self) -> None:
        case = Collecting()
        assert case.collect(10, wait=0) == Collected(())
        assert case.waits() == [0]

    def test_a_wait_of_part_of_a_second_is_rounded_up(self) -> None:
        case = Collecting()
        assert case.collect(10, wait=2.5) == Collected(())
        assert case.waits() == [3]

    def test_a_message_that_comes_late_in_the_wait_is_received(self) -> None:
        case = Collecting(Reply(), Reply(messages(range(1)), after_seconds=7))
        assert case.collect(10, wait=30).messages == messages(range(1))
        assert case.seconds == 17


class TestLingering:
    def test_without_linger_the_first_answer_is_all(self) -> None:
        case = Collecting(Reply(messages(range(3)), after_seconds=4), Reply(messages(range(3, 6))))
        assert case.collect(10, wait=30).messages == messages(range(3))
        assert len(case.polls.polls) == 1

    def test_it_is_counted_from_the_first_message_and_not_cut_by_the_wait(self) -> None:
        case = Collecting(Reply(messages(range(1)), after_seconds=9), Reply(messages(range(1, 2)), after_seconds=8))
        assert case.collect(10, wait=10, linger=20).messages == messages(range(2))
        assert case.seconds == 29

    def test_polls_are_cut_to_what_is_left_of_it(self) -> None:
        case = Collecting(Reply(messages(range(1))), Reply(), Reply())
        case.collect(3, wait=30, linger=13)
        assert case.waits() == [10, 10, 3]
        assert case.seconds == 13

    def test_a_full_batch_ends_it(self) -> None:
        case = Collecting(Reply(messages(range(4)), 1), Reply(messages(range(4, 10)), 1))
        assert case.collect(10, wait=30, linger=3600).messages == messages(range(10))
        assert case.seconds == 2


class TestConcurrency:
    def test_it_doubles_with_each_answer_that_brings_messages_up_to_ten_polls(self) -> None:
        script = [Reply(messages(range(at, at + 10)), after_seconds=1) for at in range(0, 1000, 10)]
        case = Collecting(*script)
        assert len(case.collect(1000, wait=30, linger=60).messages) == 1000
        starts = case.sent_at()
        assert [starts.count(second) for second in range(6)] == [1, 2, 8, 10, 10, 10]
        assert case.polls.most_in_flight == MAX_POLLS

    def test_polls_in_flight_never_ask_for_more_than_is_missing(self) -> None:
        script = [Reply(messages(range(at, at + 3)), after_seconds=1 + at % 2) for at in range(0, 36, 3)]
        case = Collecting(*script)
        assert len(case.collect(36, wait=30, linger=600).messages) == 36
        for poll in case.polls.polls:
            answered = [other for other in case.polls.polls if (other.answered_at or 0) <= poll.asked_at]
            in_flight = [
                other for other in case.polls.polls if other.asked_at <= poll.asked_at and other not in answered
            ]
            assert sum(other.max_messages for other in in_flight) <= 36 - 3 * len(answered)

    def test_it_falls_back_to_one_poll_when_an_answer_is_empty(self) -> None:
        full = [Reply(messages(range(at, at + 10))) for at in range(0, 30, 10)]
        case = Collecting(*full)
        case.collect(500, wait=30, linger=60)
        # After three full answers several polls wait for the whole of their time, and then only one does.
        last = max(case.sent_at())
        assert case.sent_at().count(last) == 1
        assert len([at for at in case.sent_at() if at >= 20]) <= 5


class TestHandingOver:
    def test_each_polls_messages_are_handed_over_at_once_with_the_time_the_poll_was_sent(self) -> None:
        case = Collecting(
            Reply(messages(range(2)), after_seconds=3),
            Reply(messages(range(2, 4)), after_seconds=5, connection_seconds=2),
            Reply(messages(range(4, 5)), after_seconds=1),
        )
        case.collect(50, wait=30, linger=30)
        assert case.handed == [
            (3, Reception(messages(range(2)), received_at=1000, sent_at=1000)),
            (4, Reception(messages(range(4, 5)), received_at=1003, sent_at=1003)),
            (10, Reception(messages(range(2, 4)), received_at=1005, sent_at=1005)),
        ]

    def test_a_newer_delivery_of_a_message_takes_the_place_of_the_older_one(self) -> None:
        newer = message(0, handle="b", receive_count=2)
        case = Collecting(Reply(messages(range(2))), Reply((newer,)), Reply((message(2),)))
        collected = case.collect(3, wait=30, linger=30)
        assert collected.messages == (newer, message(1), message(2))
        assert [reception.messages for _, reception in case.handed] == [messages(range(2)), (newer,), (message(2),)]

    def test_an_older_delivery_that_comes_late_is_dropped(self) -> None:
        newer = message(0, handle="b", receive_count=2)
        case = Collecting(Reply((newer,)), Reply((message(0),)), Reply((message(1),)))
        assert case.collect(2, wait=30, linger=30).messages == (newer, message(1))
        assert case.handed_ids == ["id-0", "id-1"]

    def test_of_two_deliveries_in_one_answer_the_newer_one_is_handed_over(self) -> None:
        newer = message(0, handle="b", receive_count=2)
        for answer in ((message(0), newer), (newer, message(0))):
            case = Collecting(Reply(answer))
            assert case.collect(10, wait=30).messages == (newer,)
            assert case.handed[0][1].messages == (newer,)

    def test_of_two_deliveries_with_the_same_receive_count_the_later_one_holds(self) -> None:
        later = message(0, handle="b")
        case = Collecting(Reply((message(0),)), Reply((later,)), Reply((message(1),)))
        assert case.collect(2, wait=30, linger=30).messages == (later, message(1))

    def test_a_listener_that_fails_ends_the_collection_after_the_polls_in_flight(self) -> None:
        case = Collecting(
            Reply(messages(range(10))), Reply(messages(range(10, 20)), 1), Reply(messages(range(20, 30)), 2)
        )
        case.receiver = Receiver(case.polls, URL, visibility_seconds=30, clock=case.clock)
        hold = case.hold

        def fails_once(reception: Reception) -> None:
            hold(reception)
            if len(case.handed) == 2:
                raise ZeroDivisionError

        case.hold = fails_once  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError):
            case.collect(100, wait=30, linger=30)
        assert len(case.handed_ids) == 30
        assert len(case.polls.polls) == 3


class TestErrors:
    @pytest.mark.parametrize("error", [TRANSIENT, THROTTLED])
    def test_errors_that_may_pass_are_tried_again_with_growing_pauses(self, error: SqsError) -> None:
        case = Collecting(*[Reply(error=error)] * 7, Reply(messages(range(1))))
        assert case.collect(10, wait=60) == Collected(messages(range(1)))
        starts = case.sent_at()
        pauses = [later - earlier for earlier, later in pairwise(starts)]
        for pause, longest in zip(pauses, [0.5, 1, 2, 4, 8, 10, 10], strict=True):
            assert longest / 2 <= pause <= longest
        assert len(set(pauses)) == 7

    def test_pauses_are_short_again_after_an_answer(self) -> None:
        case = Collecting(*[Reply(error=TRANSIENT)] * 4, Reply(), Reply(error=TRANSIENT), Reply(messages(range(1))))
        case.collect(10, wait=60)
        starts = case.sent_at()
        assert starts[-1] - starts[-2] <= 0.5

    def test_polls_that_fail_together_are_one_failure(self) -> None:
        full = [Reply(messages(range(at, at + 10))) for at in range(0, 30, 10)]
        together = [Reply(error=TRANSIENT, after_seconds=1)] * 8
        case = Collecting(*full, *together, Reply(messages(range(30, 40)), after_seconds=1))
        collected = case.collect(500, wait=30, linger=10)
        assert len(collected.messages) == 40
        # One pause of at most half a second, and one poll after it.
        after = [at for at in case.sent_at() if at > 1]
        assert after[0] <= 1.5
        assert after.count(after[0]) == 1

    def test_without_time_left_the_error_is_raised_if_nothing_was_received(self) -> None:
        case = Collecting(*[Reply(error=TRANSIENT)] * 99)
        with pytest.raises(TransientError):
            case.collect(10, wait=20)
        assert 10 <= case.seconds <= 20
        case = Collecting(Reply(error=THROTTLED))
        with pytest.raises(ThrottledError):
            case.collect(10, wait=0)
        assert len(case.polls.polls) == 1

    def test_an_error_that_passed_is_forgotten(self) -> None:
        case = Collecting(Reply(error=TRANSIENT), Reply())
        assert case.collect(10, wait=3) == Collected(())

    def test_without_time_left_what_was_received_is_returned_with_the_error(self) -> None:
        case = Collecting(Reply(messages(range(2))), *[Reply(error=TRANSIENT)] * 99)
        assert case.collect(10, wait=20, linger=20) == Collected(messages(range(2)), TRANSIENT)
        assert case.seconds <= 20

    def test_over_limit_is_raised_at_once_if_nothing_was_received(self) -> None:
        case = Collecting(Reply(error=OVER_LIMIT))
        with pytest.raises(OverLimitError):
            case.collect(10, wait=60)
        assert case.seconds == 0

    def test_over_limit_returns_at_once_what_was_received(self) -> None:
        case = Collecting(Reply(messages(range(2))), Reply(error=OVER_LIMIT))
        assert case.collect(3, wait=60, linger=60) == Collected(messages(range(2)), OVER_LIMIT)
        assert case.seconds == 0

    def test_the_callers_error_is_raised_once_the_polls_in_flight_were_handed_over(self) -> None:
        case = Collecting(
            Reply(messages(range(10))),
            Reply(error=DENIED, after_seconds=1),
            Reply(messages(range(10, 20)), after_seconds=5),
        )
        with pytest.raises(AccessDeniedError):
            case.collect(100, wait=60, linger=60)
        assert len(case.handed_ids) == 20
        assert len(case.polls.polls) == 3
        assert case.seconds == 5


class TestFifo:
    def test_each_poll_has_an_attempt_id_of_its_own_and_standard_queues_have_none(self) -> None:
        case = Collecting(url=FIFO)
        case.collect(10, wait=30)
        ids = [poll.attempt_id for poll in case.polls.polls]
        assert len(set(ids)) == 3
        assert None not in ids
        standard = Collecting()
        standard.collect(10, wait=30)
        assert {poll.attempt_id for poll in standard.polls.polls} == {None}

    def test_a_poll_whose_answer_was_lost_is_repeated_as_it_was_and_keeps_the_time_it_was_first_sent(self) -> None:
        case = Collecting(
            Reply(messages(range(7))),
            Reply(error=TRANSIENT, after_seconds=5),
            Reply(error=TRANSIENT, after_seconds=5),
            Reply(messages(range(7, 9))),
            url=FIFO,
        )
        case.collect(9, wait=30, linger=30)
        first, second, third = case.polls.polls[1:]
        assert first.attempt_id == second.attempt_id == third.attempt_id
        assert first.max_messages == second.max_messages == third.max_messages == 2
        assert case.handed[-1][1] == Reception(messages(range(7, 9)), received_at=1000, sent_at=third.sent_at or 0)
        assert third.sent_at is not None
        assert third.sent_at > 1010

    @pytest.mark.parametrize("error", [THROTTLED, OVER_LIMIT])
    def test_a_poll_that_was_refused_took_nothing_and_is_not_repeated(self, error: SqsError) -> None:
        case = Collecting(Reply(messages(range(1))), Reply(error=error), url=FIFO)
        case.collect(9, wait=30, linger=5)
        ids = [poll.attempt_id for poll in case.polls.polls]
        assert len(set(ids)) == len(ids)

    def test_a_lost_answer_is_not_forgotten_when_asking_for_it_again_is_throttled(self) -> None:
        case = Collecting(
            Reply(error=TRANSIENT, after_seconds=5),
            Reply(error=THROTTLED),
            Reply(messages(range(2))),
            url=FIFO,
        )
        assert case.collect(9, wait=30).messages == messages(range(2))
        assert len({poll.attempt_id for poll in case.polls.polls}) == 1

    def test_an_answer_that_stays_lost_is_told_of_although_other_polls_succeeded(self) -> None:
        case = Collecting(
            Reply(messages(range(10))),
            Reply(error=TRANSIENT, after_seconds=9),
            Reply(messages(range(10, 12)), after_seconds=12),
            *[Reply(error=TRANSIENT, after_seconds=2)] * 9,
            url=FIFO,
        )
        collected = case.collect(30, wait=30, linger=10)
        assert collected == Collected(messages(range(12)), TRANSIENT)

    def test_a_lost_answer_is_asked_for_again_even_after_the_waiting_ended_but_not_for_long(self) -> None:
        case = Collecting(Reply(error=TRANSIENT, after_seconds=1), Reply(messages(range(3))), url=FIFO)
        assert case.collect(10, wait=0).messages == messages(range(3))
        case = Collecting(*[Reply(error=TRANSIENT, after_seconds=1)] * 99, url=FIFO)
        with pytest.raises(TransientError):
            case.collect(10, wait=0)
        assert len({poll.attempt_id for poll in case.polls.polls}) == 1
        assert 5 <= case.seconds <= 11

    def test_an_attempt_that_the_service_has_forgotten_is_not_repeated(self) -> None:
        case = Collecting(*[Reply(error=TRANSIENT)] * 99, url=FIFO, visibility_seconds=43_200)
        with pytest.raises(TransientError):
            case.collect(10, wait=700)
        for attempt_id in {poll.attempt_id for poll in case.polls.polls}:
            sent = [at for poll in case.polls.polls if poll.attempt_id == attempt_id if (at := poll.sent_at)]
            assert max(sent) - min(sent) < 300
        assert len({poll.attempt_id for poll in case.polls.polls}) == 3

    def test_an_attempt_whose_messages_are_visible_again_is_not_repeated(self) -> None:
        case = Collecting(Reply(error=TRANSIENT, after_seconds=15), url=FIFO, visibility_seconds=3)
        case.collect(10, wait=30)
        first, second, *_ = case.polls.polls
        assert first.attempt_id != second.attempt_id


class TestEnding:
    def test_stopping_awaits_the_polls_in_flight_and_starts_no_more(self) -> None:
        case = Collecting(
            Reply(messages(range(10))), Reply(messages(range(10, 12)), 3), Reply(messages(range(12, 13)), 6)
        )

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(100, wait=60, linger=60))
            await asyncio.sleep(1)
            case.receiver.stop()
            collected = await collecting
            assert await case.collecting(100, wait=60) == Collected(())
            return collected

        assert len(case.run(main).messages) == len(case.handed_ids) == 13
        assert case.seconds == 6
        assert len(case.polls.polls) == 3

    def test_stopping_during_an_outage_ends_at_once_and_tells_of_it(self) -> None:
        case = Collecting(*[Reply(error=TRANSIENT)] * 99)

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(10, wait=600))
            await asyncio.sleep(100)
            case.receiver.stop()
            return await collecting

        assert case.run(main) == Collected((), TRANSIENT)
        assert case.seconds == 100

    def test_cancelling_hands_over_what_the_polls_in_flight_bring_before_it_takes_effect(self) -> None:
        case = Collecting(
            Reply(messages(range(10))), Reply(messages(range(10, 12)), 3), Reply(error=TRANSIENT, after_seconds=6)
        )

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(100, wait=60, linger=60))
            await asyncio.sleep(1)
            collecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await collecting
            return Collected(())

        case.run(main)
        assert len(case.handed_ids) == 12
        assert case.seconds == 6
        assert len(case.polls.polls) == 3

    def test_cancelling_twice_abandons_the_polls_in_flight(self) -> None:
        case = Collecting(Reply(messages(range(1)), after_seconds=9))

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(100, wait=60))
            for _ in range(2):
                await asyncio.sleep(1)
                collecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await collecting
            await asyncio.sleep(20)
            return Collected(())

        case.run(main)
        assert case.seconds == 2
        assert case.handed == []
        assert case.polls.polls[0].answered_at is None

    def test_a_lost_answer_that_finds_no_connection_is_not_waited_for_without_end(self) -> None:
        case = Collecting(
            Reply(messages(range(1))),
            Reply(error=TRANSIENT, after_seconds=1),
            Reply(connection_seconds=500),
            url=FIFO,
        )
        assert case.collect(9, wait=30, linger=5) == Collected(messages(range(1)), TRANSIENT)
        assert case.seconds == 15

    @pytest.mark.parametrize("ending", ["stop", "cancel", "linger"])
    def test_polls_that_still_wait_for_a_connection_are_dropped(self, ending: str) -> None:
        waiting = Reply(messages(range(10, 11)), connection_seconds=500)
        case = Collecting(Reply(messages(range(10))), waiting, waiting)

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(100, wait=60, linger=5 if ending == "linger" else 60))
            await asyncio.sleep(5)
            if ending == "stop":
                case.receiver.stop()
            elif ending == "cancel":
                collecting.cancel()
            await asyncio.wait([collecting])
            return Collected(())

        case.run(main)
        assert case.seconds == 5
        assert [poll.sent_at for poll in case.polls.polls] == [1000, None, None]


class TestArguments:
    @pytest.mark.parametrize("max_messages", [0, -1, 120_001, 1.5, True])
    def test_how_many_messages_is_checked(self, max_messages: int) -> None:
        with pytest.raises(ValueError, match="orders: max_messages must be a whole number from 1 to 120000"):
            Collecting().collect(max_messages, wait=0)

    def test_durations_are_checked(self) -> None:
        with pytest.raises(ValueError, match="wait must be"):
            Collecting().collect(1, wait=-1)
        with pytest.raises(ValueError, match="linger must be"):
            Collecting().collect(1, wait=1, linger=float("nan"))

    @pytest.mark.parametrize("visibility_seconds", [0, 43_201])
    def test_the_visibility_timeout_is_checked(self, visibility_seconds: int) -> None:
        with pytest.raises(ValueError, match="orders: the visibility timeout must be a whole number from 1 to 43200"):
            Collecting(visibility_seconds=visibility_seconds)

    def test_a_queue_url_is_needed(self) -> None:
        with pytest.raises(ValueError, match="a queue URL is needed"):
            Collecting(url="orders")
