"""Jobs whose steps share a batch; what goes wrong in which step is in the configuration of each run.

Dagster reads the annotations of ops, so this module has no postponed ones.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager

import dagster as dg
from pydantic import Field

from sqs_lease import by_exception, dead_letter
from sqs_lease.core.policies import Fixed, RenewalPolicy
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster import JobError, LeasedBatch, MessageFailed, SqsQueueResource
from sqs_lease.dagster._internals import Context
from sqs_lease.dagster.executor import sqs_lease_executor

QUEUE = SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"), region_name="us-east-1")


def leased(context: Context) -> AbstractContextManager[LeasedBatch]:
    """As by a resource of the step."""
    queue: SqsQueueResource = QUEUE.process_config_and_initialize()
    return queue.lease(context, wait=0, linger=0)


class Work(dg.Config):
    seconds: float = Field(default=0.0, description="How long it takes.")
    fails: list[str] = Field(default=[], description="Bodies of messages that it fails one by one.")
    names: list[str] = Field(default=[], description="Bodies of messages that it names in a MessageFailed.")
    raises: bool = Field(default=False, description="Whether it raises a ZeroDivisionError.")
    breaks: bool = Field(default=False, description="Whether it raises an OSError, of which no rule says anything.")
    has_no_spark: bool = Field(default=False, description="Whether it raises a JobError.")
    is_killed: bool = Field(default=False, description="Whether its process is killed.")
    wrong_tries: int = Field(default=9, description="How many of its tries go wrong.")
    fails_at_last: list[str] = Field(default=[], description="Bodies of messages that the tries after those fail.")
    receive_count: int = Field(default=1, description="How often the messages were received, this run included.")

    def on(self, context: dg.OpExecutionContext, batch: LeasedBatch) -> int:
        """Do it."""
        time.sleep(self.seconds)
        # No other consumer had the messages, and no try of this run received them again.
        assert all(message.receive_count == self.receive_count for message in batch)
        ids = {message.body: message.message_id for message in batch}
        if context.retry_number < self.wrong_tries:
            batch.fail([ids[body] for body in self.fails], "it is not an order")
            if self.is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.names:
                raise MessageFailed([ids[body] for body in self.names])
            if self.breaks:
                raise OSError("the database is away")
            if self.has_no_spark:
                raise JobError("no executor is left")
            if self.raises:
                raise ZeroDivisionError
        else:
            batch.fail([ids[body] for body in self.fails_at_last], "it is not an order")
        return len(batch)


def work(context: dg.OpExecutionContext, config: Work) -> int:
    with leased(context) as batch:
        return config.on(context, batch)


@dg.op
def check(context: dg.OpExecutionContext, config: Work) -> int:
    return work(context, config)


@dg.op(retry_policy=dg.RetryPolicy(max_retries=1))
def load(context: dg.OpExecutionContext, config: Work) -> int:
    return work(context, config)


@dg.op
def report(context: dg.OpExecutionContext, config: Work, checked: int, loaded: int) -> int:
    return work(context, config)


@dg.op
def load_first(context: dg.OpExecutionContext) -> None:
    """Works on the first message only, because a loop over a generator ends early."""

    def messages() -> Iterator[str]:
        with leased(context) as batch:
            for message in batch:
                yield message.message_id

    for _ in messages():
        break


class Behind(dg.Config):
    names: list[str] = Field(default=[], description="Bodies of messages that it names; else it raises another error.")


@dg.op
def fail_behind(context: dg.OpExecutionContext, config: Behind) -> None:
    """Fails after its block."""
    with leased(context) as batch:
        ids = [message.message_id for message in batch if message.body in config.names]
    raise MessageFailed(ids) if ids else ZeroDivisionError


@dg.op
def look_away() -> None:
    """Does not look at the messages."""


@dg.op(out=dg.DynamicOut(str))
def split(context: dg.OpExecutionContext) -> Iterator[dg.DynamicOutput[str]]:
    with leased(context) as batch:
        for message in batch:
            yield dg.DynamicOutput(message.message_id, mapping_key=message.body)


@dg.op
def load_one(context: dg.OpExecutionContext, message_id: str) -> str:
    with leased(context) as batch:
        (body,) = [message.body for message in batch if message.message_id == message_id]
        if body == "bad":
            batch.fail(message_id, "it is not an order")
        return body


@dg.op(out={"worrying": dg.Out(str, is_required=False)})
def look(context: dg.OpExecutionContext, bodies: list[str]) -> Iterator[dg.Output[str]]:
    if "worrying" in bodies:
        yield dg.Output("worrying", "worrying")


@dg.op
def complain(context: dg.OpExecutionContext, body: str) -> None:
    """Is skipped where nothing is worrying."""


@dg.asset
def checked(context: dg.AssetExecutionContext) -> int:
    with leased(context) as batch:
        return len(batch)


@dg.asset
def stored(context: dg.AssetExecutionContext, checked: int) -> None:
    with leased(context) as batch:
        assert len(batch) == checked


@dg.multi_asset(specs=[dg.AssetSpec("left"), dg.AssetSpec("right")], can_subset=True)
def both(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
    with leased(context) as batch:
        assert len(batch)
    for key in context.selected_asset_keys:
        yield dg.MaterializeResult(asset_key=key)


@dg.asset
def lonely(context: dg.AssetExecutionContext) -> None:
    with leased(context) as batch:
        assert len(batch)


BY_EXCEPTION = by_exception({ZeroDivisionError: dead_letter(), MessageFailed: dead_letter()})


def executor(
    wait: float = 0.0, policy: RenewalPolicy | None = None, on_failure: OnFailure = BY_EXCEPTION
) -> dg.ExecutorDefinition:
    return sqs_lease_executor(
        QUEUE,
        # Only the run worker reads it.
        workspace=os.environ.get("ORDERS_WORKSPACE", "/var/lib/orders"),
        max_messages=10,
        wait=wait,
        linger=0,
        policy=policy,
        on_failure=on_failure,
    )


def orders() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def orders() -> None:
        """Two steps at a time, then one."""
        report(check(), load())

    return orders


def eager() -> dg.JobDefinition:
    @dg.job(executor_def=executor(policy=Fixed(visibility=600, every=0.2)))
    def eager() -> None:
        """The same, and its messages are extended more often than they have to be."""
        report(check(), load())

    return eager


def alone() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def alone() -> None:
        """Has one step, which may be tried twice."""
        load()

    return alone


def spelled() -> dg.JobDefinition:
    @dg.job(executor_def=executor(on_failure="dead_letter"))
    def spelled() -> None:
        """Has the name of its failure rule."""
        load()

    return spelled


def tenants() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def tenants() -> None:
        """Is made while the queue is another one."""
        load()

    return tenants


def patient() -> dg.JobDefinition:
    @dg.job(executor_def=executor(wait=600.0))
    def patient() -> None:
        """Waits for messages."""
        load()

    return patient


def careless() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def careless() -> None:
        """Has nothing to do with its messages."""
        look_away()

    return careless


def hasty() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def hasty() -> None:
        """Does not look at all of its messages."""
        load_first()

    return hasty


def behind() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def behind() -> None:
        """Fails after its block."""
        fail_behind()

    return behind


def spread() -> dg.JobDefinition:
    @dg.job(executor_def=executor())
    def spread() -> None:
        """A step a message, and one that may be skipped."""
        complain(look(split().map(load_one).collect()))

    return spread


def assets() -> dg.JobDefinition:
    """One asset after the other."""
    job = dg.define_asset_job("assets", executor_def=executor())
    return dg.Definitions(assets=[checked, stored], jobs=[job]).resolve_job_def("assets")


def pair() -> dg.JobDefinition:
    """Two assets of one step."""
    job = dg.define_asset_job("pair", executor_def=executor())
    return dg.Definitions(assets=[both], jobs=[job]).resolve_job_def("pair")


def everything() -> dg.Definitions:
    """Assets without a job: Dagster makes one, by which the web server materializes them."""
    return dg.Definitions(assets=[checked, stored, lonely], executor=executor())
