"""Work that the DAG skips keeps no message from being deleted; work that a user's mark on its run skips does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from airflow.providers.standard.operators.latest_only import LatestOnlyOperator
from airflow.sdk import DAG, setup, task, task_group
from airflow.sdk.execution_time.comms import GetXCom

from sqs_lease.airflow import SqsLeaseKeeperOperator, sqs_lease
from sqs_lease.airflow.failures import SKIP_KEY
from sqs_lease.airflow.settlement.rules import WorkTask, work_tasks
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.leased_messages import ALL_HELD, ALL_VISIBLE, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RUN_ID

VISIBLE = MessageState.VISIBLE


@pytest.fixture
def world(supervisor: ScriptedComms) -> LeasedMessages:
    return LeasedMessages(supervisor)


@task
def extract(messages: Any) -> Any:
    return messages


@task
def load(rows: Any = None) -> None: ...


def work_of(body: Callable[[Any], Any]) -> list[WorkTask]:
    """The work of a lease with this body, as its DAG has it."""
    with DAG("dag", schedule=None) as dag, sqs_lease("orders", queue_url="orders") as orders:
        body(orders)
    keeper = dag.task_dict["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    return work_tasks(dag, keeper.work_task_ids, keeper.receive_task_id, keeper.task_id)


def settle(
    world: LeasedMessages,
    body: Callable[[Any], Any],
    states: Mapping[str, str],
    *,
    skipped_themselves: tuple[tuple[str, int], ...] = (),
) -> dict[str, MessageState]:
    """Let the work end, and return what is left in the queue when the keeper has ended."""
    left: dict[str, MessageState] = {}

    async def scenario() -> None:
        running = await world.receive_and_keep(*work_of(body))
        for task_id, map_index in skipped_themselves:
            world.supervisor.xcoms[RUN_ID, task_id, map_index, SKIP_KEY] = True
        world.supervisor.asked.clear()
        del world.states["load"]
        world.states.update(states)
        await running.ended()
        left.update(world.message_states())

    world.run(scenario)
    return left


def asked_for_skips(world: LeasedMessages) -> list[GetXCom]:
    return [asked for asked in world.supervisor.asked if isinstance(asked, GetXCom) and asked.key == SKIP_KEY]


def stages(orders: Any) -> None:
    load(extract(orders))


def stages_of_each(orders: Any) -> None:
    @task_group
    def process(message: Any) -> None:
        load(extract(message))

    process.expand(message=orders)


def chain_of_each(orders: Any) -> None:
    load.expand(rows=extract.expand(messages=orders))


def joined(orders: Any) -> None:
    @task.branch
    def choose(rows: Any) -> str:
        return "left"

    sides = [load.override(task_id="left")(), load.override(task_id="right")()]
    choose(orders) >> sides >> load.override(trigger_rule="none_failed_min_one_success")()


# A run that is marked


@pytest.mark.parametrize("extracted", ["success", "failed"], ids=["between the stages", "in the first stage"])
def test_messages_come_back_when_a_marked_run_did_not_begin_their_work(world: LeasedMessages, extracted: str) -> None:
    assert settle(world, stages, {"extract": extracted, "load": "skipped"}) == ALL_VISIBLE
    assert not world.events(AuditKind.DELETED)


def test_so_they_do_where_a_stage_further_on_was_not_begun(world: LeasedMessages) -> None:
    def body(orders: Any) -> None:
        load.override(task_id="index")(load(extract(orders)))

    assert settle(world, body, {"extract": "success", "load": "skipped", "index": "skipped"}) == ALL_VISIBLE


def test_so_they_do_where_a_branch_was_taken_and_what_joins_it_was_not_begun(world: LeasedMessages) -> None:
    states = {"choose": "success", "left": "success", "right": "skipped", "load": "skipped"}
    assert settle(world, joined, states) == ALL_VISIBLE


@pytest.mark.parametrize("rule", ["none_failed", "all_done", "always"])
def test_so_they_do_where_that_stage_runs_although_the_one_before_was_skipped(world: LeasedMessages, rule: str) -> None:
    def body(orders: Any) -> None:
        extract(orders) >> load.override(task_id="alert")() >> load.override(trigger_rule=rule)()

    states = {"extract": "success", "alert": "skipped", "load": "skipped"}
    assert settle(world, body, states, skipped_themselves=(("alert", -1),)) == ALL_VISIBLE


def test_each_message_of_a_marked_run_is_settled_by_its_own_chain(world: LeasedMessages) -> None:
    states = {
        **dict.fromkeys(("process.extract_0", "process.extract_1", "process.load_1"), "success"),
        **dict.fromkeys(("process.load_0", "process.extract_2", "process.load_2"), "skipped"),
    }
    assert settle(world, stages_of_each, states) == {"a": VISIBLE, "c": VISIBLE}


def test_a_message_is_done_when_its_chain_skipped_itself_though_another_one_was_not_begun(
    world: LeasedMessages,
) -> None:
    def body(orders: Any) -> None:
        @task_group
        def process(message: Any) -> None:
            extract(message) >> load.override(task_id="alert")() >> load()

        process.expand(message=orders)

    states = {f"process.extract_{position}": "success" for position in range(3)}
    states |= {f"process.{name}_{position}": "skipped" for name in ("alert", "load") for position in range(3)}
    assert settle(world, body, states, skipped_themselves=(("process.alert", 1),)) == {"a": VISIBLE, "c": VISIBLE}


def test_a_chain_that_was_expanded_is_settled_message_by_message(world: LeasedMessages) -> None:
    states = {f"extract_{position}": "success" for position in range(3)}
    states |= {"load_0": "success", "load_1": "skipped", "load_2": "failed"}
    assert settle(world, chain_of_each, states) == {"b": VISIBLE, "c": VISIBLE}


def test_a_chain_that_was_not_expanded_because_the_run_was_marked_deletes_nothing(world: LeasedMessages) -> None:
    states = {"extract_0": "success", "extract_1": "failed", "extract_2": "skipped", "load": "skipped"}
    assert settle(world, chain_of_each, states) == ALL_VISIBLE


def test_a_chain_that_was_not_expanded_has_work_where_there_are_results(world: LeasedMessages) -> None:
    states = {**{f"extract_{position}": "success" for position in range(3)}, "load": "skipped"}
    world.supervisor.xcoms.update({(RUN_ID, "extract", position, "return_value"): "row" for position in range(3)})
    assert settle(world, chain_of_each, states) == ALL_VISIBLE


# Skips by a DAG


def test_a_task_that_skipped_itself_had_nothing_to_do(world: LeasedMessages) -> None:
    states = {"extract": "success", "load": "skipped"}
    assert settle(world, stages, states, skipped_themselves=(("load", -1),)) == {}


def test_so_had_one_behind_it(world: LeasedMessages) -> None:
    def body(orders: Any) -> None:
        load.override(task_id="index")(load(extract(orders)))

    states = {"extract": "success", "load": "skipped", "index": "skipped"}
    assert settle(world, body, states, skipped_themselves=(("load", -1),)) == {}


def test_so_had_one_that_skipped_itself_for_some_messages(world: LeasedMessages) -> None:
    states = {f"process.extract_{position}": "success" for position in range(3)}
    states |= {f"process.load_{position}": "skipped" for position in range(3)}
    skipped = tuple(("process.load", position) for position in range(3))
    assert settle(world, stages_of_each, states, skipped_themselves=skipped) == {}


def test_so_had_a_chain_where_one_of_the_results_was_skipped(world: LeasedMessages) -> None:
    states = {"extract_0": "success", "extract_1": "success", "extract_2": "skipped", "load": "skipped"}
    # The message of which nothing was done at all comes back.
    assert settle(world, chain_of_each, states, skipped_themselves=(("extract", 2),)) == {"c": VISIBLE}


def test_so_had_what_joins_branches_that_were_all_skipped(world: LeasedMessages) -> None:
    states = {"choose": "success", "left": "skipped", "right": "skipped", "load": "skipped"}
    assert settle(world, joined, states) == {}


def branched(orders: Any) -> None:
    @task.branch
    def choose(rows: Any) -> str:
        return "none"

    choose(extract(orders)) >> load()


def short_circuited(orders: Any) -> None:
    @task.short_circuit
    def choose(rows: Any) -> bool:
        return False

    choose(extract(orders)) >> load()


def only_of_the_latest(orders: Any) -> None:
    extract(orders) >> LatestOnlyOperator(task_id="choose") >> load()


def behind_a_task_that_is_no_work(orders: Any) -> None:
    @setup
    def choose() -> None: ...

    choose() >> load(extract(orders))


@pytest.mark.parametrize("body", [branched, short_circuited, only_of_the_latest, behind_a_task_that_is_no_work])
def test_work_that_is_not_chosen_had_nothing_to_do(world: LeasedMessages, body: Callable[[Any], Any]) -> None:
    assert settle(world, body, {"extract": "success", "choose": "success", "load": "skipped"}) == {}
    assert asked_for_skips(world) == []


@pytest.mark.parametrize("rule", ["all_failed", "one_failed", "all_skipped"])
def test_a_task_that_runs_when_others_do_not_succeed_had_nothing_to_do(world: LeasedMessages, rule: str) -> None:
    def body(orders: Any) -> None:
        extract(orders) >> load.override(trigger_rule=rule)()

    assert settle(world, body, {"extract": "success", "load": "skipped"}) == {}


def test_a_task_that_was_mapped_over_nothing_had_nothing_to_do(world: LeasedMessages) -> None:
    def body(orders: Any) -> None:
        load.expand(rows=extract(orders))

    assert settle(world, body, {"extract": "success", "load": "skipped"}) == {}


def test_so_had_a_chain_of_which_nothing_was_left(world: LeasedMessages) -> None:
    states = {**{f"extract_{position}": "success" for position in range(3)}, "load": "skipped"}
    assert settle(world, chain_of_each, states) == {}


def test_an_instance_that_a_cleared_run_did_not_make_was_skipped_like_the_others(world: LeasedMessages) -> None:
    def body(orders: Any) -> None:
        extract(orders)
        load.expand(rows=orders)

    states = {"extract": "success", "load_0": "skipped", "load_1": "skipped"}
    assert settle(world, body, states) == ALL_VISIBLE


# Costs


def test_where_all_work_was_skipped_nothing_is_read(world: LeasedMessages) -> None:
    states = {f"process.{name}_{position}": "skipped" for name in ("extract", "load") for position in range(3)}
    assert settle(world, stages_of_each, states) == ALL_VISIBLE
    assert asked_for_skips(world) == []


def test_without_reports_every_skip_counts_as_the_dags(world: LeasedMessages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SQS_LEASE__REPORT_FAILURES", "False")
    assert settle(world, stages, {"extract": "success", "load": "skipped"}) == {}


def test_messages_are_held_until_it_can_be_read_what_skipped_their_work(world: LeasedMessages) -> None:
    def refuse_reports(request: Any) -> None:
        world.supervisor.refusing = getattr(request, "key", None) == SKIP_KEY

    async def scenario() -> None:
        running = await world.receive_and_keep(*work_of(stages))
        world.supervisor.on_request = refuse_reports
        world.states.update({"extract": "success", "load": "skipped"})
        await asyncio.sleep(60)
        assert world.message_states() == ALL_HELD
        world.supervisor.on_request = None
        world.supervisor.refusing = False
        await running.ended()
        assert world.message_states() == ALL_VISIBLE

    world.run(scenario)
