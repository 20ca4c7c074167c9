"""What the tasks about a queue share: how they reach it, how they fail, and the frame of their triggers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sqs_lease.airflow.aws_connection import AwsConnection, translate_aws_errors
from sqs_lease.airflow.dag_file import is_final
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.runtime import DEFERRAL_SECONDS, SharedKeeper, TriggererKeepers, shielded, triggerer_keepers
from sqs_lease.keeper.outcome import FAILED, TIMED_OUT, OutcomeError
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.validation import queue_reference

TRIGGERER_MARGIN: Final = timedelta(minutes=1)
"""A trigger ends its work itself; Airflow does so this much later, in case no triggerer runs."""

DONE: Final = "done"
"""Status of a trigger's event when its work came to a good end."""


class QueueTask(BaseOperator):
    """A task about one queue.

    Args:
        queue_url: The queue's URL, name or ARN (templated).
        deferrable: Whether the work is done in the triggerer; in the worker's own process otherwise.
        aws_conn_id: The Airflow connection; ``aws_default`` by default, None for boto3's own credentials (templated).
        region_name: The AWS region; None takes the connection's, or the queue's own (templated).
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's (templated).
        botocore_config: Arguments of ``botocore.config.Config``; None takes the connection's.
        kwargs: As for every task.

    Raises:
        ValueError: ``queue_url`` is not a queue name, URL or ARN.
        TypeError: ``botocore_config`` cannot be sent to the triggerer.
    """

    template_fields: Sequence[str] = ("aws_conn_id", "queue_url", "region_name", "verify")
    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"
    timed_out_error: ClassVar[type[BaseException]]

    def __init__(
        self,
        *,
        queue_url: str,
        deferrable: bool = True,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_url = queue_url
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.verify = verify
        self.botocore_config = botocore_config
        if is_final(queue_url):
            queue_reference(queue_url)
        self._connection()

    def execute_complete(self, context: Any, event: Mapping[str, Any]) -> dict[str, Any]:
        """End as the trigger says.

        Returns:
            What was done.

        Raises:
            BaseException: The error of a task whose time was over; see the task's class.
            AirflowFailException: It cannot be done, and trying again would not help.
            AirflowException: It could not be done; the task's retries apply.
        """
        with self._failing(context):
            if event["status"] != DONE:
                raise OutcomeError(event["error"], event["status"], event["report"])
        return dict(event["report"])

    @contextmanager
    def _failing(self, context: Any) -> Iterator[None]:
        """Fail the task by the errors of its work, with what was done until then as its return value."""
        try:
            yield
        except (OutcomeError, SqsError, ValueError) as error:
            outcome = error if isinstance(error, OutcomeError) else OutcomeError.of(error)
            if outcome.report:
                context["ti"].xcom_push(key="return_value", value=outcome.report)
            kinds = {TIMED_OUT: self.timed_out_error, FAILED: AirflowException}
            raise self._failure(str(error), kinds.get(outcome.status, AirflowFailException)) from error

    def _failure(self, text: str, kind: type[BaseException] = AirflowException) -> BaseException:
        return kind(f"task {self.task_id!r} of DAG {self.dag_id!r}: {text}")

    def _connection(self) -> AwsConnection:
        return AwsConnection.of(
            self.aws_conn_id, self.region_name, self.verify, self.botocore_config, queue=self.queue_url
        )


class QueueTrigger(BaseTrigger):
    """Works with the triggerer's client, and resumes its task with what was done.

    Args:
        queue: The queue's URL, name or ARN.
        deferred_at: When the task deferred, in seconds since the epoch.
        ends_at: When the work must end, by the same clock; None for no limit.
        connection: The attributes of :class:`~sqs_lease.airflow.aws_connection.AwsConnection`.
    """

    def __init__(self, *, queue: str, deferred_at: float, ends_at: float | None, **connection: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.queue = queue
        self.deferred_at = deferred_at
        self.ends_at = ends_at
        self.connection = AwsConnection.decode(connection)
        self._keepers: TriggererKeepers | None = None
        self._shared: SharedKeeper | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "queue": self.queue,
            "deferred_at": self.deferred_at,
            "ends_at": self.ends_at,
            **self.connection.encode(),
            **self._arguments(),
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Do the work, and resume the task."""
        self._keepers = keepers = triggerer_keepers()
        await keepers.ready()
        event: dict[str, Any]
        try:
            event = {"status": DONE, "report": await self._work(await self._acquire(keepers), keepers)}
        except (OutcomeError, SqsError, ValueError) as error:
            outcome = error if isinstance(error, OutcomeError) else OutcomeError.of(error)
            event = {"status": outcome.status, "error": str(error), "report": outcome.report}
        await asyncio.sleep(max(0.0, self.deferred_at + DEFERRAL_SECONDS - keepers.clock.wall()))
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    @shielded
    async def cleanup(self) -> None:
        """Give the triggerer's client back."""
        if self._keepers is not None and self._shared is not None:
            shared, self._shared = self._shared, None
            await self._keepers.release(shared)

    async def _acquire(self, keepers: TriggererKeepers) -> SharedKeeper:
        if self._shared is None:
            with translate_aws_errors(self.queue):
                self._shared = await keepers.acquire(self.connection)
        return self._shared

    @abstractmethod
    def _arguments(self) -> dict[str, Any]:
        """The arguments beyond those of this class, as plain values."""

    @abstractmethod
    async def _work(self, shared: SharedKeeper, keepers: TriggererKeepers) -> dict[str, Any]:
        """Do the work, and return the report.

        Raises:
            OutcomeError: It did not come to a good end.
            SqsError: The queue cannot be used.
            ValueError: An argument is wrong.
        """
