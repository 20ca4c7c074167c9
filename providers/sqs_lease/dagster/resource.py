"""A queue as a Dagster resource: the access to it, and leases of its messages in ops and assets.

:meth:`SqsQueueResource.lease` gives a :class:`QueueLease`, the context manager that a user enters. Where the executor
holds the messages of the run, its block joins that batch (``run_batch/leased_batch.py``). Outside of a step, it is the
block of a plain lease. In all other cases it is a :class:`StepLease <sqs_lease.dagster.step_lease.StepLease>`, which
receives, or takes up the batch of a router (``run_batch/batch_of_run.py``), and ends with its step.

The last part makes errors about the access to a queue helpful: they name the setting of the resource, and its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import dagster as dg
from pydantic import Field

from sqs_lease.blocking import LeaseBlock, LeasedBatch, OwnLeasedBatch, lease_block, queue_attributes
from sqs_lease.core.durations import Duration
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster._internals import Context, step_key
from sqs_lease.dagster.retries import failure_rule
from sqs_lease.dagster.run_batch.batch_of_run import HeldBatch, RoutedBatch, batch_of_run
from sqs_lease.dagster.run_batch.leased_batch import joined
from sqs_lease.dagster.step_lease import Attempt, RecordingBatch, StepLease
from sqs_lease.keeper.open_queue import without_dead_letter_queue
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import LeaseSettings
from sqs_lease.sqs import client as boto3_client
from sqs_lease.sqs.client import AwsAccess
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    ConfigurationError,
    CredentialsError,
    EndpointError,
    EndpointUnreachableError,
    QueueNotFoundError,
    SqsError,
    WrongRegionError,
)
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
        arguments: dict[str, Any] = {
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
        options = LeaseOptions.of(**{**arguments, "on_failure": failure_rule(on_failure)})
        return QueueLease(self, context, options, _given(arguments))


_ABOUT_RECEIVE: Final = ("max_messages", "wait", "linger")
"""Arguments of a lease that do not apply to a batch that was received before."""


class QueueLease(AbstractContextManager[LeasedBatch]):
    """The result of :meth:`SqsQueueResource.lease`: for one ``with`` statement, which gives the batch.

    Args:
        resource: The queue.
        context: The context of the op or asset.
        options: The options of the lease.
        given: The arguments that differ from the defaults, for the log of a lease that does not receive.

    Raises:
        BatchFolderError: See :func:`batch_of_run <sqs_lease.dagster.run_batch.batch_of_run.batch_of_run>`.
    """

    def __init__(
        self, resource: SqsQueueResource, context: Context, options: LeaseOptions, given: Sequence[str]
    ) -> None:
        self._resource = resource
        self._context = context
        self._options = options
        self._given = given
        key = step_key(context)
        self._found = batch_of_run(context, key, resource.queue)
        self._attempt = None if key is None else Attempt.of(context, key)
        self._entered: AbstractContextManager[LeasedBatch] | None = None

    def __enter__(self) -> LeasedBatch:
        if self._entered is not None:
            raise RuntimeError(f"This lease of {self._resource.queue} was used already: call lease() for each block")
        if self._attempt is not None:
            self._attempt.entered()
        with access_to(self._resource):
            self._entered = self._opened()
            return self._entered.__enter__()

    def _opened(self) -> AbstractContextManager[LeasedBatch]:
        if isinstance(self._found, HeldBatch):
            return joined(self._context, self._found, self._attempt, self._given)
        if self._attempt is None:
            return block_of(self._resource, self._options)
        about_receive = [name for name in self._given if name in _ABOUT_RECEIVE]
        if self._found is not None and about_receive:
            given = ", ".join(about_receive)
            self._context.log.info("A router received the batch of this run: %s of this lease do not apply", given)
        routed = None if self._found is None else self._attempt.still_left(self._found)
        block = block_of(self._resource, self._options, passed_on=routed, batch=RecordingBatch)
        return StepLease(self._attempt, block, routed, self._resource.attributes)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None if self._entered is None else self._entered.__exit__(kind, error, traceback)

    def __iter__(self) -> NoReturn:
        raise self._without_with()

    def __len__(self) -> NoReturn:
        raise self._without_with()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._without_with()

    def _without_with(self) -> TypeError:
        return TypeError(
            f"lease(context) of {self._resource.queue} is for a with statement, which receives the messages and gives "
            "the batch: `with queue.lease(context) as batch:`"
        )


def block_of(
    resource: SqsQueueResource,
    options: LeaseOptions,
    *,
    passed_on: RoutedBatch | None = None,
    batch: type[OwnLeasedBatch] | None = None,
) -> LeaseBlock:
    """Return the block of a lease: it receives, or takes up a batch that was passed on.

    Raises:
        ValueError: The failure rule may dead-letter, and the queue has no redrive policy.
        BatchFolderError: The batch is gone, or the run came too late.
        sqs_lease.sqs.errors.SqsError: The queue cannot be used.
    """
    client = resource.client()
    adopts = None
    if passed_on is not None:
        # The lease would refuse it, too, but a batch that was taken up by then would be away until its leases end.
        if options.on_failure.may_dead_letter and resource.attributes().dead_letter_arn is None:
            raise ValueError(without_dead_letter_queue(resource.queue))
        adopts = passed_on.take_up()
    return lease_block(LeaseSettings(queue=resource.queue, options=options, adopts=adopts), client=client, batch=batch)


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


# Errors about the access to a queue, with a remedy in Dagster's words: the setting of the resource, and its place


_PROCESS: Final = "the process that Dagster works in (the code server for sensors, run workers and steps for all else)"

_NO_CREDENTIALS: Final = (
    "Set profile_name of {resource}, or give a role or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to {process}."
)

_INSTEAD: Final = {
    "WrongRegion": "Set region_name of {resource} to the region of the queue, or leave it out: where {process} has no "
    "region, it is that of the ARN or the URL.",
    "NoRegionError": "Set region_name of {resource}, or AWS_DEFAULT_REGION in {process}, or name the queue by its ARN "
    "or its URL at AWS.",
    "ProfileNotFound": "Correct profile_name of {resource}, or AWS_PROFILE in {process}, or add the profile to the AWS "
    "configuration file there.",
    "LoginError": _NO_CREDENTIALS,
    "NoAuthTokenError": _NO_CREDENTIALS,
    "NoCredentialsError": _NO_CREDENTIALS,
    "PartialCredentialsError": _NO_CREDENTIALS,
    "SSOError": _NO_CREDENTIALS,
}
"""Remedies in place of the general ones, by the error's code."""

_ABOUT_ACCESS: Final = (
    AccessDeniedError,
    ConfigurationError,
    CredentialsError,
    EndpointError,
    EndpointUnreachableError,
    QueueNotFoundError,
    WrongRegionError,
)

_REACHED_BY: Final = (
    "The queue is reached by queue, region_name, endpoint_url, profile_name and role_arn of {resource}, and by the AWS "
    "settings of {process} where those are not set."
)
_WHERE: Final = (
    "Settings of the resource are given in Definitions(resources=...) or under queue in a component's YAML, as values "
    "or as EnvVar; with configure_at_launch() in the run config."
)


def in_words_of_dagster(error: SqsError, resource: str) -> SqsError:
    """Return an error about the access to a queue with the remedy in Dagster's words; others as they are."""
    if not isinstance(error, _ABOUT_ACCESS) or error.remedy.endswith(_WHERE):
        return error
    words = {"resource": resource, "process": _PROCESS}
    if (instead := _INSTEAD.get(error.code)) is not None:
        remedy = instead.format(**words)
    else:
        remedy = f"{error.remedy} {_REACHED_BY.format(**words)}".lstrip()
    return error.with_remedy(f"{remedy} {_WHERE}")


@contextmanager
def access_to(resource: object) -> Iterator[None]:
    """Raise the errors of a block about the access to a queue with the remedy in Dagster's words."""
    try:
        yield
    except SqsError as error:
        told = in_words_of_dagster(error, type(resource).__name__)
        if told is error:
            raise
        # The cause is the client's error; the general error would only repeat the text.
        raise told from error.__cause__
