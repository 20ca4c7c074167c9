"""How a collection goes on after errors and lost answers, and how it ends: by errors, by stopping, by cancelling."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from sqs_lease.keeper.receiver import Collected, Reception
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    EndpointUnreachableError,
    OverLimitError,
    SqsError,
    ThrottledError,
    TransientError,
)
from tests.keeper.receiver.collecting import DENIED, FIFO, OVER_LIMIT, THROTTLED, TRANSIENT, UNAVAILABLE, Collecting
from tests.keeper.receiver.scripted_polls import Reply, messages


class TestErrors:
    @pytest.mark.parametrize("error", [TRANSIENT, UNAVAILABLE, THROTTLED])
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
    def test_each_poll_has_an_attempt_id_of_its_own_but_not_on_standard_queues(self) -> None:
        case = Collecting(url=FIFO)
        case.collect(10, wait=30)
        ids = [poll.attempt_id for poll in case.polls.polls]
        assert len(set(ids)) == 3
        assert None not in ids
        standard = Collecting()
        standard.collect(10, wait=30)
        assert {poll.attempt_id for poll in standard.polls.polls} == {None}

    def test_a_poll_without_an_answer_is_repeated_as_it_was_and_keeps_the_time_it_was_first_sent(self) -> None:
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

    @pytest.mark.parametrize("error", [THROTTLED, OVER_LIMIT, UNAVAILABLE, EndpointUnreachableError("no way")])
    def test_a_poll_that_was_not_carried_out_took_nothing_and_is_not_repeated(self, error: SqsError) -> None:
        case = Collecting(Reply(messages(range(1))), Reply(error=error), url=FIFO)
        case.collect(9, wait=30, linger=5)
        ids = [poll.attempt_id for poll in case.polls.polls]
        assert len(set(ids)) == len(ids)

    @pytest.mark.parametrize("error", [THROTTLED, UNAVAILABLE])
    def test_a_lost_answer_is_not_forgotten_when_asking_for_it_again_is_not_carried_out(self, error: SqsError) -> None:
        case = Collecting(
            Reply(error=TRANSIENT, after_seconds=5),
            Reply(error=error),
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

    def test_an_attempt_is_not_repeated_when_its_messages_are_visible_again(self) -> None:
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
