"""One question a second and lease for all who watch, and fewer where nothing changes or answers are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack

from sqs_lease.airflow.airflow_api.polling import (
    LONGEST_POLL_SECONDS,
    MAX_RUNS_IN_REQUEST,
    QUIET_SHARE,
    FailureSignals,
    SignalPoller,
    StatePoller,
    StateWatch,
)
from sqs_lease.airflow.airflow_api.requests import CommsError, TaskStates
from sqs_lease.testing import run_virtual


class Airflow:
    """Answers each task with one state, by default the number of the question, and remembers the questions."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, tuple[str, ...], frozenset[str]]] = []
        self.failing = False
        self.unknown_runs: set[str] = set()
        self.state: str | None = None
        self.answer_seconds = 0.0

    async def fetch(self, dag_id: str, run_ids: Sequence[str], task_ids: Collection[str]) -> Mapping[str, TaskStates]:
        self.questions.append((dag_id, tuple(run_ids), frozenset(task_ids)))
        if self.failing:
            raise CommsError("no answer")
        state = str(len(self.questions)) if self.state is None else self.state
        if self.answer_seconds:
            await asyncio.sleep(self.answer_seconds)
        return {run: dict.fromkeys(task_ids, state) for run in run_ids if run not in self.unknown_runs}


async def no_signals(prefix: str) -> list[str]:
    return []


def test_runs_of_one_dag_are_asked_for_together_and_each_watch_gets_its_own() -> None:
    airflow = Airflow()

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]) as first, poller.watch("dag", "b", ["t"]) as second:
            assert await first.next() == {"t": "1"}
            assert await second.next() == {"t": "1"}

    run_virtual(scenario)
    assert airflow.questions == [("dag", ("a", "b"), frozenset({"t"}))]


def test_each_lease_is_asked_for_by_a_question_of_its_own() -> None:
    airflow = Airflow()

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with (
            poller.watch("dag", "a", ["t"]) as first,
            poller.watch("dag", "a", ["u", "t_all"]) as second,
            poller.watch("other", "a", ["t"]) as last,
        ):
            assert await first.next() == {"t": "1"}
            assert await second.next() == {"u": "2", "t_all": "2"}
            assert await last.next() == {"t": "3"}

    run_virtual(scenario)
    assert airflow.questions == [
        ("dag", ("a",), frozenset({"t"})),
        ("dag", ("a",), frozenset({"u", "t_all"})),
        ("other", ("a",), frozenset({"t"})),
    ]


def test_a_task_that_is_named_like_an_instance_of_another_leases_task_is_not_taken_for_it() -> None:
    tasks: dict[str, dict[str, str | None]] = {
        "check": {"check_0": "failed", "check_1": "success"},
        "check_1": {"check_1": "running"},
        "u": {"u": None},
    }
    questions: list[set[str]] = []

    async def fetch(dag_id: str, run_ids: Sequence[str], task_ids: Collection[str]) -> Mapping[str, TaskStates]:
        questions.append(set(task_ids))
        # As Airflow does: a later task takes the key of an earlier one.
        return {"a": {key: state for task_id in sorted(task_ids) for key, state in tasks[task_id].items()}}

    async def scenario() -> None:
        poller = StatePoller(fetch)
        with (
            poller.watch("dag", "a", ["check", "u"]) as mapped,
            poller.watch("dag", "a", ["check_1", "u"]) as other,
        ):
            assert await mapped.next() == {"check_0": "failed", "check_1": "success", "u": None}
            assert await other.next() == {"check_1": "running", "u": None}

    run_virtual(scenario)
    assert questions == [{"check", "u"}, {"check_1", "u"}]


def test_a_watch_that_begins_during_a_question_is_told_no_answer_that_leaves_out_its_tasks() -> None:
    airflow = Airflow()
    airflow.answer_seconds = 0.5

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]):
            await asyncio.sleep(0.2)
            with poller.watch("dag", "a", ["u"]) as second:
                assert await second.next() == {"u": "2"}

    run_virtual(scenario)


def test_the_longer_nothing_changes_the_more_seldom_a_dag_is_asked_for() -> None:
    airflow = Airflow()
    airflow.state = "running"

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch, SignalPoller(no_signals))
        with poller.watch("dag", "a", ["t"], signals="signals.") as watch:
            await asyncio.sleep(10)
            assert len(airflow.questions) >= 9
            await asyncio.sleep(20)
            airflow.questions.clear()
            await asyncio.sleep(30)
            assert 30 * QUIET_SHARE <= 30 / len(airflow.questions) <= 60 * QUIET_SHARE
            await asyncio.sleep(600)
            airflow.questions.clear()
            await asyncio.sleep(20 * LONGEST_POLL_SECONDS)
            assert len(airflow.questions) == 20
            airflow.state = "success"
            while await watch.next() != {"t": "success"}:
                pass
            airflow.questions.clear()
            await asyncio.sleep(10.5)
            assert len(airflow.questions) == 10

    run_virtual(scenario)


def test_after_an_answer_at_least_as_long_passes_as_it_took() -> None:
    airflow = Airflow()
    airflow.answer_seconds = 6.0

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]):
            await asyncio.sleep(60)

    run_virtual(scenario)
    assert len(airflow.questions) == 5


def test_it_asks_once_a_second_while_it_is_watched_and_then_no_more() -> None:
    airflow = Airflow()

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]):
            await asyncio.sleep(9.5)
        assert len(airflow.questions) == 10
        await asyncio.sleep(60)
        assert len(airflow.questions) == 10
        with poller.watch("dag", "a", ["t"]) as again:
            await again.next()

    run_virtual(scenario)


def test_a_watch_that_begins_between_two_rounds_is_answered_at_once() -> None:
    airflow = Airflow()

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]) as first:
            await first.next()
            await asyncio.sleep(0.5)
            with poller.watch("dag", "b", ["t"]) as second:
                async with asyncio.timeout(0.1):
                    await second.next()

    run_virtual(scenario)
    assert [run_ids for _, run_ids, _ in airflow.questions] == [("a",), ("b",)]


def test_a_watch_waits_through_unanswered_questions() -> None:
    airflow = Airflow()
    airflow.failing = True

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]) as watch:
            waiting = asyncio.create_task(watch.next())
            await asyncio.sleep(30.5)
            assert not waiting.done()
            airflow.failing = False
            assert await waiting == {"t": "32"}

    run_virtual(scenario)


def test_a_run_that_the_answer_does_not_know_has_no_states() -> None:
    airflow = Airflow()
    airflow.unknown_runs = {"b"}

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        with poller.watch("dag", "a", ["t"]) as known, poller.watch("dag", "b", ["t"]) as unknown:
            assert await known.next() != {}
            assert await unknown.next() == {}

    run_virtual(scenario)


def test_very_many_runs_are_asked_for_in_several_questions() -> None:
    airflow = Airflow()

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        watches = [poller.watch("dag", f"run{number}", ["t"]) for number in range(MAX_RUNS_IN_REQUEST + 1)]
        entered = [watch.__enter__() for watch in watches]
        await asyncio.gather(*(watch.next() for watch in entered))
        for watch in watches:
            watch.__exit__(None, None, None)

    run_virtual(scenario)
    assert [len(run_ids) for _, run_ids, _ in airflow.questions] == [MAX_RUNS_IN_REQUEST, 1]


def test_triggers_take_in_an_answer_one_in_each_round_of_the_event_loop() -> None:
    airflow = Airflow()
    rounds: list[int] = []

    async def scenario() -> None:
        poller = StatePoller(airflow.fetch)
        round_number = 0

        async def take_in(watch: StateWatch) -> None:
            await watch.next()
            rounds.append(round_number)

        with ExitStack() as watches:
            waiting = [
                asyncio.create_task(take_in(watches.enter_context(poller.watch("dag", f"run {number}", ["t"]))))
                for number in range(20)
            ]
            while not all(task.done() for task in waiting):
                round_number += 1
                await asyncio.sleep(0)

    run_virtual(scenario)
    assert len(set(rounds)) == len(rounds) == 20


def test_a_signals_key_names_an_instance_and_fits_into_airflows_column() -> None:
    signals = FailureSignals.to("d" * 250, "r" * 250, "t" * 250, ["check", "load"])
    assert signals.instance(signals.key("load", -1)) == ("load", -1)
    assert signals.instance(signals.key("check", 1023)) == ("check", 1023)
    assert len(signals.key("load", 1023)) <= 250
    for other in ("", "sqs_lease_failure.", f"{signals.prefix}2.0", f"{signals.prefix}x.0", f"{signals.prefix}1.x"):
        assert signals.instance(other) is None
