"""Numbers on assets over a batch that the executor holds, and checks of them; the run worker is this process.

Dagster reads the annotations of assets, so this module has no postponed ones.
"""

import os
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import (
    SqsQueueResource,
    build_sqs_lease_check,
    sqs_lease_check_result,
    sqs_lease_executor,
)
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster.executor_runs import Runs, runs_in

QUEUE = SqsQueueResource(queue="orders")
SPEC = dg.AssetCheckSpec("sqs_lease", asset="read")


@dg.asset(check_specs=[SPEC])
def read(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]
    with QUEUE.lease(context) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
    return dg.MaterializeResult(check_results=[sqs_lease_check_result(batch, max_failed=1)])


@dg.asset(deps=[read], partitions_def=dg.StaticPartitionsDefinition(["north", "south"]))
def stored(context: dg.AssetExecutionContext) -> None:
    with QUEUE.lease(context):
        pass


@dg.asset(deps=[read])
def unconcerned() -> None:
    """Does not look at the messages."""


CHECKS = [build_sqs_lease_check(asset, name="later") for asset in (read, stored)]


def assets() -> dg.JobDefinition:
    executor = sqs_lease_executor(
        QUEUE,
        workspace=os.environ["ORDERS_WORKSPACE"],
        wait=0,
        linger=0,
        on_failure="dead_letter",
        around=dg.in_process_executor,
    )
    job = dg.define_asset_job("assets", executor_def=executor)
    return dg.Definitions(assets=[read, stored, unconcerned], asset_checks=CHECKS, jobs=[job]).resolve_job_def("assets")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    with runs_in(tmp_path_factory.mktemp("workspace")) as made:
        yield made


@pytest.fixture
def queue(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", "bad", visibility_seconds=600)


def observed(instance: dg.DagsterInstance, key: str) -> tuple[dict[str, Any], str | None]:
    """The newest observation of an asset, and its partition."""
    (record,) = instance.fetch_observations(dg.AssetKey(key), limit=1).records
    observation = record.asset_observation
    assert observation is not None
    return {name: value.value for name, value in observation.metadata.items()}, observation.partition


def materialized(result: dg.JobExecutionResult, key: str) -> dict[str, Any]:
    (made,) = result.asset_materializations_for_node(key)
    return {name: value.value for name, value in made.metadata.items()}


def test_assets_under_the_executor_have_numbers_of_the_work_and_of_what_became_of_the_messages(
    runs: Runs, queue: LeasedQueue
) -> None:
    result = runs.execute(assets, executor={}, tags={"dagster/partition": "north"})
    assert result.success
    assert (queue.dead_letters, queue.deleted) == (["bad"], 3)
    made = materialized(result, "read")
    assert {name: made[name] for name in ("sqs/received", "sqs/failed")} == {"sqs/received": 3, "sqs/failed": 1}
    for key, expected in (("read", None), ("stored", "north")):
        numbers, partition = observed(runs.instance, key)
        assert partition == expected
        assert (numbers["sqs/received"], numbers["sqs/deleted"], numbers["sqs/dead_lettered"]) == (3, 2, 1)
        assert "sqs/left_visible" not in numbers
        assert numbers["sqs/oldest_age_seconds"] >= 0
    assert runs.instance.fetch_observations(dg.AssetKey("unconcerned"), limit=1).records == []


def test_checks_of_them_are_about_the_work_within_the_run_and_about_the_messages_afterwards(
    runs: Runs, queue: LeasedQueue
) -> None:
    result = runs.execute(assets, executor={}, tags={"dagster/partition": "north"})
    said = {(each.check_name, each.asset_key.to_user_string()): each for each in result.get_asset_check_evaluations()}
    assert said["sqs_lease", "read"].passed
    assert said["sqs_lease", "read"].metadata["sqs/failed"].value == 1
    assert not said["later", "read"].passed
    assert said["later", "read"].description == "1 messages failed by the asset's step; the messages are settled later."
    assert said["later", "stored"].passed

    # The run worker's work on the messages counts for all assets of them.
    later = dg.materialize([CHECKS[1]], instance=runs.instance, selection=dg.AssetSelection.checks(CHECKS[1]))
    (evaluation,) = later.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.description == "1 messages failed."


@dg.asset(check_specs=[dg.AssetCheckSpec("sqs_lease", asset="orders")])
def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    with queue.lease(context, wait=0) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
    return dg.MaterializeResult(check_results=[sqs_lease_check_result(batch)])


def test_a_step_that_leases_by_itself_may_check_its_lease(queue: LeasedQueue) -> None:
    result = dg.materialize([orders], resources={"queue": QUEUE})
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.description == "1 messages failed so far; the messages are settled later."
    assert evaluation.metadata["sqs/received"].value == 3


def test_the_result_may_name_one_of_several_assets_and_has_a_limit_of_its_own() -> None:
    with pytest.raises(ValueError, match="max_failed must be a whole number"):
        sqs_lease_check_result(None, max_failed=-1)  # type: ignore[arg-type]
