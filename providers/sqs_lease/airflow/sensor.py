"""The task that receives a batch: it defers at once, and its trigger waits for messages and hands them on."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from airflow.providers.amazon.aws.hooks.sqs import SqsHook
from airflow.providers.amazon.aws.sensors.base_aws import AwsBaseSensor
from airflow.providers.amazon.aws.utils.mixins import aws_template_fields
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout

from sqs_lease.airflow.aws_connection import AwsConnection
from sqs_lease.airflow.comms import triggers_are_supported
from sqs_lease.airflow.keeper_operator import DEFAULT_HANDOFF_TIMEOUT, SqsLeaseKeeperOperator
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.payload import check_payload
from sqs_lease.airflow.receive_trigger import FAILED, TIMED_OUT, ReceiveOptions, SqsLeaseReceiveTrigger
from sqs_lease.airflow.visibility import ShortVisibilityWarning, takeover_risk, with_visibility
from sqs_lease.clock import SystemClock
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import encode_policy, resolve_policy
from sqs_lease.sqs.validation import queue_reference

TRIGGERER_MARGIN: Final = timedelta(minutes=1)
"""The trigger ends the wait itself; Airflow does so this much later, in case no triggerer runs."""


PAYLOAD_IS_NOT_MAPPED: Final = (
    "with payload= the messages are in a file, and Airflow expands a task over values in XCom only. Read them in one "
    "task with read_messages() (and return {'batchItemFailures': ...} for single failures), or leave payload out"
)
"""Why, and what to do instead."""

MAX_PUBLISHED_MESSAGES: Final = 2_000
"""Most messages of a batch without ``payload``.

For each of them about 0.7 kB of sealed lease go into an XCom and 0.9 kB into the arguments of the keeper's trigger
(which the triggerer reads whole whenever it starts or resumes one), and its body into another XCom. At this bound
that is 3 MB of Airflow's database a batch, without the bodies.
"""


class SqsLeaseSensor(AwsBaseSensor[SqsHook]):
    """Waits for messages of a queue and receives a batch of them, without deleting any.

    The messages are its return value: a list of mappings with ``MessageId``, ``Body``, ``Attributes`` and
    ``MessageAttributes``, in the shape of the SQS API and without receipt handles. From the receive on they are kept
    invisible, first by the trigger of this task and then by the
    :class:`~sqs_lease.airflow.keeper_operator.SqsLeaseKeeperOperator` that must be its teardown.
    :func:`~sqs_lease.airflow.context.sqs_lease` makes both.

    Like the sensors of Airflow it waits for ``timeout``, then it fails without being retried, or is skipped (and with
    it the work) when ``soft_fail`` is set. What no retry can mend (no such queue, no permission, another region) fails
    it at once, with the remedy in the error.

    Args:
        queue_url: The queue's URL, name or ARN (templated). ``queue`` is Airflow's own name for a queue of workers.
        max_messages: Most messages in the batch, 10 by default; at most 2 000 without ``payload``, and 120 000 with it.
        linger: How long to wait for more messages after the first; 1 s by default, 0 takes what the first
            receive gave. What was received is held meanwhile.
        policy: How leases are extended: a policy of ``sqs_lease.core.policies`` or its name; ``Growing`` by default.
        visibility: The policy's visibility timeout as a shortcut: seconds or a ``timedelta``. None takes the queue's
            own, or what a lease needs to survive the death of its triggerer if that is longer: 180 s at Airflow's
            default settings (``sqs_lease/airflow/visibility.py``). One that is too short for that gives a warning.
        payload: For large batches: a directory, as a URI (``s3://connection@bucket/prefix``) or an absolute path
            that all workers and triggerers share (templated). Messages and leases are stored there, and XComs
            carry references only; work tasks read the messages with
            :func:`~sqs_lease.airflow.payload.read_messages`. No task can be mapped over them then.
        handoff_timeout: How long the messages are held until a worker starts the keeper; 10 minutes by default.
        kwargs: As for the amazon provider's sensors: ``timeout`` (how long to wait for a first message; Airflow's
            ``[sensors] default_timeout`` of 7 days by default), ``soft_fail``, ``aws_conn_id``, ``region_name`` and
            ``verify`` (all three templated), ``botocore_config``, and what every task takes.

    Raises:
        ValueError: A value is out of range, or the queue is none.
        TypeError: A value cannot be sent to the triggerer.
    """

    aws_hook_class = SqsHook
    template_fields: Sequence[str] = aws_template_fields("queue_url", "payload")
    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"

    def __init__(
        self,
        *,
        queue_url: str,
        max_messages: int = 10,
        linger: Duration = 1.0,
        policy: RenewalPolicy | str | None = None,
        visibility: Duration | None = None,
        payload: str | None = None,
        handoff_timeout: Duration = DEFAULT_HANDOFF_TIMEOUT,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_url = queue_url
        self.max_messages = max_messages
        self.linger_seconds = seconds_of(linger, name="linger")
        resolved = resolve_policy(policy, visibility=visibility)
        self.policy = encode_policy(resolved)
        if (risk := takeover_risk(with_visibility(resolved))) is not None:
            warnings.warn(f"{self.task_id!r}: {risk}", ShortVisibilityWarning, stacklevel=2)
        self.handoff_timeout_seconds = seconds_of(handoff_timeout, name="handoff_timeout")
        self.payload = payload
        self._check_payload()
        self._check_max_messages()
        if isinstance(queue_url, str) and "{{" not in queue_url:
            queue_reference(queue_url)
        self._aws_connection()

    def execute(self, context: Any) -> None:
        """Hand everything to the trigger, which ends the task."""
        if not triggers_are_supported():
            raise AirflowFailException(
                f"{self.task_id!r} holds messages while other tasks run, which dag.test() cannot do: "
                "run the DAG by a scheduler and a triggerer"
            )
        if context["ti"].map_index >= 0:
            raise AirflowFailException(
                f"{self.task_id!r} is mapped, and its keeper could not tell its batches apart: use one sensor a queue"
            )
        self._check_payload()
        mapped_over = next(self.iter_mapped_dependants(), None) is not None
        if mapped_over and self.payload is not None:
            raise AirflowFailException(f"a task is mapped over {self.task_id!r}: {PAYLOAD_IS_NOT_MAPPED}")
        now = SystemClock().wall()
        self.log.info("Waiting for messages of %s for up to %s", self.queue_url, timedelta(seconds=self.timeout))
        self.defer(
            trigger=SqsLeaseReceiveTrigger(
                asdict(
                    ReceiveOptions(
                        queue=self.queue_url,
                        batch_id=uuid.uuid4().hex,
                        connection=self._aws_connection().encode(),
                        policy=self.policy,
                        max_messages=self.max_messages,
                        linger_seconds=self.linger_seconds,
                        deferred_at=now,
                        expires_at=now + self.timeout,
                        skip_when_expired=bool(self.soft_fail or self.never_fail),
                        keeper_task_id=self._keeper_task_id(),
                        handoff_timeout_seconds=self.handoff_timeout_seconds,
                        mapped_over=mapped_over,
                        payload=self.payload,
                    )
                )
            ),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout) + TRIGGERER_MARGIN,
        )

    def execute_complete(self, context: Any, event: Mapping[str, str]) -> None:
        """Fail: the trigger resumes the task only for that.

        Raises:
            AirflowSensorTimeout: No message came in time.
            AirflowFailException: The queue cannot be received from, and trying again would not help.
            AirflowException: It cannot be received from for the moment; the task's retries apply.
        """
        kinds = {TIMED_OUT: AirflowSensorTimeout, FAILED: AirflowException}
        kind = kinds.get(event["status"], AirflowFailException)
        raise kind(f"task {self.task_id!r} of DAG {self.dag_id!r}: {event['error']}")

    def _check_payload(self) -> None:
        if self.payload is not None:
            check_payload(self.payload, self.task_id)

    def _check_max_messages(self) -> None:
        limit = MAX_PUBLISHED_MESSAGES if self.payload is None else MAX_IN_FLIGHT
        given = self.max_messages
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MAX_IN_FLIGHT:
            raise ValueError(
                f"max_messages of {self.task_id!r} must be a whole number from 1 to {MAX_IN_FLIGHT} "
                f"(so many messages of a queue can be in flight), not {given!r}"
            )
        if given > limit:
            raise ValueError(
                f"max_messages of {self.task_id!r} is {given}, but more than {limit} messages do not go through XCom: "
                "store them with payload='s3://connection@bucket/prefix', or lower max_messages"
            )

    def _aws_connection(self) -> AwsConnection:
        return AwsConnection.of(self.aws_conn_id, self.region_name, self.verify, self.botocore_config)

    def _keeper_task_id(self) -> str:
        for task in self.downstream_list:
            if isinstance(task, SqsLeaseKeeperOperator) and task.receive_task_id == self.task_id:
                return task.task_id
        raise AirflowFailException(
            f"{self.task_id!r} has no SqsLeaseKeeperOperator behind it, so its messages would neither be kept nor "
            "settled: use sqs_lease(), or make a keeper its teardown"
        )
