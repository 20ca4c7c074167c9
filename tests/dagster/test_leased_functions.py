"""What an op or asset returns is stored before its messages are deleted; the queues are in memory."""

import logging
from collections.abc import Iterator
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import LeasedBatch, SqsQueueResource, leased
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.instances import stored_instance

QUEUE = SqsQueueResource(queue="orders")


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", visibility_seconds=600)


class Disk(dg.IOManager):
    """Keeps what is stored; while it is full nothing can be, and the messages are still there."""

    def __init__(self, messages: LeasedQueue, *, full: bool = False) -> None:
        self.messages = messages
        self.full = full
        self.stored: dict[str, Any] = {}

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        assert self.messages.deleted == 0
        if self.full:
            raise OSError("no space is left")
        self.stored[context.name] = obj

    def load_input(self, context: dg.InputContext) -> Any: ...


@dg.asset
@leased("queue", wait=0, linger=0)
def bodies(context: dg.AssetExecutionContext, batch: LeasedBatch) -> list[str]:
    return [message.body for message in batch]


def materialize(asset: dg.AssetsDefinition, disk: Disk, **options: Any) -> dg.ExecuteInProcessResult:
    return dg.materialize([asset], resources={"queue": QUEUE, "io_manager": disk}, raise_on_error=False, **options)


def test_a_returned_value_is_stored_and_then_the_messages_are_deleted(messages: LeasedQueue) -> None:
    disk = Disk(messages)
    assert materialize(bodies, disk).success
    assert disk.stored == {"result": ["a", "b"]}
    assert messages.deleted == 2


def test_a_returned_value_that_cannot_be_stored_costs_no_message(messages: LeasedQueue) -> None:
    assert not materialize(bodies, Disk(messages, full=True)).success
    assert (messages.visible, messages.deleted) == (["a", "b"], 0)


def test_the_type_of_what_is_returned_is_that_of_the_annotation(messages: LeasedQueue) -> None:
    @dg.asset
    @leased("queue", wait=0, linger=0)
    def orders(batch: LeasedBatch) -> int:
        return "two"  # type: ignore[return-value]

    assert bodies.op.output_def_named("result").dagster_type.display_name == "[String]"
    assert not materialize(orders, Disk(messages)).success
    assert messages.visible == ["a", "b"]


def test_a_result_may_have_metadata_and_no_value(messages: LeasedQueue) -> None:
    @dg.asset(io_manager_key="io_manager")
    @leased("queue", wait=0, linger=0)
    def orders(batch: LeasedBatch) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"rows": len(batch)})

    disk = Disk(messages)
    result = materialize(orders, disk)
    (materialization,) = result.asset_materializations_for_node("orders")
    assert (materialization.metadata["rows"].value, disk.stored) == (2, {})
    assert messages.deleted == 2


def test_nothing_may_be_returned(messages: LeasedQueue) -> None:
    @dg.asset
    @leased("queue", wait=0, linger=0)
    def orders(batch: LeasedBatch) -> None:
        assert len(batch) == 2

    disk = Disk(messages)
    assert materialize(orders, disk).success
    assert (disk.stored, messages.deleted) == ({}, 2)


def test_several_assets_may_be_yielded(messages: LeasedQueue) -> None:
    @dg.multi_asset(outs={"first": dg.AssetOut(), "second": dg.AssetOut()})
    @leased("queue", wait=0, linger=0)
    def both(batch: LeasedBatch) -> Any:
        for name, message in zip(("first", "second"), batch, strict=True):
            yield dg.Output(message.body, output_name=name)

    disk = Disk(messages)
    assert materialize(both, disk).success
    assert (disk.stored, messages.deleted) == ({"first": "a", "second": "b"}, 2)


class Limits(dg.Config):
    longest: int


def test_an_op_has_its_inputs_and_configuration_and_may_use_the_queue(messages: LeasedQueue) -> None:
    seen: list[Any] = []

    @dg.op
    def before() -> int:
        return 1

    @dg.op(out={"first": dg.Out(), "second": dg.Out()})
    @leased("queue", wait=0, linger=0)
    def load(
        context: dg.OpExecutionContext, queue: SqsQueueResource, before: int, config: Limits, batch: LeasedBatch
    ) -> tuple[int, int]:
        seen.extend([context.op.name, before, config.longest, queue.queue])
        return len(batch), before

    @dg.job(resource_defs={"queue": QUEUE, "io_manager": dg.mem_io_manager})
    def loading() -> None:
        load(before())

    result = loading.execute_in_process(run_config={"ops": {"load": {"config": {"longest": 3}}}})
    assert (result.output_for_node("load", "first"), result.output_for_node("load", "second")) == (2, 1)
    assert seen == ["load", 1, 3, "orders"]
    assert messages.deleted == 2


def test_an_exception_of_the_work_gives_back(messages: LeasedQueue) -> None:
    @dg.asset
    @leased("queue", wait=0, linger=0, on_failure="dead_letter")
    def orders(batch: LeasedBatch) -> None:
        raise ConnectionError

    assert not materialize(orders, Disk(messages)).success
    assert messages.dead_letters == ["a", "b"]


def test_a_function_that_is_called_directly_returns_its_result(messages: LeasedQueue) -> None:
    queue = QUEUE.process_config_and_initialize()
    assert bodies(dg.build_asset_context(), queue=queue) == ["a", "b"]
    assert messages.deleted == 2


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"max_mesages": 5}, TypeError, "takes no argument 'max_mesages'"),
        ({"max_messages": 0}, ValueError, "max_messages"),
        ({"on_failure": "dead_lettr"}, ValueError, "on_failure must be one of"),
        ({"on_resume": "maybe"}, ValueError, "on_resume"),
        ({"policy": "sometimes"}, ValueError, "policy"),
    ],
    ids=["unknown", "number", "rule", "resume", "policy"],
)
def test_wrong_arguments_are_refused_where_the_function_is_defined(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        leased("queue", **arguments)


def test_a_function_without_a_batch_and_an_asynchronous_one_are_refused() -> None:
    def without() -> None: ...

    async def asynchronous(batch: LeasedBatch) -> None: ...

    with pytest.raises(TypeError, match=r"'without'.*no parameter 'batch'"):
        leased("queue")(without)
    with pytest.raises(TypeError, match=r"'asynchronous'.*asynchronous"):
        leased("queue")(asynchronous)


@pytest.mark.parametrize("given", [bodies, QUEUE], ids=["no parentheses", "the resource itself"])
def test_what_is_no_key_of_a_resource_is_refused_and_the_error_says_what_to_write(given: Any) -> None:
    with pytest.raises(TypeError, match=r'write @leased\("orders_queue"\)'):
        leased(given)


def test_a_resource_that_is_no_queue_fails_the_step_and_the_error_says_which(messages: LeasedQueue) -> None:
    result = dg.materialize([bodies], resources={"queue": "orders"}, raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    said = failed.step_failure_data.error_display_string
    assert "the resource 'queue' of 'bodies' is 'str', and must be an SqsQueueResource" in said
    assert len(messages.visible) == 2


# What is stored too late


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with stored_instance() as made:
        yield made


@dg.asset
def late(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    with queue.lease(context, wait=0, linger=0) as batch:
        return [message.body for message in batch]


@dg.asset
def late_nothing(context: dg.AssetExecutionContext, queue: SqsQueueResource):  # type: ignore[no-untyped-def]
    with queue.lease(context, wait=0, linger=0):
        pass


@dg.asset
def result_only(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult[Any]:
    with queue.lease(context, wait=0, linger=0) as batch:
        return dg.MaterializeResult(metadata={"rows": len(batch)})


@dg.asset
def piecemeal(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    found: list[str] = []
    for _ in range(2):
        with queue.lease(context, wait=0, linger=0, max_messages=1) as batch:
            found += [message.body for message in batch]
    return found


class Anywhere(dg.IOManager):
    def __init__(self, *, full: bool = False) -> None:
        self.full = full

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if self.full:
            raise OSError("no space is left")

    def load_input(self, context: dg.InputContext) -> Any: ...


def warnings_of(instance: dg.DagsterInstance, asset: dg.AssetsDefinition, *, full: bool = False) -> list[str]:
    resources = {"queue": QUEUE, "io_manager": Anywhere(full=full)}
    result = dg.materialize([asset], instance=instance, resources=resources, raise_on_error=False)
    assert result.success is not full
    return [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.WARNING]


@pytest.mark.parametrize("asset", [late, late_nothing, piecemeal], ids=["value", "not annotated", "several leases"])
def test_the_log_warns_once_of_a_value_that_was_stored_after_the_messages_were_deleted(
    messages: LeasedQueue, instance: dg.DagsterInstance, asset: dg.AssetsDefinition
) -> None:
    (warning,) = warnings_of(instance, asset)
    assert "stored a value when the block of its lease had ended" in warning
    assert "its 2 messages were deleted" in warning
    assert "leased()" in warning


def test_the_log_warns_of_messages_that_are_lost(messages: LeasedQueue, instance: dg.DagsterInstance) -> None:
    (warning,) = warnings_of(instance, late, full=True)
    assert "failed when the block of its lease had ended: its 2 messages were deleted" in warning


@pytest.mark.parametrize("asset", [bodies, result_only], ids=["leased", "no value"])
def test_the_log_does_not_warn_where_storing_is_covered(
    messages: LeasedQueue, instance: dg.DagsterInstance, asset: dg.AssetsDefinition
) -> None:
    assert warnings_of(instance, asset) == []


def test_the_log_does_not_warn_where_nothing_was_received(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.create("orders")
    assert warnings_of(instance, late) == []
