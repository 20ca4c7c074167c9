"""The task beside the work: the keeper of a lease. It defers at once, and its trigger does everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow.airflow_api.requests import listeners_hear_of_success, run_of, triggers_are_supported
from sqs_lease.airflow.dag_file import check_type, named
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease, PayloadError
from sqs_lease.airflow.links import SqsQueueLink
from sqs_lease.airflow.settlement.lost_leases import OnLost, encode_on_lost
from sqs_lease.airflow.settlement.rules import work_tasks
from sqs_lease.airflow.settlement.settler import KEEPS_KEY, batch_status, why_it_fails
from sqs_lease.airflow.triggers.keep import REPORT_KEY, SqsLeaseKeeperTrigger, plain_work
from sqs_lease.airflow.worker import give_back_handed, settle_locally
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.failure_rules import FailureRule, release
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.specs import decode_failure_rule, encode_failure_rule

if TYPE_CHECKING:
    from airflow.sdk import Context

DEFAULT_HANDOFF_TIMEOUT: Final = timedelta(minutes=5)
"""How long the messages of a batch stay invisible for a keeper that takes them over.

Measured from the sensor's end to the adoption: 5 s at most on an idle machine, 25 s with a full pool.
"""

KEEPER_PRIORITY: Final = 1000
"""The keeper's default priority weight: with few free slots it is started before the work that it keeps leases for."""


def handoff_seconds(handoff_timeout: Duration) -> float:
    """Return ``handoff_timeout`` in seconds.

    Raises:
        TypeError: It is not a duration.
        ValueError: It is longer than SQS hides a message.
    """
    return seconds_of(handoff_timeout, name="handoff_timeout", maximum=MAX_VISIBILITY_SECONDS)


def _task_ids(work_task_ids: object) -> list[str]:
    if isinstance(work_task_ids, str) or not isinstance(work_task_ids, Iterable):
        raise TypeError(f"work_task_ids must be a list of task ids, not {work_task_ids!r}")
    task_ids = list(work_task_ids)
    if not task_ids:
        raise ValueError(
            "work_task_ids is empty, so the messages would never be settled: name the tasks that work on them"
        )
    for task_id in task_ids:
        if not isinstance(task_id, str) or not task_id:
            raise TypeError(f"work_task_ids must be a list of task ids, so {task_id!r} cannot be in it")
    return task_ids


def _encoded(on_failure: object) -> dict[str, Any]:
    """Return the rule for failed messages as plain values."""
    if on_failure is None:
        return encode_failure_rule(release())
    if isinstance(on_failure, FailureRule):
        try:
            return encode_failure_rule(on_failure)
        except TypeError:
            pass  # a rule of the author's own: the triggerer would not know it
    raise TypeError(
        "on_failure must be release(), release(delay), backoff(), expire(), dead_letter() or by_exception(), each of "
        f"sqs_lease, not {on_failure!r}"
    )


class SqsLeaseKeeperOperator(BaseOperator):
    """Extends the leases of a :class:`~sqs_lease.airflow.sensor.SqsLeaseSensor` while the work runs, and settles them.

    Make it a teardown of the sensor and let nothing else come before it, so that it starts together with the
    work (:func:`~sqs_lease.airflow.context.sqs_lease` does)::

        keep = SqsLeaseKeeperOperator(task_id="keep", receive_task_id="receive", work_task_ids=["load"])
        keep.as_teardown(setups=receive)

    Each message is deleted when the work tasks that concern it succeeded, and settled by ``on_failure`` when one of
    them failed for good; the rules are in ``sqs_lease/airflow/settlement/rules.py``. The task ends with the XCom
    ``lease_report``: counts by outcome and, for up to 100 messages, their ids. It succeeds when everything was settled,
    whether deleted or given back. When SQS refuses to settle messages, this task and the run fail. The error has the
    queue, the counts and the remedy. There is no retry, because there is nothing left to keep. Leases that were lost
    are in its log and in its report, and do not fail it unless ``on_lost`` says so.

    Args:
        receive_task_id: The sensor's task id.
        work_task_ids: The tasks that work on the messages.
        on_failure: How a message is settled when its work failed for good; visible again at once by default.
        on_lost: The action when a lease is *lost* (another consumer has the message, or it was deleted), when it
            *lapsed* (it ended before an extension was confirmed, so others may have received the message) or is
            *ending* (``max_lease``, or the service's 12 hours, forbid another extension). Each is logged, and then:

            - ``"warn"``, the default: nothing more.
            - ``"raise"``: if a lease was lost or has lapsed, this task and the run fail after everything else was
              settled, without a retry. A lease that is ending fails them only if it lapses before its work is done.
            - an ``AsyncCallback`` of ``airflow.sdk``: it is called in the triggerer at once, see
              ``sqs_lease/airflow/settlement/lost_leases.py``.
        ordered: On a FIFO queue, keep the order within message groups: a message is not deleted while an earlier
            one of its group is still worked on. It is given back, although its work succeeded, when an earlier one
            is given back. False settles each message by itself.
        handoff_timeout: How long the messages stay invisible until the next holder takes over: this task's next try
            after it was cleared, or another triggerer after this one stopped. 5 minutes by default.
        priority_weight: As for any task, but 1000 by default and absolute.
        weight_rule: As for any task.
    """

    operator_extra_links = (SqsQueueLink(),)
    ui_color = "#d6eaf8"
    # Derived classes have it too, so that the page of leases finds their tasks.
    custom_operator_name = "SqsLeaseKeeperOperator"

    def __init__(
        self,
        *,
        receive_task_id: str,
        work_task_ids: Sequence[str],
        on_failure: FailureRule | None = None,
        on_lost: OnLost = "warn",
        ordered: bool = True,
        handoff_timeout: Duration = DEFAULT_HANDOFF_TIMEOUT,
        priority_weight: int = KEEPER_PRIORITY,
        weight_rule: Any = "absolute",
        **kwargs: Any,
    ) -> None:
        super().__init__(priority_weight=priority_weight, weight_rule=weight_rule, **kwargs)
        with named(repr(self.task_id)):
            if not isinstance(receive_task_id, str) or not receive_task_id:
                raise TypeError(f"receive_task_id must be the task id of an SqsLeaseSensor, not {receive_task_id!r}")
            self.receive_task_id = receive_task_id
            self.work_task_ids = _task_ids(work_task_ids)
            self.on_failure = _encoded(on_failure)
            self.on_lost = encode_on_lost(on_lost)
            check_type(ordered, (bool,), name="ordered", expected="True or False")
            self.ordered = ordered
            self.handoff_timeout_seconds = handoff_seconds(handoff_timeout)

    def execute(self, context: Context) -> None:
        """Take the leases from the sensor's XCom and hand them to the trigger."""
        task_instance = context["ti"]
        lease = task_instance.xcom_pull(task_ids=self.receive_task_id, key=LEASE_KEY)
        if lease is None:
            raise AirflowFailException(
                f"task {self.receive_task_id!r} left no lease for {self.task_id!r}: receive_task_id must name an "
                "SqsLeaseSensor that succeeded in the same run. Clear it with its downstream tasks to receive again"
            )
        work = work_tasks(self.dag, self.work_task_ids, self.receive_task_id, self.task_id)
        task = run_of(task_instance)
        receiving = replace(task, task_id=self.receive_task_id)
        try:
            handed = HandedLease.decode_head(lease, receiving)
        except PayloadError as error:
            raise AirflowFailException(f"{task}: {error}") from None
        if not triggers_are_supported():
            on_failure = decode_failure_rule(self.on_failure)
            report = settle_locally(task, receiving, handed.batch_id, work, on_failure, ordered=self.ordered)
            task_instance.xcom_push(key=REPORT_KEY, value=report)
            if (error_text := why_it_fails(report, self.on_lost, handed.queue_url)) is not None:
                raise AirflowFailException(f"{task}: {error_text}")
            return
        # For the page of leases: notes about the batch are XComs of the receiving task.
        waiting = batch_status(handed.queue_url, {"received": handed.messages})
        kept = {"receive_task_id": self.receive_task_id, "status": waiting}
        task_instance.xcom_push(key=KEEPS_KEY, value=kept)
        self.queue_url = handed.queue_url  # for the link
        self.log.info("Leaving %d messages of %s to a triggerer", handed.messages, handed.queue_url)
        self.defer(
            trigger=SqsLeaseKeeperTrigger(
                lease=lease,
                receive_task_id=self.receive_task_id,
                work=plain_work(work),
                on_failure=self.on_failure,
                on_lost=self.on_lost,
                ordered=self.ordered,
                handoff_timeout_seconds=self.handoff_timeout_seconds,
                tried_before=task_instance.try_number > 1,
                ends_in_worker=listeners_hear_of_success(),
            ),
            method_name="execute_complete",
        )

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> None:
        """Fail with the trigger's error. Without an error, the task ends here only so that listeners are called.

        Raises:
            AirflowFailException: Something failed. No retry follows, because there is nothing left to keep.
        """
        error = event["error"]
        if error is None:
            return
        if "give_back" in event:
            task_instance = context["ti"]
            lease = task_instance.xcom_pull(task_ids=self.receive_task_id, key=LEASE_KEY)
            if lease is not None:
                receiving = replace(run_of(task_instance), task_id=self.receive_task_id)
                error = f"{error}. {give_back_handed(lease, receiving, receiving, LEASE_KEY)}"
        raise AirflowFailException(f"task {self.task_id!r} of DAG {self.dag_id!r}: {error}")

    def as_teardown(self, *, setups: Any = None, on_failure_fail_dagrun: bool | None = True) -> Any:
        """Make it a teardown, like any operator, but one whose failure fails the run by default."""
        return super().as_teardown(setups=setups, on_failure_fail_dagrun=on_failure_fail_dagrun)


def keepers_of(dag: Any) -> list[SqsLeaseKeeperOperator]:
    """Return the keepers of a DAG."""
    return [task for task in dag.task_dict.values() if isinstance(task, SqsLeaseKeeperOperator)]
