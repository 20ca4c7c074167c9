"""One way to take messages: the same code receives where its run has no batch, and joins the run's where it has one.

Dagster reads the annotations of ops and assets, so this module has no postponed ones.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease import dead_letter
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster import LeasedBatch, SqsQueueResource, build_sqs_router
from sqs_lease.dagster.run_batch.batch_of_run import BATCH_TAG
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.testing.leased_queues import LeasedQueue, LeasedQueues
from tests.dagster import executor_jobs
from tests.dagster.executor_runs import Runs, runs_in

QUEUES = {"queue": SqsQueueResource(queue="orders")}


@dg.asset
def stored(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0) as batch:
        context.add_output_metadata({"bodies": [message.body for message in batch]})


@dg.asset(deps=[stored])
def indexed(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult[Any]:
    with queue.lease(context, wait=0, linger=0) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
    return dg.MaterializeResult(metadata={"bodies": [message.body for message in batch]})


@dg.asset
def partly(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    """Is done with some, gives one back, and fails."""
    with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
        ids = {message.body: message.message_id for message in batch}
        batch.succeed([ids["a"], ids["b"]])
        batch.release(ids["c"])
        assert not batch.still_held(ids["a"])
        raise ValueError


def both() -> dg.JobDefinition:
    """The same assets as a job over one batch."""
    job = dg.define_asset_job("both", [stored, indexed], executor_def=executor_jobs.executor())
    return dg.Definitions(assets=[stored, indexed], jobs=[job], resources=QUEUES).resolve_job_def("both")


def alone() -> dg.JobDefinition:
    job = dg.define_asset_job("alone", [partly], executor_def=executor_jobs.executor(on_failure=dead_letter()))
    return dg.Definitions(assets=[partly], jobs=[job], resources=QUEUES).resolve_job_def("alone")


@pytest.fixture
def queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    here = dg.in_process_executor.executor_creation_fn
    monkeypatch.setattr(dg.multiprocess_executor, "_executor_creation_fn", here)
    with runs_in(tmp_path) as made:
        yield made


def seen(result: Any, asset: str) -> Any:
    (materialization,) = result.asset_materializations_for_node(asset)
    return materialization.metadata["bodies"].value


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    made = BatchFolder(tmp_path / "batch")
    made.create(batch_id="batch", queue_url=URL, messages=[Message(Receipt("m0", ""), "of the run")])
    return made


URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


def test_an_asset_that_shares_the_batch_of_its_job_receives_by_itself_where_it_is_materialized_alone(
    runs: Runs, queue: LeasedQueue
) -> None:
    queue.send("a", "bad")
    shared = runs.execute(both)
    assert shared.success
    assert [sorted(seen(shared, asset)) for asset in ("stored", "indexed")] == [["a", "bad"], ["a", "bad"]]
    assert (queue.visible, queue.deleted) == (["bad"], 1)

    by_itself = dg.materialize([stored, indexed], selection=[indexed], resources=QUEUES)
    assert seen(by_itself, "indexed") == ["bad"]
    assert (queue.visible, queue.deleted) == (["bad"], 1)


def test_an_executor_takes_up_for_all_steps_what_a_router_received_for_its_run(
    runs: Runs, queue: LeasedQueue, tmp_path: Path
) -> None:
    queue.send("a", "bad")
    router = build_sqs_router("router", QUEUES["queue"], both(), workspace=str(tmp_path / "routed"), wait=0, linger=0)
    (request,) = router.evaluate_tick(dg.build_sensor_context(runs.instance)).run_requests or ()
    queue.send("of another run")
    result = runs.execute(both, tags=dict(request.tags))
    assert result.success
    assert [seen(result, asset) for asset in ("stored", "indexed")] == [["a", "bad"]] * 2
    assert (sorted(queue.visible), queue.deleted) == (["bad", "of another run"], 1)


def test_an_executor_of_another_queue_than_the_routers_receives_from_its_own(
    runs: Runs, queue: LeasedQueue, leased_queues: LeasedQueues, tmp_path: Path
) -> None:
    flights = leased_queues.create("flights", "a flight", visibility_seconds=600)
    resource, workspace = SqsQueueResource(queue="flights"), str(tmp_path / "routed")
    router = build_sqs_router("router", resource, both(), workspace=workspace, wait=0, linger=0)
    (request,) = router.evaluate_tick(dg.build_sensor_context(runs.instance)).run_requests or ()
    queue.send("an order")
    result = runs.execute(both, tags=dict(request.tags))
    assert [seen(result, asset) for asset in ("stored", "indexed")] == [["an order"]] * 2
    assert (queue.deleted, flights.deleted, flights.invisible) == (1, 0, ["a flight"])


@pytest.mark.parametrize("shares", [False, True], ids=["alone", "in a job over one batch"])
def test_a_step_that_fails_has_settled_what_it_was_done_with_and_what_it_gave_back(
    runs: Runs, queue: LeasedQueue, shares: bool
) -> None:
    queue.send("a", "b", "c", "d")
    result: Any = runs.execute(alone) if shares else dg.materialize([partly], resources=QUEUES, raise_on_error=False)
    assert not result.success
    assert (queue.deleted, queue.visible, queue.dead_letters) == (3, ["c"], ["d"])


def test_the_batch_is_of_the_same_kind_either_way(folder: BatchFolder, leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "received")
    with QUEUES["queue"].lease(dg.build_op_context(), wait=0) as batch:
        assert [message.body for message in batch] == ["received"]
        assert isinstance(batch, LeasedBatch)
    with QUEUES["queue"].lease(dg.build_op_context(run_tags={BATCH_TAG: str(folder)})) as batch:
        assert [message.body for message in batch] == ["of the run"]
        assert isinstance(batch, LeasedBatch)


def test_another_queue_than_that_of_the_run_is_received_from(folder: BatchFolder, leased_queues: LeasedQueues) -> None:
    flights = leased_queues.create("flights", "received")
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})
    with SqsQueueResource(queue="flights").lease(context, wait=0) as batch:
        assert [message.body for message in batch] == ["received"]
    assert flights.deleted == 1


def test_a_run_that_repeats_one_of_the_executor_without_it_receives(
    leased_queues: LeasedQueues, tmp_path: Path
) -> None:
    leased_queues.create("orders", "received")
    # The tag is copied, and that batch was settled.
    copied = {BATCH_TAG: str(tmp_path / "run-of-another-one")}
    result = dg.materialize([stored], resources=QUEUES, tags=copied)
    assert seen(result, "stored") == ["received"]


def test_arguments_that_the_holder_of_the_batch_decides_on_are_named_in_the_log(
    folder: BatchFolder, runs: Runs
) -> None:
    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        with QUEUES["queue"].lease(context, max_messages=7, wait=20, on_failure="dead_letter"):
            pass

    @dg.job
    def loading() -> None:
        load()

    result = loading.execute_in_process(instance=runs.instance, tags={BATCH_TAG: str(folder)})
    told = runs.told(result.run_id)
    assert any("max_messages, on_failure of this lease do not apply" in line for line in told)


def test_a_wrong_argument_is_refused_in_a_run_with_a_batch_too(folder: BatchFolder) -> None:
    context = dg.build_op_context(run_tags={BATCH_TAG: str(folder)})
    with pytest.raises(ValueError, match="dead_lettr"):
        QUEUES["queue"].lease(context, on_failure="dead_lettr")
    with pytest.raises(ValueError, match="max_messages"):
        QUEUES["queue"].lease(context, max_messages=0)
