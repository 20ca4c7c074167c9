"""A lease in a step ends with the step, not with its block; queues are in memory, and Dagster runs in this process.

tests/processes/dagster has the same on real processes.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from sqs_lease import backoff, by_exception, dead_letter, expire
from sqs_lease.blocking import LeaseBlock, OwnLeasedBatch
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster import (
    JobError,
    LeasedBatch,
    MessageFailed,
    SqsQueueResource,
    build_sqs_lease_check,
)
from sqs_lease.dagster.step_lease import MOST_OPEN
from sqs_lease.testing import AuditKind, LeasedQueue, LeasedQueues
from tests.dagster.instances import stored_instance
from tests.dagster.lease_numbers import lease_numbers
from tests.dagster.refusals import refuse_dead_letters
from tests.dagster.retried_jobs import retried
from tests.keeper.test_telemetry import Published, published

QUEUE = SqsQueueResource(queue="orders")
TWICE = dg.RetryPolicy(max_retries=1)

Work = Callable[[LeasedBatch, int], None]


__all__ = ["published"]


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", "c", visibility_seconds=600)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def asset_over(
    work: Work, on_failure: OnFailure | None = None, retry_policy: dg.RetryPolicy | None = None
) -> dg.AssetsDefinition:
    """An asset that works on one lease: ``work`` gets the batch and the number of the attempt, from 0 on."""

    @dg.asset(retry_policy=retry_policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0, wait=0, on_failure=on_failure) as batch:
            work(batch, context.retry_number)

    return orders


class Disk(dg.IOManager):
    """Cannot store anything at first, as often as is said; and says which messages were deleted by then."""

    def __init__(self, messages: LeasedQueue | None = None, *, full: int = 0) -> None:
        self.messages = messages
        self.full = full
        self.stored: list[Any] = []
        self.deleted: list[int] = []

    def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
        if self.messages is not None:
            self.deleted.append(self.messages.deleted)
        if self.full:
            self.full -= 1
            raise OSError("no space is left")
        self.stored.append(obj)

    def load_input(self, context: dg.InputContext) -> Any: ...


def materialize(
    asset: dg.AssetsDefinition, *checks: dg.AssetChecksDefinition, disk: Disk | None = None, **options: Any
) -> dg.ExecuteInProcessResult:
    resources = {"queue": QUEUE, "io_manager": disk or Disk()}
    return dg.materialize([asset, *checks], resources=resources, raise_on_error=False, **options)


def failure(result: dg.ExecuteInProcessResult) -> str:
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    return failed.step_failure_data.error_display_string


def raising(times: int, error: Exception) -> Work:
    def work(batch: LeasedBatch, attempt: int) -> None:
        if attempt < times:
            raise error

    return work


def settled(messages: LeasedQueue) -> tuple[int, int, int]:
    """How many are deleted, visible and dead letters."""
    return messages.deleted, len(messages.visible), len(messages.dead_letters)


@pytest.mark.parametrize("rule", [dead_letter(), backoff(), expire()], ids=["dead_letter", "backoff", "expire"])
def test_the_failure_rule_waits_for_the_last_attempt(messages: LeasedQueue, rule: FailureRule) -> None:
    seen: list[int] = []

    def work(batch: LeasedBatch, attempt: int) -> None:
        seen.append(len(batch))
        if attempt == 0:
            raise ConnectionError

    result = materialize(asset_over(work, rule, dg.RetryPolicy(max_retries=2)))
    assert result.success
    assert seen == [3, 3]
    assert settled(messages) == (3, 0, 0)


def test_the_last_attempt_settles_by_the_failure_rule(messages: LeasedQueue) -> None:
    result = materialize(asset_over(raising(3, ConnectionError()), dead_letter(), dg.RetryPolicy(max_retries=2)))
    assert not result.success
    assert settled(messages)[1:] == (0, 3)


@pytest.mark.parametrize(
    ("error", "policy"),
    [
        (ConnectionError(), None),
        (dg.Failure("no", allow_retries=False), TWICE),
        (dg.DagsterInvariantViolationError("no"), TWICE),
        (dg.RetryRequested(max_retries=0), TWICE),
    ],
    ids=["no policy", "a failure that allows none", "an error of Dagster's", "requested too often"],
)
def test_where_dagster_does_not_try_again_the_first_attempt_is_the_last(
    messages: LeasedQueue, error: Exception, policy: dg.RetryPolicy | None
) -> None:
    assert not materialize(asset_over(raising(9, error), dead_letter(), policy)).success
    assert settled(messages)[1:] == (0, 3)


def test_where_retries_are_disabled_the_first_attempt_is_the_last(messages: LeasedQueue) -> None:
    job = dg.define_asset_job("job", [asset := asset_over(raising(9, ConnectionError()), dead_letter(), TWICE)])
    definitions = dg.Definitions([asset], jobs=[job], resources={"queue": QUEUE}, executor=dg.in_process_executor)
    made = definitions.resolve_job_def("job")
    config: dict[str, Any] = {"execution": {"config": {"retries": {"disabled": {}}}}}
    assert not made.execute_in_process(run_config=config, raise_on_error=False).success
    assert settled(messages)[1:] == (0, 3)


def test_a_retry_that_the_block_requests_gives_back_plainly(messages: LeasedQueue) -> None:
    asset = asset_over(raising(1, dg.RetryRequested(max_retries=1)), dead_letter())
    assert materialize(asset).success
    assert settled(messages) == (3, 0, 0)


def fail_at_first(context: dg.AssetExecutionContext) -> None:
    if context.retry_number == 0:
        raise ConnectionError


def test_a_retry_that_is_requested_for_an_exception_of_the_block_outside_of_it_gives_back_plainly(
    messages: LeasedQueue,
) -> None:
    seen: list[int] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        try:
            with queue.lease(context, linger=0, wait=0, on_failure=dead_letter()) as batch:
                seen.append(len(batch))
                fail_at_first(context)
        except ConnectionError as error:
            raise dg.RetryRequested(max_retries=1) from error

    assert materialize(orders).success
    assert seen == [3, 3]
    assert settled(messages) == (3, 0, 0)


def test_exceptions_of_blocks_that_the_step_survives_settle_by_the_failure_rule_when_it_has_ended(
    messages: LeasedQueue,
) -> None:
    seen: list[list[str]] = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=3))
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for _ in range(3):
            with (
                suppress(ConnectionError),
                queue.lease(context, max_messages=1, linger=0, wait=0, on_failure=dead_letter()) as batch,
            ):
                assert len(batch) == 1
                seen.append(messages.dead_letters)
                raise ConnectionError

    assert dg.materialize([orders], resources={"queue": QUEUE}).success
    assert seen == [[], [], []]
    assert sorted(messages.dead_letters) == ["a", "b", "c"]


# The value is stored before the messages are deleted


def returning(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    with queue.lease(context, wait=0, linger=0) as batch:
        return [message.body for message in batch]


def returning_later(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
    with queue.lease(context, wait=0, linger=0) as batch:
        bodies = [message.body for message in batch]
    return sorted(bodies)


def yielding(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.Output[list[str]]]:
    with queue.lease(context, wait=0, linger=0) as batch:
        yield dg.Output([message.body for message in batch])


def yielding_later(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.Output[list[str]]]:
    with queue.lease(context, wait=0, linger=0) as batch:
        bodies = [message.body for message in batch]
    yield dg.Output(bodies)


FUNCTIONS = [returning, returning_later, yielding, yielding_later]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_value_of_a_function_is_stored_and_then_the_messages_are_deleted(
    messages: LeasedQueue, function: Callable[..., Any]
) -> None:
    disk = Disk(messages)
    assert materialize(dg.asset(name="orders")(function), disk=disk).success
    assert (disk.deleted, disk.stored) == ([0], [["a", "b", "c"]])
    assert messages.deleted == 3


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_value_that_cannot_be_stored_costs_no_message(messages: LeasedQueue, function: Callable[..., Any]) -> None:
    assert not materialize(dg.asset(name="orders")(function), disk=Disk(full=1)).success
    assert settled(messages) == (0, 3, 0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_retry_of_a_step_with_a_value_that_could_not_be_stored_receives_the_messages_again(
    messages: LeasedQueue, function: Callable[..., Any]
) -> None:
    disk = Disk(full=1)
    assert materialize(dg.asset(name="orders", retry_policy=TWICE)(function), disk=disk).success
    assert disk.stored == [["a", "b", "c"]]
    assert settled(messages) == (3, 0, 0)


def test_work_after_the_block_that_fails_costs_no_message(messages: LeasedQueue) -> None:
    seen: list[int] = []

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0) as batch:
            seen.append(len(batch))
        if context.retry_number == 0:
            raise ConnectionError

    assert materialize(orders).success
    assert seen == [3, 3]
    assert settled(messages) == (3, 0, 0)


# With a RetryPolicy, Dagster raises a RetryRequested in place of the last attempt's exception.
@pytest.mark.parametrize("retry_policy", [None, TWICE], ids=["no retries", "RetryPolicy"])
@pytest.mark.parametrize(
    ("raised", "dead_letters"),
    [(ValueError, 3), (JobError("no executor is left"), 0), (lambda ids: MessageFailed(ids[:1]), 1)],
    ids=["by its class", "JobError", "by name"],
)
def test_a_step_that_fails_after_its_block_settles_by_the_rule_for_its_exception(
    messages: LeasedQueue, retry_policy: dg.RetryPolicy | None, raised: Any, dead_letters: int
) -> None:
    rule = by_exception({ValueError: dead_letter(), Exception: dead_letter()})

    @dg.asset(retry_policy=retry_policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0, on_failure=rule) as batch:
            ids = [message.message_id for message in batch]
        raise raised if isinstance(raised, Exception) else raised(ids)

    assert not materialize(orders).success
    assert len(messages.dead_letters) == dead_letters
    # The others are done if the exception names messages, and else given back.
    assert len(messages.visible) == (0 if dead_letters else 3)


@pytest.mark.parametrize("retry_policy", [None, TWICE], ids=["no retries", "RetryPolicy"])
def test_messages_that_a_survived_exception_did_not_name_are_not_deleted_when_the_step_fails_later(
    messages: LeasedQueue, retry_policy: dg.RetryPolicy | None
) -> None:
    @dg.asset(retry_policy=retry_policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        rule = by_exception({MessageFailed: dead_letter()})
        with suppress(MessageFailed), queue.lease(context, wait=0, linger=0, on_failure=rule) as batch:
            raise MessageFailed([message for message in batch if message.body == "a"])
        raise ConnectionError

    assert not materialize(orders).success
    assert (messages.visible, messages.dead_letters) == (["b", "c"], ["a"])


@pytest.mark.parametrize("is_within", [True, False], ids=["within the block", "after it"])
def test_an_exception_for_which_a_step_asks_for_one_retry_too_many_settles_by_its_rule(
    messages: LeasedQueue, is_within: bool
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        error = dg.RetryRequested(max_retries=0)
        with queue.lease(context, wait=0, linger=0, on_failure=by_exception({ValueError: dead_letter()})):
            if is_within:
                raise error from ValueError()
        raise error from ValueError()

    assert not materialize(orders).success
    assert settled(messages)[1:] == (0, 3)


def test_earlier_leases_of_a_step_that_fails_in_a_later_one_are_given_back_as_well(messages: LeasedQueue) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for number in range(2):
            with queue.lease(context, wait=0, linger=0, max_messages=1):
                if number:
                    raise ConnectionError

    assert not materialize(orders).success
    assert settled(messages) == (0, 3, 0)


def test_a_blocking_check_of_the_step_that_fails_gives_back(messages: LeasedQueue) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("complete", asset="orders", blocking=True)])
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult:  # type: ignore[type-arg]
        with queue.lease(context, wait=0, linger=0):
            return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=False, check_name="complete")])

    result = materialize(orders)
    assert not result.success
    assert "complete" in failure(result)
    assert settled(messages) == (0, 3, 0)


def test_a_required_output_that_is_missing_gives_back(messages: LeasedQueue) -> None:
    @dg.multi_asset(outs={"first": dg.AssetOut(), "second": dg.AssetOut()})
    def both(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[Any]:
        with queue.lease(context, wait=0, linger=0):
            yield dg.Output(1, output_name="first")

    assert not materialize(both).success
    assert settled(messages) == (0, 3, 0)


def test_each_mapped_step_ends_its_own_lease(leased_queues: LeasedQueues) -> None:
    messages = leased_queues.create("orders", "a", "b", visibility_seconds=600)

    @dg.op(out=dg.DynamicOut(int))
    def numbers() -> Iterator[dg.DynamicOutput[int]]:
        for number in range(2):
            yield dg.DynamicOutput(number, mapping_key=str(number))

    @dg.op
    def load(context: dg.OpExecutionContext, queue: SqsQueueResource, number: int) -> int:
        with queue.lease(context, wait=0, linger=0, max_messages=1):
            pass
        if number:
            raise ConnectionError
        return number

    @dg.job(resource_defs={"queue": QUEUE, "io_manager": dg.mem_io_manager})
    def loading() -> None:
        numbers().map(load)

    assert not loading.execute_in_process(raise_on_error=False).success
    assert settled(messages) == (1, 1, 0)


def test_a_value_that_a_dynamic_output_carries_is_stored_before_its_message_is_deleted(messages: LeasedQueue) -> None:
    @dg.op(out=dg.DynamicOut(str))
    def split(context: dg.OpExecutionContext, queue: SqsQueueResource) -> Iterator[dg.DynamicOutput[str]]:
        with queue.lease(context, wait=0, linger=0) as batch:
            for message in batch:
                yield dg.DynamicOutput(message.body, mapping_key=message.body)

    disk = Disk(messages)

    @dg.job(resource_defs={"queue": QUEUE, "io_manager": disk})
    def splitting() -> None:
        split()

    assert splitting.execute_in_process().success
    assert (disk.stored, disk.deleted) == (["a", "b", "c"], [0, 0, 0])
    assert messages.deleted == 3


def test_an_output_that_is_stored_saves_no_message_where_the_next_one_cannot_be(messages: LeasedQueue) -> None:
    @dg.op(out={"first": dg.Out(), "second": dg.Out(io_manager_key="full")})
    def both(context: dg.OpExecutionContext, queue: SqsQueueResource) -> Iterator[dg.Output[int]]:
        with queue.lease(context, wait=0, linger=0):
            yield dg.Output(1, "first")
            yield dg.Output(2, "second")

    disk = Disk()

    @dg.job(resource_defs={"queue": QUEUE, "io_manager": disk, "full": Disk(full=1)})
    def loading() -> None:
        both()

    assert not loading.execute_in_process(raise_on_error=False).success
    assert disk.stored == [1]
    assert settled(messages) == (0, 3, 0)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_of_some_assets_of_a_step_decides_on_the_messages_of_its_lease(
    messages: LeasedQueue, instance: dg.DagsterInstance, fails: bool
) -> None:
    specs = [dg.AssetSpec(name, skippable=True) for name in ("first", "second")]

    @dg.multi_asset(specs=specs, can_subset=True)
    def both(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.MaterializeResult[None]]:
        with queue.lease(context, wait=0, linger=0):
            for key in context.selected_asset_keys:
                yield dg.MaterializeResult(asset_key=key)
            if fails:
                raise ConnectionError

    assert materialize(both, selection=["first"], instance=instance).success is not fails
    assert settled(messages) == ((0, 3, 0) if fails else (3, 0, 0))
    observed = [bool(instance.fetch_observations(spec.key, limit=1).records) for spec in specs]
    assert observed == [not fails, False]


@pytest.mark.parametrize("leasing", [0, 1], ids=["the first op", "the last op"])
def test_a_lease_in_an_op_of_a_graph_asset_ends_with_that_op(messages: LeasedQueue, leasing: int) -> None:
    seen: list[int] = []

    @dg.op
    def work(context: dg.OpExecutionContext, queue: SqsQueueResource, number: int) -> int:
        seen.append(messages.deleted)
        if number == leasing:
            with queue.lease(context, wait=0, linger=0):
                pass
        return number + 1

    @dg.op
    def zero() -> int:
        return 0

    @dg.graph_asset
    def orders() -> Any:
        return work.alias("last")(work.alias("first")(zero()))

    assert dg.materialize([orders], resources={"queue": QUEUE}).success
    assert seen == [0, 0 if leasing else 3]
    assert settled(messages) == (3, 0, 0)


def test_a_coroutine_function_leases_as_well(messages: LeasedQueue) -> None:
    @dg.asset
    async def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
        with queue.lease(context, wait=0, linger=0) as batch:
            return [message.body for message in batch]

    disk = Disk(messages)
    assert materialize(orders, disk=disk).success
    assert (disk.deleted, disk.stored) == ([0], [["a", "b", "c"]])
    assert messages.deleted == 3


# Steps that work on batch after batch


def test_messages_that_succeeded_within_the_block_are_deleted_then(messages: LeasedQueue) -> None:
    seen: list[int] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for _ in range(3):
            with queue.lease(context, wait=0, linger=0, max_messages=1) as batch:
                batch.succeed(batch)
            seen.append(messages.deleted)
        raise ConnectionError

    assert not materialize(orders).success
    assert seen == [1, 2, 3]


def test_a_step_may_lease_as_often_as_it_likes_if_its_batches_are_done(leased_queues: LeasedQueues) -> None:
    messages = leased_queues.create("orders", *map(str, range(MOST_OPEN + 5)), visibility_seconds=600)

    @dg.op
    def load(context: dg.OpExecutionContext, queue: SqsQueueResource) -> None:
        for _ in range(MOST_OPEN + 5):
            with queue.lease(context, wait=0, linger=0, max_messages=1) as batch:
                batch.succeed(batch)

    @dg.job(resource_defs={"queue": QUEUE})
    def loading() -> None:
        load()

    assert loading.execute_in_process().success
    assert messages.deleted == MOST_OPEN + 5


def test_too_many_open_leases_are_refused_with_the_remedy(
    messages: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sqs_lease.dagster.step_lease.MOST_OPEN", 2)

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        for _ in range(3):
            with queue.lease(context, wait=0, linger=0, max_messages=1):
                pass

    result = materialize(orders)
    assert not result.success
    assert "batch.succeed(messages)" in failure(result)
    assert settled(messages) == (0, 3, 0)


# Single messages


def test_a_message_that_is_failed_is_settled_when_the_step_has_ended(messages: LeasedQueue) -> None:
    seen: list[list[str]] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            bad = next(message for message in batch if message.body == "b")
            batch.fail(bad, "it is bad")
            assert not batch.still_held(bad)
        seen.append(messages.dead_letters)

    assert materialize(orders).success
    assert seen == [[]]
    assert (messages.deleted, messages.visible, messages.dead_letters) == (3, [], ["b"])


def test_messages_that_failed_by_name_are_tried_again_and_the_others_are_done(messages: LeasedQueue) -> None:
    seen: list[list[str]] = []

    def work(batch: LeasedBatch, attempt: int) -> None:
        seen.append([message.body for message in batch])
        if attempt == 0:
            raise MessageFailed([message.message_id for message in batch if message.body == "b"])

    assert materialize(asset_over(work, dead_letter(), TWICE)).success
    assert seen == [["a", "b", "c"], ["b"]]
    assert settled(messages) == (3, 0, 0)


def test_the_next_attempt_has_all_messages_if_the_step_survived_the_exception_that_named_some(
    messages: LeasedQueue,
) -> None:
    seen: list[list[str]] = []

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with suppress(MessageFailed), queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            seen.append([message.body for message in batch])
            raise MessageFailed(next(iter(batch)))
        fail_at_first(context)

    assert materialize(orders).success
    assert seen == [["a", "b", "c"]] * 2
    assert (messages.deleted, messages.visible, messages.dead_letters) == (3, [], ["a"])


def test_a_message_that_the_work_rejects_is_settled_in_any_attempt(
    messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    def work(batch: LeasedBatch, attempt: int) -> None:
        batch.fail([message for message in batch if message.body == "b"], "it is bad")
        if attempt == 0:
            raise ConnectionError

    asset = asset_over(work, dead_letter(), TWICE)
    result = materialize(asset, build_sqs_lease_check(asset), instance=instance)
    assert messages.dead_letters == ["b"]
    told = lease_numbers(instance, result)
    assert (told["sqs/received"], told["sqs/deleted"]) == (2, 2)
    (evaluation,) = result.get_asset_check_evaluations()
    assert evaluation.passed


# Refusals of the service


@pytest.fixture
def without_dead_letters(leased_queues: LeasedQueues) -> LeasedQueue:
    """A queue whose redrive policy is taken away while a step works on its messages."""
    return leased_queues.create("orders", "a", "bad", "c", visibility_seconds=600)


def failing_the_bad(seen: list[list[str]]) -> Callable[..., Any]:
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> list[str]:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            for message in batch:
                if message.body == "bad":
                    batch.fail(message, "it is bad")
            seen.append([message.body for message in batch])
        return seen[-1]

    return orders


def test_a_dead_letter_that_is_refused_is_visible_again_and_takes_no_good_message_along(
    without_dead_letters: LeasedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_dead_letters(monkeypatch)
    seen: list[list[str]] = []
    disk = Disk()
    asset = dg.asset(name="orders", retry_policy=dg.RetryPolicy(max_retries=2))(failing_the_bad(seen))
    result = materialize(asset, disk=disk)
    assert not result.success
    assert "sqs:SendMessage" in failure(result)
    assert (without_dead_letters.visible, without_dead_letters.deleted) == (["bad"], 2)
    # Once: the policy is for the function, which has succeeded.
    assert seen == disk.stored == [["a", "bad", "c"]]


def test_where_the_step_fails_itself_the_log_of_the_run_says_what_was_refused(
    without_dead_letters: LeasedQueue, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    refuse_dead_letters(monkeypatch)
    result = materialize(asset_over(raising(9, ConnectionError()), dead_letter()), instance=instance)
    assert not result.success
    assert sorted(without_dead_letters.visible) == ["a", "bad", "c"]
    told = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.WARNING]
    assert any("sqs:SendMessage" in text and "orders" in text for text in told)


@pytest.mark.parametrize(
    "rule",
    [
        dead_letter(),
        "dead_letter",
        by_exception({ValueError: dead_letter()}),
        by_exception({ValueError: expire()}, otherwise=dead_letter()),
    ],
    ids=["rule", "name", "by exception", "otherwise"],
)
def test_a_rule_that_the_queue_cannot_carry_out_is_refused_before_anything_is_received(
    leased_queues: LeasedQueues, rule: OnFailure
) -> None:
    url = leased_queues.sqs.create_queue("orders")
    leased_queues.sqs.send(url, "a")
    result = materialize(asset_over(raising(0, ConnectionError()), rule))
    assert "Give the queue a redrive policy" in failure(result)
    with dg.build_op_context() as context, pytest.raises(ValueError, match="redrive policy"):
        QUEUE.lease(context, on_failure=rule).__enter__()


# Without a with statement


def test_a_lease_that_is_not_entered_fails_the_step(messages: LeasedQueue) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        queue.lease(context)

    result = materialize(orders)
    assert "with queue.lease(context) as batch" in failure(result)
    assert settled(messages) == (0, 3, 0)


@pytest.mark.parametrize("use", [list, len, lambda lease: lease.fail([], "")], ids=["iterated", "counted", "settled"])
def test_a_lease_that_is_not_entered_is_not_a_batch(messages: LeasedQueue, use: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"with queue\.lease"):
        use(QUEUE.lease(dg.build_op_context()))


# Blocks that do not end


def first_of(context: dg.AssetExecutionContext, queue: SqsQueueResource, kept: list[Any]) -> None:
    """Works on the first message only, because a loop over a generator ends early."""

    def messages_of_the_lease() -> Iterator[str]:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            for message in batch:
                batch.succeed(message)
                yield message.body

    bodies = messages_of_the_lease()
    assert next(bodies) == "a"
    kept.append(bodies)


def closed(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    kept: list[Any] = []
    first_of(context, queue, kept)
    kept.pop().close()


KEPT: list[Any] = []


def suspended(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    first_of(context, queue, KEPT)


@pytest.mark.parametrize("function", [closed, suspended])
def test_messages_of_a_block_that_does_not_end_are_given_back_though_the_step_succeeds(
    messages: LeasedQueue, instance: dg.DagsterInstance, function: Callable[..., Any]
) -> None:
    result = materialize(dg.asset(name="orders")(function), instance=instance)
    KEPT.clear()
    assert result.success
    assert settled(messages) == (1, 2, 0)
    told = [entry.message for entry in instance.all_logs(result.run_id)]
    assert any("2 given back" in text and "before the end of its block" in text for text in told)


def test_a_block_need_not_end_after_all_its_messages_were_settled(
    messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        batch = queue.lease(context, wait=0, linger=0).__enter__()
        batch.succeed(batch)

    result = materialize(orders, instance=instance)
    assert result.success
    assert settled(messages) == (3, 0, 0)
    assert not any("before the end of its block" in entry.message for entry in instance.all_logs(result.run_id))


def test_a_lease_that_a_thread_enters_after_the_step_has_ended_receives_nothing(
    messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    has_ended, refused = threading.Event(), []

    def late(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        has_ended.wait()
        with pytest.raises(RuntimeError, match="step orders has ended") as error, queue.lease(context, wait=0):
            pass
        refused.append(error)

    threads = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, max_messages=1, linger=0):
            threads.append(threading.Thread(target=late, args=(context, queue)))
        threads[0].start()

    assert materialize(orders, instance=instance).success
    has_ended.set()
    threads[0].join()
    assert refused
    assert settled(messages) == (1, 2, 0)


def test_a_lease_that_still_receives_when_the_step_ends_gives_back_what_comes(
    messages: LeasedQueue, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_ended, begins = threading.Event(), threading.Event()
    received = LeaseBlock.__enter__

    def slow(block: LeaseBlock) -> OwnLeasedBatch:
        batch = received(block)
        begins.set()
        has_ended.wait()
        return batch

    monkeypatch.setattr(LeaseBlock, "__enter__", slow)
    refused = []

    def late(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with pytest.raises(RuntimeError, match="step orders has ended") as error, queue.lease(context, linger=0):
            pass
        refused.append(error)

    threads = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        threads.append(threading.Thread(target=late, args=(context, queue)))
        threads[0].start()
        begins.wait()

    assert materialize(orders, instance=instance).success
    has_ended.set()
    threads[0].join()
    assert refused
    assert settled(messages) == (0, 3, 0)


# An interruption


def test_a_step_that_is_interrupted_after_its_block_gives_all_back_whatever_the_failure_rule(
    messages: LeasedQueue,
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()):
            pass
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt, DagsterExecutionInterruptedError):
        assert not materialize(orders).success
    assert settled(messages) == (0, 3, 0)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, DagsterExecutionInterruptedError])
def test_a_step_that_is_interrupted_while_its_value_is_stored_gives_all_back_whatever_the_failure_rule(
    messages: LeasedQueue, interruption: type[BaseException]
) -> None:
    class Slow(Disk):
        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            raise interruption

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> int:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            return len(batch)

    with suppress(KeyboardInterrupt, DagsterExecutionInterruptedError):
        assert not materialize(orders, disk=Slow()).success
    assert settled(messages) == (0, 3, 0)


# Jobs that could not do their work


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (dead_letter(), (0, 3, 0)),
        (by_exception({ValueError: expire()}, otherwise=dead_letter()), (0, 3, 0)),
        (by_exception({Exception: dead_letter()}), (0, 3, 0)),
        (by_exception({JobError: dead_letter()}), (0, 0, 3)),
        (expire(), (0, 0, 0)),
    ],
    ids=["dead_letter", "otherwise", "any exception", "by its name", "expire"],
)
def test_a_job_that_failed_dead_letters_nothing_unless_a_rule_names_it(
    messages: LeasedQueue, rule: FailureRule, expected: tuple[int, int, int]
) -> None:
    assert not materialize(asset_over(raising(1, JobError("no executor is left")), rule)).success
    assert (0, *settled(messages)[1:]) == expected


# Rules by their names


@pytest.mark.parametrize("spelled", ["dead_letter", {"kind": "dead_letter"}], ids=str)
def test_a_rule_may_be_named_and_the_exception_of_the_work_goes_on(messages: LeasedQueue, spelled: OnFailure) -> None:
    result = materialize(asset_over(raising(1, ConnectionError("the database is away")), spelled))
    assert "the database is away" in failure(result)
    assert settled(messages)[1:] == (0, 3)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("dead_lettr", "on_failure must be one of release, backoff, expire, dead_letter"),
        ({"kind": "backoff", "inital": 3}, "inital"),
        (dead_letter, "on_failure must be a failure rule such as dead_letter()"),
    ],
    ids=["name", "argument", "type"],
)
def test_a_wrong_rule_is_refused_before_anything_is_received(messages: LeasedQueue, wrong: Any, said: str) -> None:
    assert said in failure(materialize(asset_over(raising(0, ConnectionError()), wrong)))
    assert len(messages.visible) == 3


# Retries of runs


@pytest.fixture
def repeating() -> Iterator[dg.DagsterInstance]:
    with stored_instance(run_retries={"enabled": True}) as made:
        yield made


def run(instance: dg.DagsterInstance, repeats: str | None = None) -> dg.JobExecutionResult:
    """Run the job, or have a failed run of it repeated as Dagster's daemon does."""
    tags = {"dagster/max_retries": "1"}
    if repeats is None:
        return dg.execute_job(dg.reconstructable(retried), instance, tags=tags)
    tags |= {"dagster/retry_number": "1", "dagster/parent_run_id": repeats, "dagster/root_run_id": repeats}
    options = dg.ReexecutionOptions(repeats)
    return dg.execute_job(dg.reconstructable(retried), instance, tags=tags, reexecution_options=options)


def will_be_retried(instance: dg.DagsterInstance, result: dg.JobExecutionResult) -> bool:
    stored = instance.get_run_by_id(result.run_id)
    assert stored is not None
    return stored.tags["dagster/will_retry"] == "true"


def test_the_failure_rule_waits_for_the_last_retry_of_the_run(
    messages: LeasedQueue, repeating: dg.DagsterInstance
) -> None:
    first = run(repeating)
    assert will_be_retried(repeating, first)
    assert settled(messages) == (0, 3, 0)
    second = run(repeating, first.run_id)
    assert not will_be_retried(repeating, second)
    assert settled(messages)[1:] == (0, 3)


def test_of_two_attempts_in_one_process_each_settles_its_own_messages_once(
    messages: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    result = materialize(asset_over(raising(1, ConnectionError()), retry_policy=TWICE))
    assert result.success
    assert settled(messages) == (3, 0, 0)
    ends = [entry.kind for entry in leased_queues.sqs.trail().entries()]
    assert (ends.count(AuditKind.RELEASED), ends.count(AuditKind.DELETED)) == (3, 3)


def test_work_after_an_output_that_was_yielded_within_the_block_still_decides_on_the_messages(
    messages: LeasedQueue,
) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[dg.Output[int]]:
        with queue.lease(context, wait=0, linger=0) as batch:
            yield dg.Output(len(batch))
            assert messages.deleted == 0
            raise ConnectionError

    disk = Disk(messages)
    assert not materialize(orders, disk=disk).success
    assert disk.stored == [3]
    assert settled(messages) == (0, 3, 0)


@pytest.mark.parametrize(("exit_code", "deleted"), [(0, 3), (1, 0)], ids=["that succeeds", "that fails"])
def test_a_program_behind_pipes_works_on_the_messages_until_its_end(
    messages: LeasedQueue, exit_code: int, deleted: int
) -> None:
    program = (
        "import dagster_pipes\n"
        "with dagster_pipes.open_dagster_pipes() as pipes: pipes.report_asset_materialization()\n"
        f"exit({exit_code})"
    )

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> dg.MaterializeResult[None]:
        with queue.lease(context, wait=0, linger=0):
            session = dg.PipesSubprocessClient().run(context=context, command=[sys.executable, "-c", program])
            assert messages.deleted == 0
            return session.get_materialize_result()

    assert materialize(orders).success is (exit_code == 0)
    assert settled(messages) == (deleted, 3 - deleted, 0)


@pytest.mark.parametrize(("fails", "seen"), [(False, (3, 0, 0)), (True, (0, 3, 0))], ids=["success", "failure"])
def test_when_hooks_run_the_messages_are_settled(
    messages: LeasedQueue, fails: bool, seen: tuple[int, int, int]
) -> None:
    found: list[tuple[int, int, int]] = []

    @dg.success_hook
    def succeeded(context: dg.HookContext) -> None:
        found.append(settled(messages))

    @dg.failure_hook
    def failed(context: dg.HookContext) -> None:
        found.append(settled(messages))

    @dg.op
    def load(context: dg.OpExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            if fails:
                raise ConnectionError

    @dg.job(resource_defs={"queue": QUEUE}, hooks={succeeded, failed})
    def loading() -> None:
        load()

    loading.execute_in_process(raise_on_error=False)
    assert found == [seen]


def test_one_span_has_a_lease_from_the_receive_to_the_settlement_after_its_block(
    messages: LeasedQueue, published: Published
) -> None:
    tracer = published.tracers.get_tracer("test")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0) as batch, tracer.start_as_current_span("work"):
            batch.fail(next(iter(batch)), "torn")
        assert [span.name for span in published.others()] == ["work"]

    with tracer.start_as_current_span("step"):
        assert materialize(orders).success
    span, (work, step) = published.span(), published.others()
    assert span.parent is not None
    assert work.parent is not None
    assert step.context is not None
    assert span.context is not None
    assert (span.parent.span_id, work.parent.span_id) == (step.context.span_id, span.context.span_id)
    assert span.end_time is not None
    assert work.end_time is not None
    assert span.end_time > work.end_time
    assert span.attributes is not None
    assert (span.attributes["sqs_lease.deleted"], span.attributes["sqs_lease.released"]) == (2, 1)
