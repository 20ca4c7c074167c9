"""When a watcher fires, decided from counts alone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqs_lease.airflow.triggers.pace import Pace, QueueCounts

POLL, SHORTEST, FIRST, LONGEST = 2.0, 5.0, 30.0, 300.0


def counts(visible: int, in_flight: int = 0, delayed: int = 0) -> QueueCounts:
    return QueueCounts(visible, in_flight, delayed)


def fired(looks: Iterable[QueueCounts], *, longest: float = LONGEST) -> list[float]:
    """When events are fired, by looks every two seconds from 0 on."""
    pace = Pace(shortest_pause_seconds=SHORTEST, longest_pause_seconds=longest)
    return [number * POLL for number, look in enumerate(looks) if pace.fires(look, number * POLL)]


def pauses(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def test_the_first_message_fires_at_once() -> None:
    assert fired([counts(0), counts(0), counts(1)]) == [4]


def test_an_empty_queue_fires_nothing_whatever_is_in_flight_or_delayed() -> None:
    assert fired([counts(0, 100, 10)] * 1000) == []


def test_while_an_event_leads_to_nothing_the_next_ones_come_after_ever_longer_pauses() -> None:
    assert pauses(fired([counts(10)] * 1000)) == [30, 60, 120, 240, 300, 300, 300, 300, 300]


def test_the_longest_pause_is_a_setting() -> None:
    assert pauses(fired([counts(10)] * 100, longest=20)) == [20] * 9


def test_messages_that_come_while_no_slot_is_free_do_not_make_the_pauses_shorter() -> None:
    assert pauses(fired(counts(10 + number) for number in range(200))) == [30, 60, 120]


def test_as_soon_as_a_run_took_some_of_them_the_next_event_follows_for_the_rest() -> None:
    looks = [counts(500)] * 10 + [counts(400, 100)] * 3
    assert fired(looks) == [0, 20]


def test_but_not_before_the_shortest_pause_because_that_run_may_still_receive() -> None:
    looks = [counts(500), counts(450, 50), *[counts(400, 100)] * 3]
    assert fired(looks) == [0, 6]


def test_a_burst_that_one_run_takes_is_one_event() -> None:
    looks = [counts(50), counts(50), counts(0, 50), counts(0, 50), counts(0), counts(0)]
    assert fired(looks) == [0]


def test_bursts_that_were_worked_on_are_an_event_each_at_once() -> None:
    burst = [counts(50), counts(0, 50), counts(0, 50), counts(0), counts(0)]
    assert fired(burst * 20) == [number * 10.0 for number in range(20)]


def test_messages_that_come_during_long_work_fire_at_the_shortest_pause() -> None:
    # The runs take what is there and go on working: nothing is deleted for an hour.
    looks = [counts(1)]
    for number in range(1, 100):
        looks += [counts(0, number), counts(1, number), counts(1, number)]
    assert set(pauses(fired(looks))) == {6}


def test_a_queue_that_grows_faster_than_it_is_worked_on_fires_at_the_shortest_pause() -> None:
    # 30 come and 20 are taken and deleted between two looks: the queue never gets shorter.
    looks = [counts(100 + 10 * number, 20 + number % 2) for number in range(500)]
    assert max(pauses(fired(looks))) <= SHORTEST + 2 * POLL


def test_a_message_that_comes_back_each_time_fires_ever_more_rarely() -> None:
    pace = Pace(shortest_pause_seconds=SHORTEST, longest_pause_seconds=LONGEST)
    times: list[float] = []
    for number in range(2000):
        now = number * POLL
        # A run has it from 4 to 8 s after each event.
        is_taken = bool(times) and 4 <= now - times[-1] < 8
        if pace.fires(counts(0, 1) if is_taken else counts(1), now):
            times.append(now)
    # Of the first pause 8 s are the run's.
    assert pauses(times)[:7] == [8, 10, 20, 40, 80, 160, 300]
    assert set(pauses(times)[7:]) == {300}


def test_so_do_many_of_which_a_run_takes_some_at_a_time() -> None:
    pace = Pace(shortest_pause_seconds=SHORTEST, longest_pause_seconds=LONGEST)
    times: list[float] = []
    for number in range(3600):
        now = number * POLL
        taken = 10 * sum(4 <= now - at < 10 for at in times)
        if pace.fires(counts(100 - taken, taken), now):
            times.append(now)
    # At most two for each pause: the second one is for the rest, while the first run works.
    assert len(times) <= 2 * (7 + 7200 / LONGEST + 1)


def test_new_messages_do_not_wait_for_the_sake_of_one_that_comes_back_each_time() -> None:
    came_back = [counts(0, 1), counts(0, 1), counts(1), *[counts(1)] * 10]
    looks = [*[counts(1), *came_back] * 6, counts(2), counts(2)]
    before, at = fired(looks[:-2]), fired(looks)
    assert at == [*before, (len(looks) - 2) * POLL]
    assert at[-1] - at[-2] < 80


def test_a_burst_like_the_last_one_that_comes_when_that_is_deleted_does_not_wait_for_long() -> None:
    # Between two looks one of 50 is deleted and one of 50 comes: it might as well have been given back.
    looks = [counts(50), counts(50), counts(50), counts(0, 50), counts(50), counts(0, 50), counts(0, 50)]
    assert fired(looks) == [0, 8]


def test_deletes_of_other_runs_say_nothing_about_a_run_that_still_waits_for_its_slot() -> None:
    looks = [counts(50), counts(0, 50), counts(10, 50), counts(10, 50), counts(10, 0), *[counts(10)] * 10]
    assert fired(looks) == [0, 6]


def test_after_messages_were_done_with_the_pauses_are_short_again() -> None:
    stuck = [counts(10)] * 100  # events at 0, 30 and 90 s; the next would come at 210
    looks = [*stuck, counts(0, 10), counts(0), counts(5)]
    assert fired(looks) == [0, 30, 90, 204]
    assert fired([*looks, *[counts(5)] * 20]) == [0, 30, 90, 204, 234]


def test_a_message_at_the_end_of_its_delay_is_not_a_new_one() -> None:
    looks = [counts(1, 0, 1)] * 5 + [counts(2)] * 20
    assert fired(looks) == [0, 30]


AMOUNTS = st.integers(0, 5)
LOOKS = st.lists(st.builds(QueueCounts, AMOUNTS, AMOUNTS, AMOUNTS), max_size=400)


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""No property fails because the machine is busy."""


@unhurried
@given(LOOKS)
def test_events_keep_their_distance_and_are_fired_while_there_are_messages_only(looks: list[QueueCounts]) -> None:
    times = fired(looks)
    assert all(looks[int(at / POLL)].visible > 0 for at in times)
    assert all(pause >= SHORTEST for pause in pauses(times))


@unhurried
@given(LOOKS)
def test_no_message_waits_longer_than_the_longest_pause_for_an_event(looks: list[QueueCounts]) -> None:
    seen = [QueueCounts(look.visible + 1, look.in_flight, look.delayed) for look in looks] or [counts(1)]
    times = fired(seen)
    assert times[0] == 0
    ends = len(seen) * POLL
    assert all(pause <= LONGEST + POLL for pause in pauses([*times, ends]))


@unhurried
@given(st.lists(st.integers(0, 3), max_size=600), AMOUNTS)
def test_the_pauses_grow_as_long_as_nothing_is_taken_however_much_is_sent(sent: list[int], in_flight: int) -> None:
    visible = 1
    looks = []
    for more in sent:
        visible += more
        looks.append(counts(visible, in_flight))
    grown = pauses(fired(looks))
    assert grown == [min(FIRST * 2**number, LONGEST) for number in range(len(grown))]


@unhurried
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 40), st.integers(1, 3))
def test_messages_that_always_come_back_cost_few_events(poison: int, most: int, work: int, late: int) -> None:
    """However many there are, however many a run takes, and however long it begins late and works, in looks."""
    pace = Pace(shortest_pause_seconds=SHORTEST, longest_pause_seconds=LONGEST)
    times: list[float] = []
    begun: list[tuple[float, int]] = []  # when a run ends, and how many it has
    waiting: list[float] = []
    for number in range(5000):
        now = number * POLL
        begun = [(ends, has) for ends, has in begun if ends > now]
        while waiting and waiting[0] <= now:
            waiting.pop(0)
            has = min(most, poison - sum(each for _, each in begun))
            begun.append((now + work * POLL, has))
        held = sum(has for _, has in begun)
        if pace.fires(counts(poison - held, held), now):
            times.append(now)
            waiting.append(now + late * POLL)
    # Side by side runs may take all of them; after that there is nothing until they come back.
    rounds = 7 + 5000 * POLL / LONGEST
    assert len(times) <= rounds * (1 + poison / most)
