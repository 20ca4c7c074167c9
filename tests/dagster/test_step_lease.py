"""What a lease does while Dagster tries a step or run again; queues are in memory, and Dagster runs in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dagster as dg
import pytest

from sqs_lease import backoff, by_exception, dead_letter, expire, lease
from sqs_lease.core.failure_rules import FailureRule
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster import (
    JobError,
    LeasedBatch,
    MessageFailed,
    RetryWithoutMessagesError,
    SqsQueueResource,
    build_sqs_lease_check,
)
from sqs_lease.testing import LeasedQueue, LeasedQueues
from tests.dagster.instances import stored_instance
from tests.dagster.retried_jobs import retried

QUEUE = SqsQueueResource(queue="orders")
TWICE = dg.RetryPolicy(max_retries=1)

Work = Callable[[LeasedBatch, int], None]


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", "c", visibility_seconds=600)


@contextmanager
def another_consumer() -> Iterator[None]:
    """Have all messages taken by somebody else, who gives them back at the end of the block."""
    with lease("orders", wait=0, linger=0) as others:
        try:
            yield
        finally:
            others.release(list(others))


def asset_over(
    work: Work, on_failure: OnFailure | None = None, retry_policy: dg.RetryPolicy | None = None
) -> dg.AssetsDefinition:
    """An asset that works on one lease: ``work`` gets the batch and the number of the attempt, from 0 on."""

    @dg.asset(retry_policy=retry_policy)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, linger=0, wait=0, on_failure=on_failure) as batch:
            work(batch, context.retry_number)

    return orders


def materialize(asset: dg.AssetsDefinition, *checks: dg.AssetChecksDefinition) -> dg.ExecuteInProcessResult:
    return dg.materialize([asset, *checks], resources={"queue": QUEUE}, raise_on_error=False)


def numbers(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (materialization,) = result.asset_materializations_for_node("orders")
    return {name: value.value for name, value in materialization.metadata.items()}


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


def retrying_outside(inside: Exception | None) -> tuple[dg.AssetsDefinition, list[int]]:
    """An asset that requests its retry when the block has ended; and what its attempts saw."""
    seen: list[int] = []

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        try:
            with queue.lease(context, linger=0, wait=0, on_failure=dead_letter()) as batch:
                seen.append(len(batch))
                if context.retry_number == 0 and inside is not None:
                    raise inside
        except ConnectionError as error:
            raise dg.RetryRequested(max_retries=1) from error
        if context.retry_number == 0:
            raise dg.RetryRequested(max_retries=1)

    return orders, seen


def test_a_retry_that_is_requested_for_an_exception_of_the_block_outside_of_it_gives_back_plainly(
    messages: LeasedQueue,
) -> None:
    asset, seen = retrying_outside(ConnectionError())
    assert materialize(asset).success
    assert seen == [3, 3]
    assert settled(messages) == (3, 0, 0)


def test_exceptions_of_blocks_that_the_step_survives_settle_by_the_failure_rule_when_it_has_ended(
    messages: LeasedQueue,
) -> None:
    seen: list[list[str]] = []

    @dg.asset
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
    assert messages.dead_letters == ["a", "b", "c"]


def test_a_retry_that_is_requested_after_the_block_does_not_undo_its_deletes_and_fails(messages: LeasedQueue) -> None:
    asset, seen = retrying_outside(None)
    assert not materialize(asset).success
    assert seen == [3]
    assert settled(messages) == (3, 0, 0)


def test_messages_that_failed_by_name_are_tried_again_and_the_others_are_done(messages: LeasedQueue) -> None:
    seen: list[list[str]] = []

    def work(batch: LeasedBatch, attempt: int) -> None:
        seen.append([message.body for message in batch])
        if attempt == 0:
            raise MessageFailed([message.message_id for message in batch if message.body == "b"])

    assert materialize(asset_over(work, dead_letter(), TWICE)).success
    assert seen == [["a", "b", "c"], ["b"]]
    assert settled(messages) == (3, 0, 0)


def test_a_message_that_the_work_rejects_is_settled_in_any_attempt_and_counts(messages: LeasedQueue) -> None:
    def work(batch: LeasedBatch, attempt: int) -> None:
        batch.fail([message for message in batch if message.body == "b"], "it is bad")
        if attempt == 0:
            raise ConnectionError

    asset = asset_over(work, dead_letter(), TWICE)
    result = materialize(asset, build_sqs_lease_check(asset))
    assert messages.dead_letters == ["b"]
    told = numbers(result)
    assert {name: told[f"sqs/{name}"] for name in ("received", "deleted", "failed")} == {
        "received": 2,
        "deleted": 2,
        "failed": 0,
    }
    earlier = {"attempts": 1, "received": 3, "deleted": 0, "released": 2, "dead_lettered": 1, "lost": 0, "unsettled": 0}
    assert {name: told[f"sqs/earlier_{name}"] for name in earlier} == earlier
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    assert evaluation.description == "1 messages failed, 2 given back by earlier attempts."
    assert evaluation.metadata["sqs/earlier_dead_lettered"].value == 1


def test_a_first_attempt_says_nothing_of_earlier_ones(messages: LeasedQueue) -> None:
    asset = asset_over(raising(0, ConnectionError()))
    assert not [name for name in numbers(materialize(asset)) if name.startswith("sqs/earlier")]


def test_what_earlier_attempts_gave_back_does_not_fail_the_check(messages: LeasedQueue) -> None:
    asset = asset_over(raising(1, ConnectionError()), dead_letter(), TWICE)
    (evaluation,) = materialize(asset, build_sqs_lease_check(asset)).get_asset_check_evaluations()
    assert evaluation.passed
    assert evaluation.description == "0 messages failed, 3 given back by earlier attempts."


# Attempts that find nothing


def test_a_retry_whose_messages_are_in_the_dead_letter_queue_fails(leased_queues: LeasedQueues) -> None:
    messages = leased_queues.create("orders", "a", "b", max_receive_count=2)
    result = materialize(asset_over(raising(2, ConnectionError()), retry_policy=dg.RetryPolicy(max_retries=2)))
    assert not result.success
    assert RetryWithoutMessagesError.__name__ in failure(result)
    assert "maxReceiveCount" in failure(result)
    assert settled(messages) == (0, 0, 2)


def test_a_retry_whose_messages_another_consumer_has_fails_until_they_are_back(messages: LeasedQueue) -> None:
    seen: list[int] = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=3))
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        if context.retry_number == 1:
            with another_consumer():
                retry(context, queue, seen)
        else:
            retry(context, queue, seen)

    def retry(context: dg.AssetExecutionContext, queue: SqsQueueResource, seen: list[int]) -> None:
        with queue.lease(context, wait=0, linger=0) as batch:
            seen.append(len(batch))
            if context.retry_number == 0:
                raise ConnectionError

    result = dg.materialize([orders], resources={"queue": QUEUE})
    assert result.success
    assert seen == [3, 3]
    assert numbers(result)["sqs/earlier_attempts"] == 2
    assert settled(messages)[0] == 3


def test_a_step_that_leases_until_the_queue_is_empty_may_end_a_retry_so(messages: LeasedQueue) -> None:
    seen: list[int] = []

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        batch: Any = None
        while batch is None or len(batch):
            with queue.lease(context, wait=0, linger=0, max_messages=1) as batch:
                seen.append(len(batch))
                if len(seen) == 2:
                    raise ConnectionError

    assert dg.materialize([orders], resources={"queue": QUEUE}).success
    assert seen == [1, 1, 1, 1, 0]
    assert settled(messages) == (3, 0, 0)


def test_a_value_that_was_not_stored_counts_as_given_back(messages: LeasedQueue) -> None:
    class DiskThatIsFullOnce(dg.IOManager):
        def __init__(self) -> None:
            self.stored: list[Any] = []

        def handle_output(self, context: dg.OutputContext, obj: Any) -> None:
            self.stored.append(obj)
            if len(self.stored) == 1:
                raise OSError("no space is left")

        def load_input(self, context: dg.InputContext) -> None: ...

    @dg.asset(retry_policy=TWICE)
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> Iterator[Any]:
        with queue.lease(context, wait=0, linger=0, on_failure=dead_letter()) as batch:
            yield dg.MaterializeResult(value=len(batch))

    result = dg.materialize([orders], resources={"queue": QUEUE, "io_manager": DiskThatIsFullOnce()})
    assert result.success
    (observation,) = result.get_asset_observation_events()
    told = observation.asset_observation_data.asset_observation.metadata
    assert {name: told[f"sqs/earlier_{name}"].value for name in ("received", "released", "unsettled")} == {
        "received": 3,
        "released": 3,
        "unsettled": 0,
    }
    assert settled(messages) == (3, 0, 0)


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
def instance() -> Iterator[dg.DagsterInstance]:
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
    messages: LeasedQueue, instance: dg.DagsterInstance
) -> None:
    first = run(instance)
    assert will_be_retried(instance, first)
    assert settled(messages) == (0, 3, 0)
    second = run(instance, first.run_id)
    assert not will_be_retried(instance, second)
    assert settled(messages)[1:] == (0, 3)


def test_a_retry_of_a_run_that_finds_nothing_fails(messages: LeasedQueue, instance: dg.DagsterInstance) -> None:
    first = run(instance)
    with another_consumer():
        second = run(instance, first.run_id)
    (failed,) = (event for event in second.all_events if event.is_step_failure)
    assert RetryWithoutMessagesError.__name__ in failed.step_failure_data.error_display_string
