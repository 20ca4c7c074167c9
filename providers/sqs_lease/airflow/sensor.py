"""The task that receives a batch: messages that are there already by itself, and later ones by its trigger.

It looks once in its own process. If messages are there, that saves the way to a triggerer, several seconds. If not, it
defers, and the trigger waits for messages and hands them on. With ``deferrable=False``, and in ``dag.test()``, its own
process waits instead.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from airflow.sdk import BaseOperator, BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralTimeout,
)

from sqs_lease.airflow.airflow_api.requests import (
    RETURN_VALUE_KEY,
    push_of_task,
    run_of,
    triggers_are_supported,
    triggers_publish_for_mapping,
)
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.dag_file import (
    NEITHER_MAPPED,
    check_queue,
    check_type,
    is_final,
    named,
    refuse_late_readers,
    refuse_mapping,
    refuse_stock_options,
    warn_author,
)
from sqs_lease.airflow.filters import MessageFilter, UnmatchedRule, check_unmatched, encode_unmatched, plain_values
from sqs_lease.airflow.handover import HANDED_KEY, LEASE_KEY, PayloadError
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.operators import DEFAULT_HANDOFF_TIMEOUT, SqsLeaseKeeperOperator, handoff_seconds
from sqs_lease.airflow.payload import (
    BatchValue,
    check_payload,
    default_payload,
    find_refused,
    messages_of,
)
from sqs_lease.airflow.settlement.rules import work_tasks
from sqs_lease.airflow.triggers.receive import (
    FAILED,
    TIMED_OUT,
    ReceiveOptions,
    ShortVisibilityWarning,
    SqsLeaseReceiveTrigger,
    takeover_risk,
    with_visibility,
)
from sqs_lease.airflow.worker import WorkerLease, give_back_handed, receive_locally
from sqs_lease.clock import SystemClock
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import encode_policy
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, LeaseOptions
from sqs_lease.sqs.errors import AccessDeniedError, CredentialsError, SqsError

TRIGGERER_MARGIN: Final = timedelta(minutes=1)
"""The trigger ends the wait itself. Airflow's own time-out is this much later, for the case that no triggerer runs."""

LOOK_SECONDS: Final = 20.0
"""How long a sensor that does not defer waits for a message before it sleeps for ``poke_interval``."""

FIRST_LOOK_SECONDS: Final = 1.0
"""How long a sensor looks for messages before it defers: the shortest receive for which SQS asks all of its servers."""

LONGEST_LINGER_SECONDS: Final = 10.0
"""Longest ``linger`` of a sensor that looks in its worker first.

A longer one would occupy the worker for that time, to save a few seconds; the sensor then defers at once.
"""

if TYPE_CHECKING:
    from airflow.sdk import Context

PAYLOAD_IS_NOT_MAPPED: Final = (
    "with payload= the messages are in a file, and Airflow expands a task over values in XCom only. Read them in one "
    "task with read_messages() (and return {'batchItemFailures': ...} for single failures), or leave payload out"
)
"""The reason why tasks cannot be mapped over a stored batch, and the remedy."""

_NOT_BEGUN: Final = frozenset({None, "restarting", "up_for_retry", "upstream_failed", "skipped", "removed"})
"""States of tasks that read the messages of a sensor only after it has succeeded, or never."""

MAX_PUBLISHED_MESSAGES: Final = 2_000
"""Most messages of a batch without ``payload``.

For each of them about 0.7 kB of sealed lease go into an XCom and 0.9 kB into the arguments of the keeper's trigger
(which the triggerer reads whole whenever it starts or resumes one), and its body into another XCom. At this bound
that is 3 MB of Airflow's database a batch, without the bodies.
"""


class SqsLeaseSensor(BaseSensorOperator):
    """Waits for messages of a queue and receives a batch of them, without deleting any.

    The messages are its return value: a list of mappings with ``MessageId``, ``Body``, ``Attributes`` and
    ``MessageAttributes``, in the shape of the SQS API and without receipt handles. From the receive on they are kept
    invisible, first by the trigger of this task and then by the
    :class:`~sqs_lease.airflow.operators.SqsLeaseKeeperOperator` that must be its teardown.
    :func:`~sqs_lease.airflow.context.sqs_lease` makes both.

    Like the sensors of Airflow it waits for ``timeout``. Then it fails without a retry, or is skipped together with the
    work when ``soft_fail`` is set. Every error fails it at once: ``soft_fail`` skips for the time-out only. An error
    that a retry cannot mend (no such queue, no permission, another region) names the remedy, and is not retried.
    ``never_fail`` skips for all of these, as Airflow defines it: then only an error line in the log says that a queue
    is gone.

    Args:
        queue_url: The queue's URL, name or ARN (templated). ``queue`` is Airflow's own name for a queue of workers.
        max_messages: Most messages in the batch, 10 by default; at most 2 000 without ``payload``, and 120 000 with it
            (templated). Without it a batch also ends at about 16 MiB.
        linger: How long to wait for more messages after the first; 1 s by default, 0 takes only the messages of the
            first receive. Received messages are held meanwhile.
        policy: How leases are extended: a policy of ``sqs_lease.core.policies`` or its name; ``Growing`` by default.
        visibility: The policy's visibility timeout as a shortcut: seconds or a ``timedelta``. None takes the queue's
            own, or the time that a lease needs to survive the death of its triggerer if that is longer: 450 s at
            Airflow's default settings (``triggers/receive.py``). A shorter one gives a warning.
        payload: For large batches: a directory, as a URI (``s3://connection@bucket/prefix``) or an absolute path
            that all workers and triggerers share (templated). Messages and leases are stored there, and XComs
            carry references only; work tasks read the messages with
            :func:`~sqs_lease.airflow.payload.read_messages`. No task can be mapped over them then. None takes
            ``[sqs_lease] payload`` of Airflow's configuration where ``max_messages`` is above 2 000.
        message_filtering: Take only messages that match: ``literal``, ``jsonpath`` or ``jsonpath-ext``, as the amazon
            provider's ``SqsSensor`` defines them, ``attribute`` or ``callable``
            (``sqs_lease/airflow/filters.py``). None takes all.
        message_filtering_match_values: The bodies to match, or the values that the JSONPath expression must find or
            the message attribute must have; None, with one of these, for any value.
        message_filtering_config: The JSONPath expression, the attribute's name, or the dotted path of the function
            (templated).
        unmatched: The rule for messages that do not match: ``expire()``, the default, leaves them alone until
            their visibility timeout ends; ``release(delay)``, ``backoff()``, ``dead_letter()``, or ``discard()``,
            which deletes them.
        deferrable: True, the default, looks once in the worker, for a second, and then waits in the triggerer. False
            waits in the worker's own process, as sensors that poke or are rescheduled do (``mode``,
            ``poke_interval``); that takes a worker slot, and messages that come meanwhile wait for the next look.
        handoff_timeout: How long the messages stay invisible for the keeper until its trigger begins; 5 minutes by
            default.
        aws_conn_id: The Airflow connection; ``aws_default`` by default, None for boto3's own credentials (templated).
        region_name: The AWS region; None takes the connection's, or the queue's own (templated).
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's (templated).
        botocore_config: Arguments of ``botocore.config.Config``; None takes the connection's.
        kwargs: As for every sensor: ``timeout`` (how long to wait for a first message; Airflow's
            ``[sensors] default_timeout`` of 7 days by default), ``soft_fail``, and what every task takes, except that
            ``do_xcom_push`` and ``multiple_outputs`` change nothing: the messages are always one return value.

    Raises:
        ValueError: A value is out of range, ``queue_url`` is not a queue name, URL or ARN, or the sensor is mapped.
        TypeError: A value cannot be sent to the triggerer, or an option is one of the amazon provider's ``SqsSensor``.
    """

    template_fields: Sequence[str] = (
        "aws_conn_id",
        "max_messages",
        "message_filtering_config",
        "payload",
        "queue_url",
        "region_name",
        "verify",
    )
    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"

    def __new__(cls, **arguments: Any) -> Self:
        """Refuse the options of the amazon provider's sensor; Airflow would not say what to write instead."""
        refuse_stock_options(arguments.get("task_id"), {**(arguments.get("default_args") or {}), **arguments})
        return super().__new__(cls)

    @classmethod
    def partial(cls, **arguments: Any) -> NoReturn:
        """Refuse to be mapped.

        Raises:
            TypeError: Always.
        """
        raise TypeError(f"SqsLeaseSensor {arguments.get('task_id')!r} cannot be mapped: {NEITHER_MAPPED}")

    def __init__(
        self,
        *,
        queue_url: str = "",
        max_messages: int | str = DEFAULT_MAX_MESSAGES,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        policy: RenewalPolicy | str | None = None,
        visibility: Duration | None = None,
        payload: str | None = None,
        message_filtering: str | None = None,
        message_filtering_match_values: Iterable[Any] | None = None,
        message_filtering_config: str | None = None,
        unmatched: UnmatchedRule | None = None,
        deferrable: bool = True,
        handoff_timeout: Duration = DEFAULT_HANDOFF_TIMEOUT,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        # Its return value is the messages. default_args for the other tasks of a DAG must not take it from the work.
        self.do_xcom_push, self.multiple_outputs = True, False
        refuse_mapping(self)
        self.queue_url = queue_url
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        self.max_messages = max_messages
        # Without max_messages, which may be a template: see _check_max_messages().
        with named(repr(self.task_id)):
            lease = LeaseOptions.of(linger=linger, policy=policy, visibility=visibility)
            self.handoff_timeout_seconds = handoff_seconds(handoff_timeout)
            check_type(deferrable, (bool,), name="deferrable", expected="True or False")
            if "://" in self.queue or self.queue.startswith("arn:"):
                raise ValueError(
                    f"queue is Airflow's name for a queue of workers, not for {self.queue!r}: say queue_url="
                )
        self.linger_seconds = lease.linger_seconds
        self.policy = encode_policy(lease.policy)
        if (risk := takeover_risk(with_visibility(lease.policy))) is not None:
            warn_author(f"{self.task_id!r}: {risk}", ShortVisibilityWarning)
        self.payload = payload
        self.message_filtering = message_filtering
        with named(repr(self.task_id)):
            self.message_filtering_match_values = plain_values(message_filtering_match_values)
        self.message_filtering_config = message_filtering_config
        if unmatched is not None and message_filtering is None:
            raise ValueError(
                f"unmatched of {self.task_id!r} needs message_filtering: it is the rule for messages that do not match"
            )
        with named(repr(self.task_id)):
            self.unmatched = None if unmatched is None else encode_unmatched(check_unmatched(unmatched))
        self.deferrable = deferrable
        self._holding: WorkerLease | None = None
        self._is_killed = False
        self._check_payload()
        self._check_max_messages()
        self._filter()
        with named(repr(self.task_id)):
            check_queue(queue_url)
            self._aws_connection()

    def resolve_template_files(self) -> None:
        """Check the finished DAG too: Airflow calls this when it has parsed the DAG's file."""
        super().resolve_template_files()
        if (keeper := self._found_keeper()) is None:
            raise ValueError(self._no_keeper())
        # sqs_lease() has seen to these two; a keeper of the author's own may stand anywhere and name any task.
        if others := keeper.upstream_task_ids - {self.task_id}:
            raise ValueError(
                f"{keeper.task_id!r} waits for {', '.join(sorted(others))}, so the messages of {self.task_id!r} would "
                "not be kept until then: let nothing but the sensor come before their keeper"
            )
        work_tasks(self.dag, keeper.work_task_ids, self.task_id, keeper.task_id)
        refuse_late_readers(self, keeper.work_task_ids)

    def execute(self, context: Context) -> Any:
        """Receive messages that are there, or let the trigger wait for them and end the task.

        Returns:
            The messages, or a reference to them, where this process received them itself.

        Raises:
            AirflowSensorTimeout: No message came in time.
            AirflowFailException: The queue cannot be received from, and trying again would not help.
            AirflowException: It cannot be received from for the moment; the task's retries apply.
        """
        options = self._options()
        self._check_that_work_begins_again(context["ti"], self._keeper())
        self._give_back_of_earlier_try(context["ti"], options.keeper_task_id)
        with self._skipped_where_asked():
            if not triggers_are_supported():
                return self._receive_for_dag_test(context, options)
            if not self.deferrable or (options.mapped_over and not triggers_publish_for_mapping()):
                return super().execute(context)
            if (found := self._look_first(context, options)) is not None:
                return found.xcom_value
        self.log.info("Waiting for messages of %s for up to %s", self.queue_url, timedelta(seconds=self.timeout))
        return self.defer(
            trigger=SqsLeaseReceiveTrigger(asdict(options)),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout) + TRIGGERER_MARGIN,
        )

    def execute_complete(self, context: Context, event: Mapping[str, str]) -> None:
        """Fail: the trigger resumes the task only for that.

        Raises:
            AirflowSensorTimeout: No message came in time.
            AirflowFailException: The queue cannot be received from, and trying again would not help.
            AirflowException: It cannot be received from for the moment; the task's retries apply.
        """
        kinds = {TIMED_OUT: AirflowSensorTimeout, FAILED: AirflowException}
        raise self._failure(kinds.get(event["status"], AirflowFailException), event["error"])

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Resume after the trigger, as Airflow's sensors do, except for :meth:`_skipped_where_asked`."""
        with self._skipped_where_asked():
            return BaseOperator.resume_execution(self, next_method, next_kwargs, context)

    @contextmanager
    def _skipped_where_asked(self) -> Iterator[None]:
        """Fail with the error of a block; or skip, with ``never_fail``, and with ``soft_fail`` when the time is up.

        Airflow's own sensors turn every error into a skip with ``soft_fail``, so a queue that was deleted would never
        be noticed. With ``never_fail`` some turn an error into a skip without naming it, and none the time-out.
        """
        try:
            yield
        except (AirflowSkipException, AirflowRescheduleException):
            raise
        except (_ReceiveError, AirflowException) as error:
            failure: BaseException = error
            if isinstance(error, _ReceiveError):
                failure = error.failure
            elif isinstance(error, TaskDeferralTimeout):
                failure = AirflowSensorTimeout(*error.args)
            is_time_out = isinstance(failure, AirflowSensorTimeout)
            if self.never_fail or (self.soft_fail and is_time_out):
                self.log.log(logging.INFO if is_time_out else logging.ERROR, "%s", failure)
                option = "never_fail" if self.never_fail else "soft_fail"
                raise AirflowSkipException(f"skipped by {option}: {failure}") from error
            if failure is error:
                raise
            raise failure from error

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Look for messages once, in this process, and hand a batch over to the keeper.

        Raises:
            AirflowException: They could not be received for the moment, and with ``silent_fail`` Airflow goes on.
        """
        try:
            found = self._look(context, self._options(), min(LOOK_SECONDS, self.timeout))
        except _ReceiveError as error:
            if self.silent_fail and not isinstance(error.failure, AirflowFailException):
                raise error.failure from error
            raise
        if found is None:
            self.log.info("No message of %s came", self.queue_url)
        return found or False

    def _look_first(self, context: Context, options: ReceiveOptions) -> PokeReturnValue | None:
        """Look before this task defers; None if there are no messages, or an error that the trigger should meet."""
        if self.linger_seconds > LONGEST_LINGER_SECONDS:
            return None
        try:
            return self._look(context, options, min(FIRST_LOOK_SECONDS, self.timeout))
        except _ReceiveError as error:
            if not error.is_for_trigger:
                raise
            self.log.warning("The trigger will receive instead: %s", error)
            return None

    def _look(self, context: Context, options: ReceiveOptions, wait_seconds: float) -> PokeReturnValue | None:
        """Receive a batch in this process and hand it over to the keeper; None if no message came.

        No process can extend the leases between the end of this one and the keeper's trigger, so the last thing that is
        done here is to extend them by ``handoff_timeout``.
        """
        if self._is_killed:
            raise AirflowFailException(f"task {self.task_id!r} was killed, so it stops receiving")
        with self._errors_of_the_queue(), WorkerLease(options, run_of(context["ti"])) as holding:
            self._holding = holding
            try:
                if not holding.receive(wait_seconds):
                    return None
                messages = self._publish(context["ti"], holding)
            finally:
                self._holding = None
        return PokeReturnValue(is_done=True, xcom_value=messages)

    def _publish(self, task_instance: Any, holding: WorkerLease) -> BatchValue:
        """Publish the batch, without messages that Airflow refuses; return the task's return value.

        Airflow publishes the messages once more when this task ends, because only Airflow can have tasks mapped over
        them. An error then would fail the task because of one message, each time that this is received.
        """
        lease, messages = holding.hand_on()
        task_instance.xcom_push(key=LEASE_KEY, value=lease)

        async def put(value: BatchValue) -> None:
            task_instance.xcom_push(key=RETURN_VALUE_KEY, value=value)

        try:
            asyncio.run(put(messages))
        except Exception:
            if isinstance(messages, Mapping):
                raise
            refused = asyncio.run(find_refused(messages_of(messages), put))
            if not refused or not holding.settle_refused(refused):
                raise
            return self._publish(task_instance, holding)
        if self._is_killed:
            raise AirflowFailException(f"task {self.task_id!r} was killed, so its messages were given back")
        # Only now, because a batch that is given back above must not be given back once more by the next try. For the
        # same reason an error here, after which it may have been written, must not have the batch given back.
        keeper = replace(run_of(task_instance), task_id=holding.options.keeper_task_id)
        try:
            push_of_task(keeper, HANDED_KEY, lease)
        except Exception as error:  # noqa: BLE001 - Airflow's, or one of a back end of the user's own
            self.log.warning("A try of this task after a user cleared it may not find these messages: %s", error)
        return messages

    def on_kill(self) -> None:
        """Give back what this process holds, and stop receiving. A trigger that receives does that itself."""
        # Airflow lets the task go on after this, and kills it some seconds later.
        self._is_killed = True
        if self._holding is not None:
            self._holding.give_back()

    def _receive_for_dag_test(self, context: Context, options: ReceiveOptions) -> Any:
        with self._errors_of_the_queue():
            received = receive_locally(options, self.timeout, run_of(context["ti"]))
        if received is None:
            raise self._failure(AirflowSensorTimeout, f"no message of {self.queue_url} came in time")
        lease, messages = received
        context["ti"].xcom_push(key=LEASE_KEY, value=lease)
        return messages

    @contextmanager
    def _errors_of_the_queue(self) -> Iterator[None]:
        try:
            yield
        except SqsError as error:
            is_refused = error.verdict is Verdict.REFUSED
            failure = self._failure(AirflowFailException if is_refused else AirflowException, str(error))
            # Without a connection, a triggerer may have other credentials than a worker.
            is_for_trigger = not is_refused or isinstance(error, AccessDeniedError | CredentialsError)
            raise _ReceiveError(failure, is_for_trigger=is_for_trigger) from error
        except PayloadError as error:
            raise _ReceiveError(self._failure(AirflowException, str(error))) from error
        except ValueError as error:
            text = f"queue {self.queue_url}: {error}"
            raise _ReceiveError(self._failure(AirflowFailException, text)) from error

    def _failure(self, kind: type[AirflowException], text: str) -> AirflowException:
        return kind(f"task {self.task_id!r} of DAG {self.dag_id!r}: {text}")

    def _options(self) -> ReceiveOptions:
        """Return the options of the receive; the values of templates are checked again."""
        self._check_payload()
        max_messages = self._check_max_messages()
        filtering = self._filter()
        try:
            mapped_over = self.check_mapped(max_messages)
        except ValueError as error:
            raise AirflowFailException(str(error)) from None
        payload = self.payload
        if payload is None and not mapped_over and max_messages > MAX_PUBLISHED_MESSAGES:
            # Decided by max_messages, not by the size of a batch: its work must not get a list today and a reference
            # tomorrow.
            payload = default_payload()
        return ReceiveOptions(
            queue=self.queue_url,
            batch_id=uuid.uuid4().hex,
            connection=asdict(self._aws_connection()),
            policy=self.policy,
            max_messages=max_messages,
            linger_seconds=self.linger_seconds,
            expires_at=SystemClock().wall() + self.timeout,
            skip_when_expired=bool(self.soft_fail or self.never_fail),
            keeper_task_id=self._keeper().task_id,
            handoff_timeout_seconds=self.handoff_timeout_seconds,
            mapped_over=mapped_over,
            payload=payload,
            filter=None if filtering is None else asdict(filtering),
            unmatched=self.unmatched,
            on_failure=self._keeper().on_failure,
        )

    def check_mapped(self, max_messages: int | str) -> bool:
        """Return whether a task is mapped over the messages.

        Args:
            max_messages: Most messages of a batch; a template is not looked at.

        Raises:
            ValueError: One is, but the messages are stored, or they may be more than Airflow expands a task to.
        """
        mapped = next(self.iter_mapped_dependants(), None)
        if mapped is None:
            return False
        if self.payload is not None:
            raise ValueError(f"{mapped.node_id!r} is mapped over {self.task_id!r}: {PAYLOAD_IS_NOT_MAPPED}")
        longest = conf.getint("core", "max_map_length", fallback=1024)
        if isinstance(max_messages, int) and max_messages > longest:
            raise ValueError(
                f"{mapped.node_id!r} is mapped over up to {max_messages} messages, but Airflow expands a task to "
                f"{longest} instances at most: lower max_messages of {self.task_id!r}, or raise [core] max_map_length"
            )
        return True

    def _check_that_work_begins_again(self, task_instance: Any, keeper: SqsLeaseKeeperOperator) -> None:
        """Refuse to receive for work that has begun: its success would delete messages that it has not seen."""
        if task_instance.try_number == 1:
            return
        task_ids = [*keeper.work_task_ids, keeper.task_id]
        states = task_instance.get_task_states(dag_id=self.dag_id, task_ids=task_ids, run_ids=[task_instance.run_id])
        begun = {key: state for key, state in states.get(task_instance.run_id, {}).items() if state not in _NOT_BEGUN}
        if begun:
            key, state = next(iter(begun.items()))
            raise AirflowFailException(
                f"task {self.task_id!r} of DAG {self.dag_id!r} runs again, but not the tasks that work on its messages "
                f"({key} is {state}): their success would delete messages that they have not seen. To receive again, "
                f"clear {self.task_id!r} with its downstream tasks"
            )

    def _give_back_of_earlier_try(self, task_instance: Any, keeper_task_id: str) -> None:
        """Make visible what an earlier try of this task handed on and no keeper took: this try receives it again."""
        if task_instance.try_number == 1:
            return
        lease = task_instance.xcom_pull(task_ids=keeper_task_id, key=HANDED_KEY)
        if lease is not None:
            receiving = run_of(task_instance)
            said = give_back_handed(lease, receiving, replace(receiving, task_id=keeper_task_id), HANDED_KEY)
            self.log.info("Messages of the earlier try: %s", said)

    def _filter(self) -> MessageFilter | None:
        with named(repr(self.task_id)):
            return MessageFilter.of(
                self.message_filtering, self.message_filtering_match_values, self.message_filtering_config
            )

    def _check_payload(self) -> None:
        if self.payload is not None:
            check_payload(self.payload, self.task_id)

    def _check_max_messages(self) -> int:
        """Return the most messages of a batch; while it is still a template, the most there can be."""
        limit = MAX_PUBLISHED_MESSAGES if (self.payload or default_payload()) is None else MAX_IN_FLIGHT
        given = self.max_messages
        if not is_final(given):
            return limit
        if isinstance(given, str):
            # The value of a template is a string.
            given = int(given) if given.isdecimal() else given
        # The task is named, because the value of a template has no line in the DAG file.
        with named(repr(self.task_id)):
            # Another string is refused there.
            most = LeaseOptions.of(max_messages=given).max_messages  # type: ignore[arg-type]
        if most > limit:
            raise ValueError(
                f"max_messages of {self.task_id!r} is {most}, but more than {limit} messages do not go through XCom: "
                "store them with payload='s3://connection@bucket/prefix', or set [sqs_lease] payload in Airflow's "
                "configuration, or lower max_messages"
            )
        return most

    def _aws_connection(self) -> AwsConnection:
        return AwsConnection.of(
            self.aws_conn_id, self.region_name, self.verify, self.botocore_config, queue=self.queue_url
        )

    def _found_keeper(self) -> SqsLeaseKeeperOperator | None:
        keepers = [task for task in self.downstream_list if isinstance(task, SqsLeaseKeeperOperator)]
        return next((keeper for keeper in keepers if keeper.receive_task_id == self.task_id), None)

    def _keeper(self) -> SqsLeaseKeeperOperator:
        if (keeper := self._found_keeper()) is not None:
            return keeper
        raise AirflowFailException(self._no_keeper())

    def _no_keeper(self) -> str:
        return (
            f"{self.task_id!r} has no SqsLeaseKeeperOperator behind it, so its messages would neither be kept nor "
            f"settled: write with sqs_lease({self.task_id!r}, ...) as messages, or make a keeper its teardown"
        )


class _ReceiveError(BaseException):
    """The messages could not be received.

    Not an Exception, which Airflow's sensors turn into something else within :meth:`SqsLeaseSensor.poke`.

    Attributes:
        failure: The error that the task is to fail with.
        is_for_trigger: Whether a trigger may still receive them, at once or after a while.
    """

    def __init__(self, failure: AirflowException, *, is_for_trigger: bool = False) -> None:
        super().__init__(str(failure))
        self.failure = failure
        self.is_for_trigger = is_for_trigger
