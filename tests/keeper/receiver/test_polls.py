"""How a receiver polls: how many polls, how long, what is handed over and when."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from sqs_lease.keeper.receiver import MAX_POLLS, Collected, Receiver, Reception
from tests.keeper.receiver.collecting import URL, Collecting
from tests.keeper.receiver.scripted_polls import Reply, message, messages


class TestWaiting:
    @pytest.mark.parametrize(
        ("visibility_seconds", "waits"),
        [(30, [10, 10, 10, 10, 5]), (600, [20, 20, 5]), (60, [20, 20, 5]), (45, [15, 15, 15]), (2, [1] * 45)],
    )
    def test_one_poll_after_the_other_waits_and_no_poll_for_longer_than_a_third_of_the_visibility_timeout(
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

    def test_it_is_one_second_by_default(self) -> None:
        case = Collecting(Reply(messages(range(1))), Reply(messages(range(1, 2)), after_seconds=0.9))

        async def main() -> Collected:
            return await case.receiver.collect(10, wait=30, on_received=case.hold)

        assert case.run(main).messages == messages(range(2))
        assert 1 <= case.clock.now() - 1000 <= 2

    def test_polls_are_cut_to_what_is_left_of_it(self) -> None:
        case = Collecting(Reply(messages(range(1))), Reply(), Reply())
        case.collect(3, wait=30, linger=13)
        assert case.waits() == [10, 10, 3]
        assert case.seconds == 13

    def test_a_full_batch_ends_it(self) -> None:
        case = Collecting(Reply(messages(range(4)), 1), Reply(messages(range(4, 10)), 1))
        assert case.collect(10, wait=30, linger=3600).messages == messages(range(10))
        assert case.seconds == 2


class TestEmptyAnswersThatComeAtOnce:
    """Some endpoints and proxies answer a long poll at once instead of waiting."""

    @pytest.mark.parametrize("after_seconds", [0.0, 0.005, 0.4])
    def test_they_are_asked_for_about_once_a_second_to_the_end(self, after_seconds: float) -> None:
        case = Collecting(*[Reply(after_seconds=after_seconds)] * 5000)
        assert case.collect(10, wait=20) == Collected(())
        assert 18 <= len(case.polls.polls) <= 28
        assert 20 <= case.seconds <= 20 + after_seconds
        pauses = [later - earlier for earlier, later in pairwise(case.sent_at())]
        assert all(0.7 <= pause <= 1.3 for pause in pauses[:15])
        assert len(set(pauses[:15])) == 15, "jittered"

    def test_a_message_that_comes_between_is_received_with_the_next_poll(self) -> None:
        case = Collecting(*[Reply(after_seconds=0)] * 5, Reply(messages(range(10))))
        assert case.collect(10, wait=20).messages == messages(range(10))
        assert case.seconds <= 6.5

    def test_lingering_is_as_long_as_ever_and_looks_more_than_once(self) -> None:
        case = Collecting(Reply(messages(range(1))), *[Reply(after_seconds=0)] * 500)
        assert case.collect(10, wait=20, linger=1).messages == messages(range(1))
        assert case.seconds == 1
        assert 3 <= len(case.polls.polls) <= 12

    def test_an_answer_with_messages_ends_the_pause(self) -> None:
        # Of the two polls after the first answer, one comes back empty at once and the other brings more.
        case = Collecting(
            Reply(messages(range(10))),
            Reply(messages(range(10, 20)), after_seconds=0.1),
            Reply(after_seconds=0),
            Reply(messages(range(20, 30))),
        )
        assert len(case.collect(30, wait=20, linger=5).messages) == 30
        assert case.seconds == pytest.approx(0.1)

    def test_a_single_look_and_no_linger_wait_for_nothing(self) -> None:
        case = Collecting(Reply(after_seconds=0))
        assert case.collect(10, wait=0) == Collected(())
        assert (case.seconds, len(case.polls.polls)) == (0, 1)
        case = Collecting(Reply(messages(range(1))), Reply(after_seconds=0))
        case.collect(10, wait=20, linger=0)
        assert (case.seconds, len(case.polls.polls)) == (0, 1)

    def test_polls_that_wait_for_most_of_their_time_follow_each_other_at_once(self) -> None:
        case = Collecting(*[Reply(after_seconds=0.9)] * 20, visibility_seconds=2)
        case.collect(10, wait=9)
        assert case.waits() == [1] * 10
        assert case.sent_at() == pytest.approx([0.9 * number for number in range(10)])


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

    def test_a_listener_that_always_fails_still_gets_what_every_poll_brings(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = Collecting(
            Reply(messages(range(10)), 1), Reply(messages(range(10, 20)), 1), Reply(messages(range(20, 30)), 2)
        )
        hold = case.hold

        def fails(reception: Reception) -> None:
            hold(reception)
            if len(case.handed) > 1:
                raise ZeroDivisionError(len(case.handed))

        case.hold = fails  # type: ignore[method-assign]
        with pytest.raises(ZeroDivisionError, match="2"):
            case.collect(100, wait=30, linger=30)
        assert len(case.handed_ids) == 30
        (record,) = caplog.records
        assert "failed once more" in record.getMessage(), "what is not raised is logged"

    def test_a_listener_that_fails_while_the_collection_is_cancelled_is_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        case = Collecting(
            Reply(messages(range(10)), 1), Reply(messages(range(10, 20)), 5), Reply(messages(range(1)), 6)
        )
        hold = case.hold

        def fails(reception: Reception) -> None:
            hold(reception)
            if len(case.handed) > 1:
                raise ZeroDivisionError

        case.hold = fails  # type: ignore[method-assign]

        async def main() -> Collected:
            collecting = asyncio.create_task(case.collecting(100, wait=30, linger=30))
            await asyncio.sleep(2)
            collecting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await collecting
            return Collected(())

        case.run(main)
        assert len(case.handed) == 3
        assert "failed, and was cancelled" in caplog.records[-1].getMessage()


class TestArguments:
    @pytest.mark.parametrize("max_messages", [0, -1, 120_001, 1.5, True])
    def test_the_number_of_messages_is_checked(self, max_messages: int) -> None:
        with pytest.raises(ValueError, match="orders: max_messages must be an integer from 1 to 120000"):
            Collecting().collect(max_messages, wait=0)

    def test_durations_are_checked(self) -> None:
        with pytest.raises(ValueError, match="wait must be"):
            Collecting().collect(1, wait=-1)
        with pytest.raises(ValueError, match="linger must be"):
            Collecting().collect(1, wait=1, linger=float("nan"))

    @pytest.mark.parametrize("visibility_seconds", [0, 43_201])
    def test_the_visibility_timeout_is_checked(self, visibility_seconds: int) -> None:
        with pytest.raises(ValueError, match="orders: the visibility timeout must be an integer from 1 to 43200"):
            Collecting(visibility_seconds=visibility_seconds)

    def test_a_queue_url_is_needed(self) -> None:
        with pytest.raises(ValueError, match="is not a queue URL"):
            Collecting(url="orders")
