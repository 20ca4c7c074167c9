"""A queue as a Dagster resource: how it is reached, and leases of its messages in ops and assets."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import dagster as dg
from pydantic import Field

from sqs_lease.blocking import LeasedBatch, lease_block, queue_attributes
from sqs_lease.core.durations import Duration
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import OnFailure, resolve_failure_rule
from sqs_lease.dagster._internals import Context, add_metadata, step_key
from sqs_lease.dagster.access_errors import Entered, access_to
from sqs_lease.dagster.attempts import StepLease
from sqs_lease.dagster.metadata import combined_metadata, lease_metadata
from sqs_lease.dagster.reexecution import refuse_where_steps_are_left_out
from sqs_lease.dagster.run_batch.leased_batch import HeldBatch, batch_of_run, joined
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import LeaseSettings
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import queue_reference

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


class LeaseArguments(TypedDict, total=False):
    """The arguments of :meth:`SqsQueueResource.lease`, apart from the context."""

    max_messages: int
    wait: Duration
    linger: Duration
    policy: RenewalPolicy | str | None
    visibility: Duration | None
    on_failure: OnFailure | None
    on_resume: Literal["refuse", "receive"]


class SqsQueueResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """One queue. Settings that are not given are boto3's usual: environment, configuration files, instance role.

    For example::

        @dg.asset
        def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:
            with orders_queue.lease(context, max_messages=500) as batch:
                for message in batch:
                    load(message.body)

        defs = dg.Definitions(
            assets=[orders],
            resources={"orders_queue": SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE"))},
        )

    The settings are those of dagster-aws's resources, with two exceptions. There is no ``max_attempts``: boto3 would
    wait between attempts where no lease sees it, so the lease repeats its calls itself, as urgently as it has to. And
    there are no keys: take ``profile_name``, ``role_arn``, the environment or the instance's role.

    A subclass may override :meth:`client`, to reach AWS in another way: leases, sensors, checks and the executor all
    use it. Where Dagster does not hand the resource to code, ``process_config_and_initialize()`` makes it ready.
    """

    queue: str = Field(description="The queue's name, ARN or URL.")
    region_name: str | None = Field(default=None, description="The AWS region.")
    endpoint_url: str | None = Field(default=None, description="The URL of SQS, for a custom endpoint.")
    profile_name: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    role_arn: str | None = Field(
        default=None, description="A role to assume; it is assumed again before its credentials expire."
    )
    role_session_name: str = Field(default="sqs-lease", description="What CloudTrail calls the role's sessions.")
    use_ssl: bool = Field(default=True, description="Whether to use TLS where endpoint_url does not say so.")
    verify: bool | None = Field(
        default=None,
        description="Whether TLS certificates are verified, as by default. AWS_CA_BUNDLE names a file of them.",
    )

    def client(self) -> SQSClient:
        """Make a boto3 client of SQS, with timeouts made for leases. The caller closes it.

        Raises:
            ValueError: ``queue`` is empty.
            sqs_lease.sqs.errors.SqsError: It cannot be made; the text names the queue and says what to do.
        """
        self._refuse_no_queue()
        access = AwsAccess(
            region_name=self.region_name,
            endpoint_url=self.endpoint_url,
            profile_name=self.profile_name,
            role_arn=self.role_arn,
            role_session_name=self.role_session_name,
            use_ssl=self.use_ssl,
            verify=self.verify,
        )
        with access_to(self):
            return boto3_client.make_client(access, queue=self.queue)

    def _refuse_no_queue(self) -> None:
        if not self.queue.strip():
            raise ValueError(
                f"queue of {type(self).__name__} is empty: give the queue's name, ARN or URL. Where it is an EnvVar, "
                "its environment variable is set to nothing in the process that Dagster works in"
            )

    def attributes(self, *, timeout: Duration = 30.0) -> QueueAttributes:
        """Read what the queue says of itself, such as how many messages it has; nothing is received.

        Args:
            timeout: How long that may take in all; 30 s by default.

        Raises:
            ValueError: ``queue`` is not a queue name, URL or ARN.
            sqs_lease.sqs.errors.SqsError: The queue cannot be read; the text names it and says what to do.
        """
        self._refuse_no_queue()
        with access_to(self):
            return queue_attributes(self.queue, timeout=timeout, client=self.client())

    def lease(
        self,
        context: Context,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        wait: Duration = DEFAULT_WAIT_SECONDS,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        policy: RenewalPolicy | str | None = None,
        visibility: Duration | None = None,
        on_failure: OnFailure | None = None,
        on_resume: Literal["refuse", "receive"] = "refuse",
    ) -> AbstractContextManager[LeasedBatch]:
        """Work on a batch in an op or asset, which is invisible to others until the block ends.

        Where somebody holds messages of the queue for the run, the block works on those, like every other step of the
        run: the job's executor (:func:`sqs_lease_executor <sqs_lease.dagster.executor.sqs_lease_executor>`) or the
        lease sensor that started the run. They are settled when the run has ended; see
        :class:`RunBatch <sqs_lease.dagster.run_batch.leased_batch.RunBatch>` for what a step says of them meanwhile.
        The executor or sensor says how many there are, how they are extended and what becomes of failed ones: the
        arguments of this method apply to runs without such a batch only, and the run's log names those that do not.
        What follows is for those runs.

        The block receives. A thread of this process extends the leases. At the end of the block the messages are
        deleted. If it raises they are given back instead; with ``MessageFailed`` only those that it names. While
        Dagster tries again (``RetryPolicy``, ``RetryRequested``, run retries) they are visible again at once, and the
        next attempt receives them; ``on_failure`` is for the last attempt. With it, a ``JobError`` dead-letters
        nothing, unless ``by_exception`` names it. Single messages are failed for good, in any attempt, by
        ``batch.fail(ids, reason)`` while the others go on.

        When the run is terminated, all are visible again at once. If the process is killed, they are visible again
        when their last extension ends.

        A step that fails while its generator is suspended in the block (because what it yielded could not be stored)
        gives back at once, before Dagster drops the generator.

        A value that the function *returns* is stored by its IO manager after the block, when the messages are deleted:
        if that fails, they are gone, and the run's log has a warning. Decorate the function with
        :func:`sqs_lease.dagster.leased`, or store within the block, or yield the value there: ``yield dg.Output(...)``
        or ``yield dg.MaterializeResult(value=...)``, which comes back when it is stored.

        After the block, the materialization (or the outputs of an op) gets :func:`lease_metadata`, over all leases of
        the step; an asset that was yielded within the block gets an observation with it instead.

        Args:
            context: The context of the op or asset.
            max_messages: Most messages to receive; 10 by default.
            wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
            linger: How long to wait for more once one came; 1 s by default. 0 takes what the first answer brought.
            policy: When to extend: a renewal policy or its name; ``Growing`` by default.
            visibility: The visibility timeout to receive with, 1 s to 12 hours; the queue's own by default.
            on_failure: What becomes of failed messages after the last attempt: a rule such as ``dead_letter()``, its
                name, or a mapping such as ``{"kind": "backoff", "initial": 30}``; visible again at once by default.
            on_resume: What to do in a run that repeats another one and leaves out a step before or after this one
                which gave back messages of the queue there: refuse, the default, or receive, for a step whose work
                depends on no other.

        Returns:
            A context manager for one ``with`` statement. It gives the batch, empty if no message came.

        Raises:
            ValueError: An argument is out of range.
            TypeError: An argument is of another type.
            BatchFolderError: The run's batch cannot be read, or ``sqs_lease_executor`` holds it and the run worker did
                not start this process.

        The ``with`` statement raises

        - ``BatchFolderError`` where the run's batch is being settled, because the run came too late;
        - ``ResumedRunError`` where the run leaves out steps, or other assets of this step, that would never see the
          messages;
        - ``RetryWithoutMessagesError`` where this attempt received nothing, and the one before it received messages and
          failed;
        - ``sqs_lease.sqs.errors.SqsError`` where the queue cannot be used; the text names it and says what to do;
        - ``SettlementError`` where the block succeeded, and the service refused to delete some of its messages.
        """
        arguments: LeaseArguments = {
            "max_messages": max_messages,
            "wait": wait,
            "linger": linger,
            "policy": policy,
            "visibility": visibility,
            "on_failure": on_failure,
            "on_resume": on_resume,
        }
        _check_context(context)
        self._refuse_no_queue()
        queue_reference(self.queue)
        options = lease_options(self.queue, arguments)
        held = batch_of_run(context, self.queue)
        if held is None:
            return self._received(context, options, on_resume, on_failure)
        return self._joined(context, held, _given(arguments))

    @contextmanager
    def _joined(self, context: Context, held: HeldBatch, given: Collection[str]) -> Iterator[LeasedBatch]:
        with joined(context, held) as batch:
            context.log.info("Works on %d messages of %s: the batch of the run", len(batch), batch.queue_url)
            if given:
                context.log.info(
                    "The holder of the run's batch decides on it: %s of this lease do not apply", ", ".join(given)
                )
            yield batch

    @contextmanager
    def _received(
        self, context: Context, options: LeaseOptions, on_resume: str, on_failure: OnFailure | None
    ) -> Iterator[LeasedBatch]:
        if on_resume == "refuse" and (key := step_key(context)) is not None:
            refuse_where_steps_are_left_out(context.instance, context.run, key, self.queue)
        step = StepLease(context, on_failure)
        step.refuse_to_receive()
        settings = LeaseSettings(queue=self.queue, options=replace(options, on_failure=step.rule))
        block = lease_block(settings, client=self.client())
        step.watch(block)
        try:
            with ExitStack() as leaving:
                batch = leaving.enter_context(Entered(block, self))
                try:
                    step.received(batch)
                    yield batch
                    step.refuse_failed_checks()
                except GeneratorExit:
                    raise
                except BaseException as error:
                    if step.raised(error):
                        # It is settled when the step has ended: only then is it known what on_failure is for.
                        leaving.pop_all()
                    raise
        finally:
            # The generator may be closed long after the step has failed, when nobody takes log lines of its run.
            if not isinstance(sys.exception(), GeneratorExit):
                step.ended(sys.exception())
                step.warn_of_unsettled()
        self._add_metadata(context, batch, step)

    def _add_metadata(self, context: Context, batch: LeasedBatch, step: StepLease) -> None:
        if step_key(context) is None:
            return
        try:
            queue = self.attributes()
        except SqsError as error:
            # The work is done and settled; that it cannot be counted is no reason to fail it.
            context.log.warning("What is left in the queue is not known: %s", error)
            queue = None
        metadata = {**lease_metadata(batch, queue), **step.metadata_of_earlier_attempts()}
        add_metadata(context, metadata, combine=combined_metadata)


def check_queue_resource(queue: object, whose: str) -> None:
    """Check what is to be a queue where it is written.

    Args:
        queue: What was given.
        whose: What takes it, for the error.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(queue, SqsQueueResource):
        # Not shown: another resource may have a secret.
        raise TypeError(
            f"{whose} takes an SqsQueueResource, not {type(queue).__name__!r}: SqsQueueResource(queue=...) with the "
            "queue's name, ARN or URL"
        )


def lease_options(queue: str, arguments: LeaseArguments) -> LeaseOptions:
    """Check arguments of :meth:`SqsQueueResource.lease` where they are written, and fill in the defaults.

    Args:
        queue: What they are for, for errors.
        arguments: The arguments.

    Raises:
        TypeError: One is unknown, or of another type.
        ValueError: One is out of range.
    """
    if unknown := sorted(arguments.keys() - LeaseArguments.__annotations__.keys()):
        raise TypeError(f"a lease of {queue!r} takes no argument {', '.join(map(repr, unknown))}")
    options: dict[str, Any] = {**arguments}
    _check_on_resume(options.pop("on_resume", "refuse"))
    on_failure = resolve_failure_rule(options.pop("on_failure", None))
    return LeaseOptions.of(**options, on_failure=on_failure)


def _check_context(context: object) -> None:
    if not hasattr(context, "op_execution_context"):
        raise TypeError(
            f"lease() takes the context of the op or asset that works on the messages, not {type(context).__name__!r}: "
            "write queue.lease(context) in its function. Where no op or asset works, take sqs_lease.lease()"
        )


def _given(arguments: LeaseArguments) -> list[str]:
    """Which arguments of :meth:`SqsQueueResource.lease` are not as they are by default."""
    parameters = inspect.signature(SqsQueueResource.lease).parameters
    return [name for name, value in arguments.items() if value != parameters[name].default]


def _check_on_resume(on_resume: str) -> None:
    if on_resume not in ("refuse", "receive"):
        raise ValueError(f"on_resume must be 'refuse' or 'receive', not {on_resume!r}")
