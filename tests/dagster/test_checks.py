"""Asset checks of leases and queues; the queues are in memory, and Dagster runs in this process."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import (
    SqsQueueResource,
    build_sqs_backlog_check,
    build_sqs_lease_check,
    sqs_lease_check_result,
)
from sqs_lease.dagster._internals import report_event
from sqs_lease.dagster.metadata import HELD
from sqs_lease.sqs.errors import AccessDeniedError, TransientError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.testing import LeasedQueue, LeasedQueues

QUEUE = SqsQueueResource(queue="orders")
PARTITIONS = dg.StaticPartitionsDefinition(["north", "south"])


@dg.asset
def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")


@dg.asset
def yielded(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.MaterializeResult[Any]]:
    with queue.lease(context, wait=0) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
        yield dg.MaterializeResult()


@dg.asset
def without_lease() -> None: ...


@dg.asset(partitions_def=PARTITIONS)
def by_region(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0) as batch:
        batch.fail([message for message in batch if message.body == context.partition_key], "it is bad")


@dg.multi_asset(specs=[dg.AssetSpec("first"), dg.AssetSpec("second")])
def both(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.MaterializeResult[Any]]:
    with queue.lease(context, wait=0) as batch:
        batch.fail(list(batch), "all are bad")
    for key in ("first", "second"):
        yield dg.MaterializeResult(asset_key=key)


@pytest.fixture
def queue(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def evaluated(
    instance: dg.DagsterInstance, check: dg.AssetChecksDefinition, *assets: dg.AssetsDefinition, **options: Any
) -> dg.AssetCheckEvaluation:
    """Run a check, with the assets that it is about or by itself."""
    resources = {"queue": QUEUE}
    if assets:
        result = dg.materialize([*assets, check], instance=instance, resources=resources, **options)
    else:
        result = dg.materialize([check], instance=instance, selection=dg.AssetSelection.checks(check))
    (evaluation,) = result.get_asset_check_evaluations()
    return evaluation


def told(evaluation: dg.AssetCheckEvaluation) -> dict[str, Any]:
    return {name: value.value for name, value in evaluation.metadata.items() if name.startswith("sqs/")}


@pytest.mark.parametrize("asset", [orders, yielded], ids=["returned", "yielded within the block"])
@pytest.mark.parametrize(("bad", "passed"), [(0, True), (1, True), (2, False)])
def test_more_failed_messages_than_allowed_fail_the_check(
    queue: LeasedQueue, instance: dg.DagsterInstance, asset: dg.AssetsDefinition, bad: int, passed: bool
) -> None:
    queue.send("good", *["bad"] * bad)
    evaluation = evaluated(instance, build_sqs_lease_check(asset, max_failed=1), asset)
    assert evaluation.passed is passed
    assert evaluation.severity is dg.AssetCheckSeverity.WARN
    assert told(evaluation) == {"sqs/received": bad + 1, **({"sqs/failed": bad} if bad else {})}
    assert evaluation.description == f"{bad} messages failed."


@pytest.mark.parametrize("unsafe", ["lost", "late", "unsettled"])
def test_leases_that_did_not_hold_fail_the_check_whatever_is_allowed(instance: dg.DagsterInstance, unsafe: str) -> None:
    @dg.asset
    def orders() -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"sqs/queue": "orders", "sqs/failed": 0, f"sqs/{unsafe}": 2})

    check = build_sqs_lease_check(orders, max_failed=10, severity=dg.AssetCheckSeverity.ERROR)
    evaluation = evaluated(instance, check, orders)
    assert not evaluation.passed
    assert evaluation.severity is dg.AssetCheckSeverity.ERROR
    assert evaluation.description == f"0 messages failed, 2 {unsafe}."


def test_by_itself_the_check_is_about_the_last_materialization(
    queue: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    check = build_sqs_lease_check("orders")
    nothing = evaluated(instance, check)
    assert (nothing.passed, nothing.description) == (True, "Not materialized yet.")
    queue.send("bad")
    run_id = dg.materialize([orders], instance=instance, resources={"queue": QUEUE}).run_id
    evaluation = evaluated(instance, check)
    assert (evaluation.passed, evaluation.metadata["run"].value) == (False, run_id)
    queue.send("good")
    dg.materialize([yielded], instance=instance, resources={"queue": QUEUE})
    assert not evaluated(instance, check).passed


@dg.asset
def failing(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0, on_failure="dead_letter") as batch:
        batch.succeed(next(iter(batch)))
        if "fails" in context.run.tags:
            raise ConnectionError


@pytest.mark.parametrize("was_materialized", [False, True])
def test_after_a_run_that_failed_the_check_says_what_became_of_its_messages(
    queue: LeasedQueue, instance: dg.DagsterInstance, was_materialized: bool
) -> None:
    def run(**tags: str) -> str:
        queue.send("a", "b")
        resources = {"queue": QUEUE}
        return dg.materialize([failing], instance=instance, resources=resources, tags=tags, raise_on_error=False).run_id

    if was_materialized:
        run()
    run_id = run(fails="yes")
    evaluation = evaluated(instance, build_sqs_lease_check("failing"))
    assert not evaluation.passed
    assert evaluation.metadata["run"].value == run_id
    assert evaluation.description is not None
    assert f"Run {run_id} failed before it materialized the asset" in evaluation.description
    assert "2 received, 1 deleted, 1 dead-lettered" in evaluation.description
    run()
    assert evaluated(instance, build_sqs_lease_check("failing")).passed


@dg.asset
def tried_again(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    # All that is left of an attempt that was killed while it held two messages.
    report_event(context, "Received 2 messages", {HELD: dg.MetadataValue.int(2)})
    with queue.lease(context, wait=0, linger=0):
        if "fails" in context.run.tags:
            raise ConnectionError


@pytest.mark.parametrize("tags", [{}, {"fails": "yes"}], ids=["tried again", "failed at last"])
def test_a_check_says_what_an_attempt_held_that_was_killed(
    queue: LeasedQueue, instance: dg.DagsterInstance, tags: dict[str, str]
) -> None:
    queue.send("a")
    dg.materialize([tried_again], instance=instance, resources={"queue": QUEUE}, tags=tags, raise_on_error=False)
    evaluation = evaluated(instance, build_sqs_lease_check("tried_again"))
    assert evaluation.passed is not bool(tags)
    assert evaluation.description is not None
    killed = "An attempt that was killed held 2 messages: they come back when their last extension ends."
    assert evaluation.description.endswith(killed)
    assert "unsettled" not in evaluation.description


@pytest.mark.parametrize("rule", [None, "dead_letter"], ids=["given back", "dead-lettered when the step has ended"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["the only lease", "and a good lease after it"])
def test_messages_of_a_block_fail_the_check_when_the_step_survives_its_exception(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, rule: str | None, goes_on: bool
) -> None:
    leased_queues.create("orders", "a", "b")
    leased_queues.create("invoices", "c")

    @dg.asset
    def surviving(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(ConnectionError), queue.lease(context, wait=0, linger=0, on_failure=rule):
            raise ConnectionError
        if goes_on:
            with SqsQueueResource(queue="invoices").lease(context, wait=0, linger=0):
                pass

    evaluation = evaluated(instance, build_sqs_lease_check(surviving), surviving)
    assert not evaluation.passed
    assert evaluation.description == "2 messages failed."
    assert told(evaluation)["sqs/received"] == 2 + goes_on


@dg.asset(check_specs=[dg.AssetCheckSpec("sqs_lease", asset="checked")])
def checked(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
    with queue.lease(context, wait=0, linger=0) as batch:
        batch.fail([message for message in batch if message.body == "bad"], "it is bad")
    return dg.MaterializeResult(check_results=[sqs_lease_check_result(batch)])


@pytest.mark.parametrize("bad", [0, 1])
def test_a_check_of_the_step_itself_is_about_what_failed_so_far(
    queue: LeasedQueue, instance: dg.DagsterInstance, bad: int
) -> None:
    queue.send("good", *["bad"] * bad)
    result = dg.materialize([checked], instance=instance, resources={"queue": QUEUE})
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed is (bad == 0)
    assert evaluation.description == f"{bad} messages failed so far; the messages are settled later."
    assert "sqs/unsettled" not in told(evaluation)


def test_in_a_run_of_a_partition_the_check_is_about_that_run(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    check = build_sqs_lease_check(by_region)
    queue.send("south")
    assert evaluated(instance, check, by_region, partition_key="north").passed
    queue.send("south")
    assert not evaluated(instance, check, by_region, partition_key="south").passed


def test_each_asset_of_a_step_can_be_checked(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    queue.send("a")
    evaluation = evaluated(instance, build_sqs_lease_check("second"), both)
    assert (evaluation.passed, told(evaluation)["sqs/failed"]) == (False, 1)


def test_a_check_is_about_its_own_asset_in_a_run_of_several(instance: dg.DagsterInstance) -> None:
    @dg.multi_asset(specs=[dg.AssetSpec("sound"), dg.AssetSpec("broken")])
    def assets() -> Iterator[dg.MaterializeResult[Any]]:
        for name, failed in (("sound", 0), ("broken", 3)):
            yield dg.MaterializeResult(asset_key=name, metadata={"sqs/queue": "orders", "sqs/failed": failed})

    checks = [build_sqs_lease_check(name) for name in ("sound", "broken")]
    evaluations = dg.materialize([assets, *checks], instance=instance).get_asset_check_evaluations()
    assert {each.asset_key.to_user_string(): each.passed for each in evaluations} == {"sound": True, "broken": False}


def test_an_asset_that_leases_nothing_fails_the_check_and_is_told_what_to_do(instance: dg.DagsterInstance) -> None:
    evaluation = evaluated(instance, build_sqs_lease_check(without_lease), without_lease)
    assert not evaluation.passed
    assert "SqsQueueResource.lease(context)" in str(evaluation.description)


# The queue


def test_a_backlog_within_its_limits_passes(queue: LeasedQueue, instance: dg.DagsterInstance) -> None:
    queue.send("a", "b")
    evaluation = evaluated(instance, build_sqs_backlog_check("orders", QUEUE, max_visible=2))
    assert evaluation.passed
    assert evaluation.description == "Within the limits."
    assert told(evaluation) == {
        "sqs/queue": "orders",
        "sqs/visible": 2,
        "sqs/in_flight": 0,
        "sqs/delayed": 0,
        "sqs/dead_letters": 0,
    }


def test_too_many_visible_messages_and_dead_letters_fail_the_check(
    queue: LeasedQueue, instance: dg.DagsterInstance, leased_queues: LeasedQueues
) -> None:
    queue.send("a", "b")
    leased_queues.sqs.send(queue.dead_letter_url, "poison")
    evaluation = evaluated(instance, build_sqs_backlog_check("orders", QUEUE, max_visible=1))
    assert not evaluation.passed
    assert evaluation.description == "2 visible, more than 1; 1 dead letters, more than 0."
    only_visible = build_sqs_backlog_check("orders", QUEUE, max_visible=2, max_dead_letters=None)
    assert evaluated(instance, only_visible).passed


def test_a_queue_without_dead_letter_queue_passes_and_says_so(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.sqs.create_queue("orders")
    evaluation = evaluated(instance, build_sqs_backlog_check("orders", QUEUE))
    assert (evaluation.passed, evaluation.description) == (
        True,
        "Within the limits, and there is no dead-letter queue.",
    )


def reading(monkeypatch: pytest.MonkeyPatch, error: Exception, refused: Callable[[SqsQueueResource], bool]) -> None:
    read = SqsQueueResource.attributes

    def attributes(queue: SqsQueueResource, **options: Any) -> QueueAttributes:
        if refused(queue):
            raise error
        return read(queue, **options)

    monkeypatch.setattr(SqsQueueResource, "attributes", attributes)


def test_a_dead_letter_queue_that_may_not_be_read_is_not_a_failure(
    queue: LeasedQueue, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading(monkeypatch, AccessDeniedError("denied"), lambda queue: queue.queue.startswith("arn:"))
    evaluation = evaluated(instance, build_sqs_backlog_check("orders", QUEUE))
    assert evaluation.passed
    assert "the dead-letter queue cannot be read" in str(evaluation.description)
    assert "sqs/dead_letters" not in told(evaluation)


def test_a_queue_that_cannot_be_read_fails_the_check_but_not_the_run(
    queue: LeasedQueue, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading(monkeypatch, TransientError("no answer from the queue"), lambda queue: True)
    evaluation = evaluated(instance, build_sqs_backlog_check("orders", QUEUE))
    assert (evaluation.passed, evaluation.description) == (False, "no answer from the queue")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: build_sqs_lease_check("orders", max_failed=-1), "max_failed"),
        (lambda: build_sqs_backlog_check("orders", QUEUE, max_visible=-1), "max_visible"),
        (lambda: build_sqs_backlog_check("orders", QUEUE, max_dead_letters=True), "max_dead_letters"),
        (lambda: build_sqs_backlog_check("orders", QUEUE, max_dead_letters=None), "never fails"),
    ],
)
def test_limits_that_make_no_sense_are_refused_where_the_check_is_defined(
    make: Callable[[], dg.AssetChecksDefinition], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        make()
