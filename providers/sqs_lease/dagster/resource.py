"""A queue as a Dagster resource: the access to it, and leases of its messages in ops and assets."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from sqs_lease.blocking import LeasedBatch, queue_attributes
from sqs_lease.core.durations import Duration
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster._internals import Context
from sqs_lease.dagster.queue_access import access_to
from sqs_lease.dagster.retries import failure_rule
from sqs_lease.dagster.step_lease import QueueLease
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import queue_reference

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


class SqsQueueResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """One queue. Missing settings come from boto3's usual places: environment, configuration files, instance role.

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
    wait between attempts without regard to the lease's deadline, so the lease repeats its calls itself, as urgently as
    the deadline requires. And there are no keys: use ``profile_name``, ``role_arn``, the environment or the instance's
    role.

    A subclass may override :meth:`client`, to reach AWS in another way: leases, sensors, checks and the executor all
    use it. Outside of Dagster's runs, ``process_config_and_initialize()`` makes the resource ready.
    """

    queue: str = Field(description="The queue's name, ARN or URL.")
    region_name: str | None = Field(default=None, description="The AWS region.")
    endpoint_url: str | None = Field(default=None, description="The URL of SQS, for a custom endpoint.")
    profile_name: str | None = Field(default=None, description="A profile of the AWS configuration files.")
    role_arn: str | None = Field(
        default=None, description="A role to assume; it is assumed again before its credentials expire."
    )
    role_session_name: str = Field(default="sqs-lease", description="The name of the role's sessions in CloudTrail.")
    use_ssl: bool = Field(default=True, description="Whether to use TLS if endpoint_url has no scheme.")
    verify: bool | None = Field(
        default=None,
        description="Whether TLS certificates are verified, as by default. AWS_CA_BUNDLE names a file of them.",
    )

    def __init__(self, **settings: Any) -> None:
        """Take the settings.

        Raises:
            TypeError: There is no such setting.
        """
        known = type(self).model_fields
        if unknown := sorted(settings.keys() - known):
            near = {name: get_close_matches(name, known, n=1) for name in unknown}
            named = [f"{name!r} ({close[0]!r}?)" if close else repr(name) for name, close in near.items()]
            raise TypeError(
                f"{type(self).__name__} has no setting {', '.join(named)}; it has {', '.join(known)}. There are no "
                "keys: use profile_name, role_arn, the environment or the instance's role"
            )
        super().__init__(**settings)

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
                f"queue of {type(self).__name__} is empty: give the queue's name, ARN or URL. If it is an EnvVar, its "
                "environment variable is empty in the process that Dagster works in"
            )

    def attributes(self, *, timeout: Duration = 30.0) -> QueueAttributes:
        """Read the queue's attributes, such as its number of messages; nothing is received.

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
    ) -> AbstractContextManager[LeasedBatch]:
        """Work on a batch in an op or asset, which is invisible to other consumers until the step ends.

        If the run's executor (:func:`sqs_lease_executor <sqs_lease.dagster.executor.sqs_lease_executor>`) holds
        messages of the queue for the run, the block works on those, like every other step of the run. They are settled
        when the run has ended; see :class:`RunBatch <sqs_lease.dagster.run_batch.leased_batch.RunBatch>` for the ways
        to settle them in a step. The arguments of this method do not apply then, and the run's log names those that
        were given. The rest of this text is about runs without such a batch.

        The block receives. If a router started the run
        (:func:`build_sqs_router <sqs_lease.dagster.router.build_sqs_router>`), it takes up all of the router's messages
        for the run instead, and a later attempt takes up those that the one before it left. A thread of this process
        extends the leases. **They end with the step**: when it has succeeded, and its IO managers have stored its
        values, the messages are deleted. If it fails they are given back; with ``MessageFailed`` only those that it
        names. While Dagster tries again (``RetryPolicy``, ``RetryRequested``, run retries), and if that is not known,
        they are visible again at once, and the next attempt receives them; ``on_failure`` is for the last attempt. With
        it, a ``JobError`` does not dead-letter messages, unless ``by_exception`` names it. If a block raises an
        exception and the step goes on, the block has still failed: its messages are settled by ``on_failure`` when the
        step has ended.

        ``batch.fail(ids, reason)`` fails single messages for good, in any attempt. It only notes them; the work on the
        others goes on. ``batch.succeed(ids)`` deletes at once, for steps that work on batch after batch: the results of
        the messages must be stored by then. Up to 100 leases of a step may be open at once.

        When the run is terminated, all are visible again at once. If the process is killed, they are visible again
        when their last extension ends.

        If SQS refuses to settle messages, the step fails, once, after its values are stored. A message that cannot be
        dead-lettered is visible again.

        The materialization (or the outputs of an op) has the step's numbers of received and failed messages. When the
        step has ended, its assets get an observation with :func:`lease_metadata` over all leases of the step.

        Outside of a step, as in a notebook or a script with ``build_op_context()``, the lease ends with its block.

        Args:
            context: The context of the op or asset.
            max_messages: Most messages to receive; 10 by default.
            wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
            linger: How long to wait for more after the first; 1 s by default. 0 takes only the messages of the first
                answer.
            policy: When to extend: a renewal policy or its name; ``Growing`` by default.
            visibility: The visibility timeout to receive with, 1 s to 12 hours; the queue's own by default.
            on_failure: The rule for failed messages after the last attempt: a rule such as ``dead_letter()``, its
                name, or a mapping such as ``{"kind": "backoff", "initial": 30}``; visible again at once by default.

        Returns:
            A context manager for one ``with`` statement. It gives the batch, empty if no message came.

        Raises:
            ValueError: An argument is out of range.
            TypeError: An argument is of another type.
            BatchFolderError: The run's batch cannot be read, or ``sqs_lease_executor`` holds it and the run worker did
                not start this process.

        The ``with`` statement raises

        - ``BatchFolderError`` if the run's batch is no longer there, because the run came too late;
        - ``sqs_lease.sqs.errors.SqsError`` if the queue cannot be used; the text names it and says what to do;
        - ``ValueError`` if ``on_failure`` may dead-letter, and the queue has no redrive policy;
        - ``RuntimeError`` if the step has 100 open leases, or has ended while a thread of it went on.
        """
        arguments = {
            "max_messages": max_messages,
            "wait": wait,
            "linger": linger,
            "policy": policy,
            "visibility": visibility,
            "on_failure": on_failure,
        }
        _check_context(context)
        self._refuse_no_queue()
        queue_reference(self.queue)
        options = LeaseOptions.of(
            max_messages=max_messages,
            wait=wait,
            linger=linger,
            policy=policy,
            visibility=visibility,
            on_failure=failure_rule(on_failure),
        )
        return QueueLease(self, context, options, _given(arguments))


def check_queue_resource(queue: object, owner: str) -> None:
    """Refuse an argument that is not a queue resource; ``owner`` is what takes it, for the error.

    Raises:
        TypeError: It is of another type.
    """
    if not isinstance(queue, SqsQueueResource):
        # The value is not shown, because another resource may have a secret.
        raise TypeError(
            f"{owner} takes an SqsQueueResource, not {type(queue).__name__!r}: SqsQueueResource(queue=...) with the "
            "queue's name, ARN or URL"
        )


def _check_context(context: object) -> None:
    if not hasattr(context, "op_execution_context"):
        raise TypeError(
            f"lease() takes the context of the op or asset that works on the messages, not {type(context).__name__!r}: "
            "write queue.lease(context) in its function. Outside of ops and assets, use sqs_lease.lease()"
        )


def _given(arguments: Mapping[str, object]) -> list[str]:
    """Return the names of arguments of :meth:`SqsQueueResource.lease` that differ from the defaults."""
    parameters = inspect.signature(SqsQueueResource.lease).parameters
    return [name for name, value in arguments.items() if value != parameters[name].default]
