"""Steps that fail when their messages are deleted, or settle none: no retry of them is green. Queues are in memory."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
import pytest

from sqs_lease import dead_letter
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.dagster import RetryWithoutMessagesError, SqsQueueResource, build_sqs_lease_check, leased
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.instances import stored_instance
from tests.dagster.retried_jobs import reported

QUEUE = SqsQueueResource(queue="orders")
INVOICES = SqsQueueResource(queue="invoices")
TWICE = dg.RetryPolicy(max_retries=1)


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", "c", visibility_seconds=600)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with stored_instance() as made:
        yield made


class Disk(dg.IOManager):
    """Cannot store anything at first, as often as is said."""

    def __init__(self, *, full: int = 0) -> None:
        self.full = full

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if self.full:
            self.full -= 1
            raise OSError("no space is left")

    def load_input(self, context: dg.InputContext) -> Any: ...


def materialize(
    asset: dg.AssetsDefinition, *checks: dg.AssetChecksDefinition, full: int = 0, **options: Any
) -> dg.ExecuteInProcessResult:
    resources = {"queue": QUEUE, "invoices": INVOICES, "io_manager": Disk(full=full)}
    return dg.materialize([asset, *checks], resources=resources, raise_on_error=False, **options)


def failure(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    return failed.step_failure_data.error_display_string


def told_by(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> str:
    """What the log of the run warns of."""
    entries = instance.all_logs(result.run_id)
    return "\n".join(entry.user_message for entry in entries if entry.level == logging.WARNING)


# A retry that finds nothing


def after_the_block(fails: Callable[[dg.AssetExecutionContext], None]) -> dg.AssetsDefinition:
    """An asset that works on one lease, and on something else then."""

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            pass
        fails(context)

    return orders


def fail_at_first(context: dg.AssetExecutionContext) -> None:
    if context.retry_number == 0:
        raise ConnectionError


def request_a_retry_at_first(context: dg.AssetExecutionContext) -> None:
    if context.retry_number == 0:
        raise dg.RetryRequested(max_retries=1)


@dg.asset(retry_policy=TWICE)
def stored_late(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    with queue.lease(context, wait=0, linger=0) as batch:
        return [message.body for message in batch]


@dg.asset(retry_policy=TWICE)
def done_one_by_one(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0, linger=0) as batch:
        for message in batch:
            batch.succeed(message)
        fail_at_first(context)


@dg.asset(retry_policy=TWICE)
def failed_later(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    with queue.lease(context, wait=0, linger=0) as batch:
        bodies = [message.body for message in batch]
    with queue.lease(context, wait=0, linger=0):
        fail_at_first(context)
    return bodies


@pytest.mark.parametrize(
    "asset",
    [
        after_the_block(fail_at_first),
        after_the_block(request_a_retry_at_first),
        stored_late,
        done_one_by_one,
        failed_later,
    ],
    ids=["work after the block", "a retry requested after the block", "not stored", "deleted singly", "a later lease"],
)
def test_a_retry_that_finds_nothing_fails_where_the_attempt_before_deleted_its_messages_and_failed(
    messages: LeasedQueue, asset: dg.AssetsDefinition
) -> None:
    result = materialize(asset, full=1)
    assert not result.success
    said = failure(result)
    assert RetryWithoutMessagesError.__name__ in said
    assert "deleted 3 messages" in said
    assert "queue" in said
    assert messages.deleted == 3


def test_a_step_may_take_the_error_and_go_on_without_messages(messages: LeasedQueue) -> None:
    done: list[int] = []

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(RetryWithoutMessagesError), queue.lease(context, wait=0, linger=0):
            pass
        fail_at_first(context)
        done.append(context.retry_number)

    assert materialize(orders).success
    assert done == [1]


def test_a_retry_that_finds_other_messages_says_what_was_deleted_before(
    messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0, max_messages=2):
            pass
        fail_at_first(context)

    result = materialize(orders, build_sqs_lease_check(orders), instance=instance)
    assert result.success
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.description is not None
    assert "2 deleted by earlier attempts that failed afterwards" in evaluation.description
    assert evaluation.metadata["sqs/earlier_deleted_then_failed"].value == 2
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/earlier_deleted_then_failed"].value == 2


def two_queues(annotation: object) -> dg.AssetsDefinition:
    """An asset with a lease of each of two queues, of which the second one fails at first."""

    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource, invoices: SqsQueueResource) -> Any:
        with queue.lease(context, wait=0, linger=0):
            pass
        with invoices.lease(context, wait=0, linger=0):
            fail_at_first(context)

    orders.__annotations__["return"] = annotation
    return dg.asset(retry_policy=TWICE)(orders)


def test_a_lease_whose_work_was_done_within_it_is_not_missed_where_a_later_one_failed(
    messages: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    invoices = leased_queues.create("invoices", "x", visibility_seconds=600)
    asset = two_queues(None)
    result = materialize(asset, build_sqs_lease_check(asset))
    assert result.success
    assert (messages.deleted, invoices.deleted) == (3, 1)
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed


@pytest.mark.parametrize("rule", [None, dead_letter()], ids=["given back", "dead-lettered when the step has ended"])
def test_it_is_missed_where_the_step_survived_the_later_one_and_failed_after_it(
    messages: LeasedQueue, leased_queues: LeasedQueues, instance: dg.DagsterInstance, rule: FailureRule | None
) -> None:
    leased_queues.create("invoices", "x", visibility_seconds=600)

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource, invoices: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            pass
        with suppress(ValueError), invoices.lease(context, wait=0, linger=0, on_failure=rule):
            raise ValueError
        fail_at_first(context)

    result = materialize(orders, instance=instance)
    assert RetryWithoutMessagesError.__name__ in failure(result)
    assert "its 3 messages were deleted by then" in told_by(instance, result)


def test_another_exception_that_is_made_of_the_blocks_is_a_failure_of_its_lease(
    messages: LeasedQueue, leased_queues: LeasedQueues, instance: dg.DagsterInstance
) -> None:
    leased_queues.create("invoices", "x", visibility_seconds=600)

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource, invoices: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            pass
        try:
            with invoices.lease(context, wait=0, linger=0):
                fail_at_first(context)
        except ConnectionError:
            raise dg.RetryRequested(max_retries=1)  # noqa: B904 - it is told in any case

    result = materialize(orders, instance=instance)
    assert result.success
    assert told_by(instance, result) == ""


def test_it_is_missed_where_the_step_has_a_value_that_was_never_stored(
    messages: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    invoices = leased_queues.create("invoices", "x", visibility_seconds=600)
    assert RetryWithoutMessagesError.__name__ in failure(materialize(two_queues(int)))
    assert (messages.deleted, len(invoices.visible)) == (3, 1)


def test_a_step_that_succeeded_finds_nothing_when_its_run_is_repeated_and_the_log_warns(
    messages: LeasedQueue,
) -> None:
    with stored_instance(run_retries={"enabled": True}) as instance:
        first = dg.execute_job(dg.reconstructable(reported), instance)
        tags = {"dagster/retry_number": "1", "dagster/parent_run_id": first.run_id, "dagster/root_run_id": first.run_id}
        options = dg.ReexecutionOptions(first.run_id)
        second = dg.execute_job(dg.reconstructable(reported), instance, tags=tags, reexecution_options=options)
        assert (first.success, second.success) == (False, True)
        (said,) = (e.user_message for e in instance.all_logs(second.run_id) if e.level == logging.WARNING)
    assert f"run {first.run_id}, which is repeated, deleted 3 messages" in said


# What the log of the run warns of


@pytest.mark.parametrize("swallowed", [True, False], ids=["swallowed", "not swallowed"])
def test_the_log_warns_of_what_earlier_blocks_deleted_where_a_later_one_raised(
    messages: LeasedQueue, instance: dg.DagsterInstance, swallowed: bool
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
        found: list[str] = []
        for number in range(2):
            survived = suppress(ConnectionError if swallowed else KeyError)
            with survived, queue.lease(context, wait=0, linger=0, max_messages=2) as batch:
                if number:
                    raise ConnectionError
                found += [message.body for message in batch]
        return found

    result = materialize(orders, instance=instance)
    assert result.success is swallowed
    assert "its 2 messages were deleted" in told_by(instance, result)


# The rule of the last attempt


def test_an_exception_that_the_step_survives_settles_by_the_failure_rule_whatever_retries_there_are(
    messages: LeasedQueue,
) -> None:
    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=3))
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(ConnectionError), queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
            raise ConnectionError

    assert materialize(orders).success
    assert messages.dead_letters == ["a", "b", "c"]


def test_a_failure_that_allows_no_retries_is_the_last_attempt_also_outside_of_the_block(messages: LeasedQueue) -> None:
    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(ConnectionError), queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
            raise ConnectionError
        raise dg.Failure("it is bad", allow_retries=False)

    assert not materialize(orders).success
    assert messages.dead_letters == ["a", "b", "c"]


def test_an_exception_that_the_step_survives_settles_by_the_failure_rule_where_runs_are_repeated(
    messages: LeasedQueue,
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(ConnectionError), queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
            raise ConnectionError

    with stored_instance(run_retries={"enabled": True}) as repeating:
        assert materialize(orders, instance=repeating, tags={"dagster/max_retries": "1"}).success
    assert messages.dead_letters == ["a", "b", "c"]


def test_a_retry_that_is_requested_after_another_lease_gives_back_plainly(messages: LeasedQueue) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for number in range(2):
            lease = queue.lease(context, wait=0, linger=0, max_messages=1, on_failure=dead_letter())
            with suppress(ConnectionError), lease:
                if number == context.retry_number == 0:
                    raise ConnectionError
        if context.retry_number == 0:
            raise dg.RetryRequested(max_retries=1)

    assert materialize(orders).success
    assert messages.dead_letters == []
    assert messages.deleted == 3


def test_many_blocks_that_raised_are_not_all_held_until_the_step_ends(leased_queues: LeasedQueues) -> None:
    messages = leased_queues.create("orders", *(str(number) for number in range(40)), visibility_seconds=600)
    seen: list[int] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for _ in range(40):
            lease = queue.lease(context, wait=0, linger=0, max_messages=1, on_failure=dead_letter())
            with suppress(ConnectionError), lease:
                seen.append(len(messages.dead_letters))
                raise ConnectionError

    assert materialize(orders).success
    assert 0 < seen[-1] < 39
    assert len(messages.dead_letters) == 40


# A rule that SQS does not carry out


@pytest.mark.parametrize("swallowed", [True, False], ids=["swallowed", "not swallowed"])
@pytest.mark.parametrize("policy", [None, TWICE], ids=["last attempt", "retried"])
def test_the_log_of_the_run_says_why_a_message_was_not_dead_lettered(
    leased_queues: LeasedQueues, instance: dg.DagsterInstance, swallowed: bool, policy: dg.RetryPolicy | None
) -> None:
    leased_queues.sqs.send(leased_queues.sqs.create_queue("orders", visibility_seconds=600), "a")

    @dg.asset(retry_policy=policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        survived = suppress(ConnectionError if swallowed else KeyError)
        with survived, queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
            raise ConnectionError

    result = materialize(orders, instance=instance)
    assert result.success is swallowed
    said = told_by(instance, result)
    assert "the queue has no dead-letter queue" in said
    assert "orders" in said
    assert "redrive policy" in said


# What a lease that stores its result does not know


def checked(*, blocking: bool, severity: dg.AssetCheckSeverity) -> dg.AssetsDefinition:
    @dg.asset(check_specs=[dg.AssetCheckSpec("complete", asset="orders", blocking=blocking)])
    @leased("queue", wait=0, linger=0)
    def orders(batch: Any) -> dg.MaterializeResult:  # type: ignore[type-arg]
        return dg.MaterializeResult(
            check_results=[dg.AssetCheckResult(passed=False, check_name="complete", severity=severity)]
        )

    return orders


def test_a_blocking_check_of_the_step_that_fails_gives_back(messages: LeasedQueue) -> None:
    result = materialize(checked(blocking=True, severity=dg.AssetCheckSeverity.ERROR))
    assert not result.success
    assert "complete" in failure(result)
    assert (messages.deleted, messages.visible) == (0, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("blocking", "severity"),
    [(False, dg.AssetCheckSeverity.ERROR), (True, dg.AssetCheckSeverity.WARN)],
    ids=["not blocking", "a warning"],
)
def test_another_check_that_fails_holds_nothing_back(
    messages: LeasedQueue, blocking: bool, severity: dg.AssetCheckSeverity
) -> None:
    assert materialize(checked(blocking=blocking, severity=severity)).success
    assert messages.deleted == 3


def test_a_blocking_check_that_a_block_yields_gives_back(messages: LeasedQueue) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("complete", asset="orders", blocking=True)])
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[Any]:
        with queue.lease(context, wait=0, linger=0):
            yield dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=False, check_name="complete")])

    assert not materialize(orders).success
    assert messages.visible == ["a", "b", "c"]


@pytest.mark.parametrize("blocks", [1, 2])
def test_nothing_is_received_after_a_blocking_check_of_the_step_failed(messages: LeasedQueue, blocks: int) -> None:
    done: list[str] = []

    @dg.asset(check_specs=[dg.AssetCheckSpec("complete", asset="orders", blocking=True)])
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[Any]:
        for block in range(blocks):
            if block == blocks - 1:
                yield dg.AssetCheckResult(passed=False, check_name="complete")
            with queue.lease(context, max_messages=1, wait=0, linger=0) as batch:
                done.extend(message.body for message in batch)
        yield dg.MaterializeResult()

    result = materialize(orders)
    assert not result.success
    assert "complete" in failure(result)
    assert (len(done), messages.deleted) == (blocks - 1, blocks - 1)


def test_a_blocking_check_that_failed_in_an_earlier_attempt_does_not_matter(messages: LeasedQueue) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("complete", asset="orders", blocking=True)], retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[Any]:
        yield dg.AssetCheckResult(passed=context.retry_number > 0, check_name="complete")
        fail_at_first(context)
        with queue.lease(context, wait=0, linger=0):
            pass
        yield dg.MaterializeResult()

    assert materialize(orders).success
    assert messages.deleted == 3


def test_a_required_output_that_is_missing_gives_back(messages: LeasedQueue) -> None:
    @dg.multi_asset(outs={"first": dg.AssetOut(), "second": dg.AssetOut()})
    @leased("queue", wait=0, linger=0)
    def both(batch: Any) -> Any:
        yield dg.Output(1, output_name="first")

    result = materialize(both)
    assert not result.success
    assert "second" in failure(result)
    assert messages.visible == ["a", "b", "c"]


def test_an_output_that_is_not_required_may_be_missing(messages: LeasedQueue) -> None:
    @dg.multi_asset(outs={"first": dg.AssetOut(), "second": dg.AssetOut(is_required=False)})
    @leased("queue", wait=0, linger=0)
    def both(batch: Any) -> Any:
        yield dg.Output(1, output_name="first")

    assert materialize(both).success
    assert messages.deleted == 3
