"""Leases in assets and ops; the queues are in memory, and Dagster runs in this process.

tests/processes/dagster/test_queue_resource.py has a real SQS server.
"""

from _thread import interrupt_main
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from sqs_lease import dead_letter
from sqs_lease.dagster import (
    MessageFailed,
    SqsQueueResource,
    build_sqs_backlog_check,
    build_sqs_backlog_sensor,
    build_sqs_router,
    sqs_lease_executor,
)
from sqs_lease.dagster._internals import Context
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.lease_numbers import lease_numbers

Work = Callable[[Context, SqsQueueResource], Any]


@pytest.fixture
def messages(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> LeasedQueue:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    return leased_queues.create("orders", visibility_seconds=600)


@pytest.fixture
def queue(messages: LeasedQueue) -> SqsQueueResource:
    return SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"))


def left(messages: LeasedQueue) -> int:
    return len(messages.visible) + len(messages.invisible)


def asset_over(work: Work, retry_policy: dg.RetryPolicy | None = None) -> dg.AssetsDefinition:
    @dg.asset(retry_policy=retry_policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Any:
        return work(context, queue)

    return orders


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def test_an_asset_that_succeeds_deletes_its_messages_and_its_materialization_has_the_numbers(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("a", "b", "c")

    def work(context: Context, queue: SqsQueueResource) -> dg.MaterializeResult[Any]:
        with queue.lease(context, linger=0, max_messages=2) as batch:
            return dg.MaterializeResult(metadata={"rows": len(batch)})

    result = dg.materialize([asset_over(work)], resources={"queue": queue}, instance=instance)
    assert left(messages) == 1
    told = lease_numbers(instance, result)
    assert told["rows"] == 2
    assert told["sqs/queue"] == messages.url
    assert 0 <= told["sqs/oldest_age_seconds"] < 3600
    expected = {"received": 2, "deleted": 2, "failed": 0, "lost": 0, "unsettled": 0, "left_visible": 1}
    assert {name: told.get(f"sqs/{name}", 0) for name in expected} == expected
    assert "sqs/lost" not in told


def test_a_message_that_failed_comes_back_and_counts_as_failed(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("good", "bad")

    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0) as batch:
            batch.fail([message.message_id for message in batch if message.body == "bad"], "it is bad")

    result = dg.materialize([asset_over(work)], resources={"queue": queue}, instance=instance)
    assert messages.visible == ["bad"]
    assert left(messages) == 1
    assert (lease_numbers(instance, result)["sqs/failed"], lease_numbers(instance, result)["sqs/deleted"]) == (1, 1)


@pytest.mark.parametrize(
    ("error", "back"),
    [
        (lambda ids: ZeroDivisionError(), ["bad", "good"]),
        (lambda ids: MessageFailed([ids["bad"]]), ["bad"]),
        (lambda ids: dg.Failure("no"), ["bad", "good"]),
    ],
    ids=["any", "named", "Dagster's own"],
)
def test_an_asset_that_raises_gives_its_messages_back(
    queue: SqsQueueResource,
    messages: LeasedQueue,
    error: Callable[[dict[str, str]], Exception],
    back: list[str],
) -> None:
    messages.send("good", "bad")

    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0) as batch:
            raise error({message.body: message.message_id for message in batch})

    result = dg.materialize([asset_over(work)], resources={"queue": queue}, raise_on_error=False)
    assert not result.success
    assert sorted(messages.visible) == back
    assert left(messages) == len(back)


def test_an_interrupted_asset_gives_all_back_whatever_the_failure_rule(
    queue: SqsQueueResource, messages: LeasedQueue
) -> None:
    messages.send("a")

    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0, on_failure=dead_letter()):
            interrupt_main()

    with pytest.raises((KeyboardInterrupt, DagsterExecutionInterruptedError)):
        dg.materialize([asset_over(work)], resources={"queue": queue})
    assert messages.visible == ["a"]


def test_a_step_that_is_retried_gives_back_and_receives_again(queue: SqsQueueResource, messages: LeasedQueue) -> None:
    messages.send("a")
    counts: list[int] = []

    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0) as batch:
            counts.extend(message.receive_count for message in batch)
            if len(counts) == 1:
                raise ZeroDivisionError

    result = dg.materialize([asset_over(work, retry_policy=dg.RetryPolicy(1))], resources={"queue": queue})
    assert result.success
    assert counts == [1, 2]
    assert left(messages) == 0


def test_the_output_of_an_op_has_the_numbers_too(queue: SqsQueueResource, messages: LeasedQueue) -> None:
    messages.send("a")

    @dg.op
    def load(context: dg.OpExecutionContext, queue: SqsQueueResource) -> int:
        with queue.lease(context, linger=0) as batch:
            return len(batch)

    @dg.job(resource_defs={"queue": queue})
    def loading() -> None:
        load()

    result = loading.execute_in_process()
    (output,) = (event for event in result.events_for_node("load") if event.is_successful_output)
    assert output.step_output_data.metadata["sqs/received"].value == 1


def test_every_asset_that_a_step_makes_has_the_numbers_and_no_other(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    @dg.multi_asset(specs=[dg.AssetSpec(name, skippable=True) for name in ("first", "second")], can_subset=True)
    def both(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Any:
        with queue.lease(context, linger=0, wait=0) as batch:
            assert batch
        for key in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=key)

    for selection in (["first", "second"], ["second"]):
        messages.send("a")
        result = dg.materialize([both], selection=selection, resources={"queue": queue}, instance=instance)
        found = instance.fetch_observations(dg.AssetKey("first"), limit=10).records
        assert len(found) == 1
        for asset in selection:
            event = instance.fetch_observations(dg.AssetKey(asset), limit=1).records[0]
            assert event.run_id == result.run_id
            assert event.asset_observation is not None
            assert event.asset_observation.metadata["sqs/deleted"].value == 1


def test_each_partition_that_a_step_makes_has_the_numbers(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("a")

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition(["north", "south"]))
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0):
            pass

    result = dg.materialize([orders], resources={"queue": queue}, partition_key="south", instance=instance)
    assert lease_numbers(instance, result)["sqs/deleted"] == 1
    (record,) = instance.fetch_observations(dg.AssetKey("orders"), limit=1).records
    assert record.partition_key == "south"


def test_an_asset_that_checks_itself_has_the_numbers(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("a")

    @dg.asset(check_specs=[dg.AssetCheckSpec("sound", asset="orders")])
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.MaterializeResult[Any]]:
        with queue.lease(context, linger=0) as batch:
            sound = len(batch) == 1
        yield dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=sound)])

    result = dg.materialize([orders], resources={"queue": queue}, instance=instance)
    assert lease_numbers(instance, result)["sqs/deleted"] == 1
    assert [each.passed for each in result.get_asset_check_evaluations()] == [True]


def test_several_leases_of_one_step_are_counted_together(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("a", "b", "c")

    def work(context: Context, queue: SqsQueueResource) -> None:
        while True:
            with queue.lease(context, linger=0, max_messages=1, wait=0) as batch:
                if not batch:
                    return

    told = lease_numbers(instance, dg.materialize([asset_over(work)], resources={"queue": queue}, instance=instance))
    assert (told["sqs/received"], told["sqs/deleted"]) == (3, 3)
    assert 0 <= told["sqs/oldest_age_seconds"] < 3600
    assert told["sqs/queue"] == messages.url


def test_leases_of_several_queues_are_counted_together(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance, leased_queues: LeasedQueues
) -> None:
    others = leased_queues.create("others", "b")
    messages.send("a")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource, other: SqsQueueResource) -> None:
        with queue.lease(context, linger=0), other.lease(context, linger=0):
            pass

    told = lease_numbers(
        instance,
        dg.materialize(
            [orders], resources={"queue": queue, "other": SqsQueueResource(queue="others")}, instance=instance
        ),
    )
    assert told["sqs/deleted"] == 2
    assert sorted(told["sqs/queue"].split(", ")) == sorted([others.url, messages.url])


def test_an_asset_that_yields_within_its_block_is_observed_afterwards(
    queue: SqsQueueResource, messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    messages.send("a")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Any:
        with queue.lease(context, linger=0) as batch:
            yield dg.MaterializeResult(metadata={"rows": len(batch)})

    result = dg.materialize([orders], resources={"queue": queue}, instance=instance)
    told = lease_numbers(instance, result)
    assert (told["rows"], told["sqs/deleted"]) == (1, 1)


def test_all_outputs_of_an_op_have_the_numbers_but_those_that_were_yielded_within_the_block(
    queue: SqsQueueResource, messages: LeasedQueue
) -> None:
    messages.send("a")

    @dg.op(out={name: dg.Out() for name in ("early", "late", "later")})
    def load(context: dg.OpExecutionContext, queue: SqsQueueResource) -> Any:
        with queue.lease(context, linger=0) as batch:
            yield dg.Output(len(batch), "early")
        yield dg.Output(len(batch), "late")
        yield dg.Output(len(batch), "later")

    @dg.job(resource_defs={"queue": queue})
    def loading() -> None:
        load()

    result = loading.execute_in_process()
    outputs = [event.step_output_data for event in result.events_for_node("load") if event.is_successful_output]
    assert {output.step_output_handle.output_name: "sqs/received" in output.metadata for output in outputs} == {
        "early": False,
        "late": True,
        "later": True,
    }
    assert left(messages) == 0


class FullDisk(dg.IOManager):
    def handle_output(self, context: dg.OutputContext, obj: object) -> None:
        raise OSError("no space is left")

    def load_input(self, context: dg.InputContext) -> None: ...


def test_a_value_that_is_yielded_within_the_block_is_stored_before_the_messages_are_deleted(
    queue: SqsQueueResource, messages: LeasedQueue
) -> None:
    messages.send("a")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Any:
        with queue.lease(context, linger=0) as batch:
            yield dg.MaterializeResult(value=[message.body for message in batch])

    resources = {"queue": queue, "io_manager": FullDisk()}
    assert not dg.materialize([orders], resources=resources, raise_on_error=False).success
    assert messages.visible == ["a"]


class DiskThatIsFullOnce(dg.IOManager):
    def __init__(self) -> None:
        self.counts: list[int] = []

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        self.counts.append(obj)
        if len(self.counts) == 1:
            raise OSError("no space is left")

    def load_input(self, context: dg.InputContext) -> None: ...


def test_a_step_that_is_retried_because_its_value_was_not_stored_receives_again(
    queue: SqsQueueResource, messages: LeasedQueue
) -> None:
    messages.send("a")
    disk = DiskThatIsFullOnce()

    @dg.asset(retry_policy=dg.RetryPolicy(1))
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Any:
        with queue.lease(context, linger=0, wait=0) as batch:
            yield dg.MaterializeResult(value=sum(message.receive_count for message in batch))

    assert dg.materialize([orders], resources={"queue": queue, "io_manager": disk}).success
    assert disk.counts == [1, 2]
    assert left(messages) == 0


def test_up_to_as_many_messages_are_received_as_were_asked_for(queue: SqsQueueResource, messages: LeasedQueue) -> None:
    messages.send(*map(str, range(25)))

    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, max_messages=25) as batch:
            assert len(batch) == 25

    assert dg.materialize([asset_over(work)], resources={"queue": queue}).success


def test_a_queue_without_messages_gives_an_empty_batch(queue: SqsQueueResource, instance: dg.DagsterInstance) -> None:
    def work(context: Context, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0, wait=0) as batch:
            assert len(batch) == 0

    told = lease_numbers(instance, dg.materialize([asset_over(work)], resources={"queue": queue}, instance=instance))
    assert told["sqs/received"] == 0
    assert "sqs/oldest_age_seconds" not in told


def test_a_function_that_is_called_directly_can_lease(queue: SqsQueueResource, messages: LeasedQueue) -> None:
    messages.send("a")
    resolved = queue.process_config_and_initialize()
    bodies: list[str] = []

    @dg.op
    def load(context: dg.OpExecutionContext) -> None:
        with resolved.lease(context, linger=0) as batch:
            bodies.extend(message.body for message in batch)

    load(dg.build_op_context())
    assert bodies == ["a"]
    assert left(messages) == 0


@pytest.mark.parametrize(
    "wrong", [None, "orders", dg.build_init_resource_context()], ids=lambda each: type(each).__name__
)
def test_something_else_than_the_context_of_a_step_is_refused(queue: SqsQueueResource, wrong: Any) -> None:
    with pytest.raises(TypeError, match=rf"context of the op or asset.*{type(wrong).__name__}"):
        queue.lease(wrong)


class Bucket(dg.ConfigurableResource[Any]):
    """Another resource."""

    password: str


@pytest.mark.parametrize(
    "make",
    [
        lambda queue: build_sqs_backlog_sensor("waiting", queue, "orders"),
        lambda queue: build_sqs_router("waiting", queue, "orders", workspace="/tmp"),
        lambda queue: build_sqs_backlog_check("orders", queue),
        lambda queue: sqs_lease_executor(queue, workspace="/tmp"),
    ],
    ids=["backlog sensor", "router", "check", "executor"],
)
def test_something_else_than_a_queue_is_refused_where_it_is_written_and_not_shown(
    make: Callable[[Any], object],
) -> None:
    for wrong in (Bucket(password="secret"), "orders", None):
        with pytest.raises(TypeError, match=rf"takes an SqsQueueResource, not '{type(wrong).__name__}'") as refused:
            make(wrong)
        assert "secret" not in str(refused.value)


def test_an_asset_check_can_lease(queue: SqsQueueResource, messages: LeasedQueue) -> None:
    messages.send("a")

    @dg.asset
    def orders() -> None: ...

    @dg.asset_check(asset=orders)
    def complete(context: dg.AssetCheckExecutionContext, queue: SqsQueueResource) -> dg.AssetCheckResult:
        with queue.lease(context, linger=0) as batch:
            return dg.AssetCheckResult(passed=len(batch) == 1)

    (evaluation,) = dg.materialize([orders, complete], resources={"queue": queue}).get_asset_check_evaluations()
    assert evaluation.passed
    assert messages.visible == []
    assert messages.deleted == 1
