"""The virtual clock and event loop."""

from __future__ import annotations

import asyncio
import math

import pytest

from sqs_lease.clock import Clock
from sqs_lease.testing import VirtualClock, VirtualDeadlockError, VirtualLivelockError, VirtualLoop, run_virtual


def test_a_long_sleep_takes_no_real_time_and_ends_exactly_when_it_should() -> None:
    clock = VirtualClock()

    async def work() -> float:
        await asyncio.sleep(14 * 24 * 3600)
        return clock.now()

    # That this comes back within the time limit of a test is the proof.
    assert run_virtual(work, clock=clock) == 14 * 24 * 3600


def test_a_coroutine_is_accepted_as_well_as_its_function() -> None:
    async def add(left: int, right: int) -> int:
        await asyncio.sleep(1)
        return left + right

    assert run_virtual(add(2, 3)) == 5


def test_sleeps_end_in_the_order_of_their_times() -> None:
    ended: list[str] = []

    async def sleep(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        ended.append(name)

    async def work() -> None:
        await asyncio.gather(sleep(3, "c"), sleep(1, "a"), sleep(2, "b"))

    run_virtual(work)
    assert ended == ["a", "b", "c"]


def test_time_stands_still_while_something_is_ready() -> None:
    clock = VirtualClock()

    async def work() -> float:
        timer = asyncio.create_task(asyncio.sleep(5))
        for _ in range(1000):
            await asyncio.sleep(0)
        before_the_timer = clock.now()
        await timer
        return before_the_timer

    assert run_virtual(work, clock=clock) == 0.0
    assert clock.now() == 5.0


@pytest.mark.parametrize("seconds", [0.1, 1 / 3, 1e-12, 123456.7], ids=str)
def test_a_sleep_until_a_time_never_ends_before_it_and_always_moves_on(seconds: float) -> None:
    clock = VirtualClock(start=1000.1)
    due = clock.now() + seconds

    async def work() -> int:
        rounds = 0
        while clock.now() < due:
            await asyncio.sleep(due - clock.now())
            rounds += 1
        return rounds

    assert run_virtual(work, clock=clock) == 1
    assert clock.now() == pytest.approx(due, abs=1e-8)


def test_timeouts_work() -> None:
    clock = VirtualClock()

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()

    run_virtual(work, clock=clock)
    assert clock.now() == 30.0


EPOCH = 1_767_225_600.25
"""A time as `time.time()` gives it: floats are a quarter of a microsecond apart there."""


@pytest.mark.parametrize("start", [2.0**21, 2.0**23 + 1 / 3, EPOCH, 2.0**40], ids=str)
def test_a_sleep_ends_exactly_when_it_should_wherever_the_clock_starts(start: float) -> None:
    clock = VirtualClock(start)
    began_at = clock.now()

    async def work() -> None:
        await asyncio.sleep(1)
        await asyncio.sleep(30)

    run_virtual(work, clock=clock)
    assert clock.now() == began_at + 31


def test_years_pass_day_by_day_without_an_error_of_rounding() -> None:
    clock = VirtualClock()
    days = 10 * 365

    async def work() -> None:
        for _ in range(days):
            await asyncio.sleep(86_400 - 0.25)
            await asyncio.sleep(0.25)

    run_virtual(work, clock=clock)
    assert clock.now() == days * 86_400


@pytest.mark.parametrize("start", [0.1, 2.0**21, EPOCH], ids=str)
def test_a_timer_runs_at_its_time_and_not_a_step_of_a_float_earlier(start: float) -> None:
    clock = VirtualClock(start)
    loop = VirtualLoop(clock)
    first = clock.now() + 5
    second = first + max(math.ulp(first), 2.0**-30)
    ran: list[tuple[str, float]] = []
    for name, at in (("second", second), ("first", first)):
        loop.call_at(at, lambda name=name: ran.append((name, clock.now())))
    loop.call_at(second + 1, loop.stop)
    loop.run_forever()
    loop.close()
    assert ran == [("first", first), ("second", second)]


@pytest.mark.parametrize("start", [0.0, EPOCH], ids=str)
def test_the_shortest_sleep_moves_time_on(start: float) -> None:
    clock = VirtualClock(start)
    seen = [clock.now()]

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1e-12)
            seen.append(clock.now())

    run_virtual(work, clock=clock)
    assert seen == sorted(set(seen))


def test_timeouts_work_at_the_seconds_since_the_epoch() -> None:
    clock = VirtualClock(EPOCH)

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.get_running_loop().create_future()

    run_virtual(work, clock=clock)
    assert clock.now() == EPOCH + 30


async def _wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_deadlock_is_an_error_that_names_the_waiting_tasks() -> None:
    async def work() -> None:
        await asyncio.create_task(_wait_for_ever(), name="the stuck one")

    with pytest.raises(VirtualDeadlockError, match=r"(?s)nothing is ready.*the stuck one: _wait_for_ever at .*:\d+"):
        run_virtual(work)


def test_spinning_without_time_moving_on_is_an_error() -> None:
    loop = VirtualLoop(VirtualClock(), most_rounds=100)

    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(VirtualLivelockError, match="100 rounds"):
        loop.run_forever()
    loop.close()


def test_tasks_left_behind_are_cancelled() -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def work() -> asyncio.Task[None]:
        task = asyncio.create_task(linger())
        await asyncio.sleep(1)
        return task

    assert run_virtual(work).cancelled()
    assert ended == ["cancelled"]


def test_an_exception_comes_out_as_it_is() -> None:
    async def work() -> None:
        await asyncio.sleep(1)
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        run_virtual(work)


def test_threads_are_waited_for_while_virtual_time_stands_still() -> None:
    clock = VirtualClock()

    async def work() -> tuple[int, float]:
        timer = asyncio.create_task(asyncio.sleep(3600))
        result = await asyncio.to_thread(sum, [1, 2, 3])
        at = clock.now()
        await timer
        return result, at

    assert run_virtual(work, clock=clock) == (6, 0.0)
    assert clock.now() == 3600.0


def test_sets_of_tasks_are_gone_through_in_the_order_of_creation() -> None:
    async def work() -> list[str]:
        tasks = {asyncio.create_task(asyncio.sleep(1), name=str(number)) for number in range(50)}
        done, _ = await asyncio.wait(tasks)
        return [task.get_name() for task in done]

    assert run_virtual(work) == run_virtual(work)


def test_the_clock_fits_the_protocol_and_moves_only_forward() -> None:
    clock = VirtualClock(start=10, wall_start=1000)
    as_protocol: Clock = clock
    clock.advance(2.5)
    assert (as_protocol.now(), as_protocol.wall()) == (12.5, 1002.5)
    with pytest.raises(ValueError, match="cannot go back"):
        clock.advance(-1)


def test_the_wall_clock_can_be_set_without_moving_time() -> None:
    clock = VirtualClock(start=10, wall_start=1000)
    clock.set_wall_back_or_forth(-300)
    assert (clock.now(), clock.wall()) == (10, 700)


def test_it_refuses_to_run_within_a_running_loop() -> None:
    async def inner() -> None:
        await asyncio.sleep(0)

    async def outer() -> None:
        run_virtual(inner())

    with pytest.raises(RuntimeError, match="cannot be called while an event loop runs"):
        run_virtual(outer)
