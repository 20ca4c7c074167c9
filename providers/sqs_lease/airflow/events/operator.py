"""The first task of a run that messages started: it takes the batches of the run's events, and publishes them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from sqs_lease.airflow.airflow_api.assets import TaskAssetState
from sqs_lease.airflow.airflow_api.requests import CommsError
from sqs_lease.airflow.dag_file import refuse_late_readers
from sqs_lease.airflow.events.claiming import ClaimedBatch, Claiming, NotAnsweredError
from sqs_lease.airflow.events.desk import BatchEvent, Claimant
from sqs_lease.airflow.events.trigger import SqsLeaseTrigger
from sqs_lease.airflow.handover.handed_lease import LEASE_KEY, merge
from sqs_lease.airflow.handover.payload import BatchValue, merge_messages
from sqs_lease.airflow.keeper_operator import KEEPER_PRIORITY, SqsLeaseKeeperOperator
from sqs_lease.clock import SystemClock

HANDED_OVER: Final = (
    "No message of the events is left for this run (%d events): they belong to another run, or they were settled or "
    "given back already; the lines above say which. What was given back comes with another event"
)


class SqsLeaseFromEventOperator(BaseOperator):
    """Takes the messages that started the run, from a :class:`~sqs_lease.airflow.events.trigger.SqsLeaseTrigger`.

    It stands where :class:`~sqs_lease.airflow.sensor.SqsLeaseSensor` stands in other DAGs, with a
    :class:`~sqs_lease.airflow.keeper_operator.SqsLeaseKeeperOperator` as its teardown; ``sqs_lease(..., event=asset)``
    makes both. Its return value is the messages of all batches whose events Airflow gave to this run, in the order of
    the events.

    A batch belongs to the first run that asks for it: with two DAGs on one asset, or an event that came twice,
    the other run's task is skipped, and so is its work; its log names the run that has the messages. It is also
    skipped when the run was started by hand, and when it is cleared after the keeper took the messages: what was not
    settled by then comes back to the queue, and with another event.

    Args:
        event: The asset that the DAG is scheduled on, with the trigger in one of its watchers.
        priority_weight: As for any task, but 1000 by default and counted as it stands.
        weight_rule: As for any task.

    Raises:
        ValueError: The asset is watched by several queues, which one keeper cannot keep.
    """

    ui_color = "#d6eaf8"

    def __init__(
        self,
        *,
        event: Asset,
        priority_weight: int = KEEPER_PRIORITY,
        weight_rule: Any = "absolute",
        **kwargs: Any,
    ) -> None:
        super().__init__(priority_weight=priority_weight, weight_rule=weight_rule, **kwargs)
        if not isinstance(event, Asset):
            raise TypeError(f"event of {self.task_id!r} must be the Asset that the DAG is scheduled on, not {event!r}")
        triggers = queue_triggers(event)
        if len(triggers) > 1:
            raise ValueError(
                f"asset {event.name!r} is watched by several queues: give each an asset and a lease of its own"
            )
        self.event = event
        # As a sensor has them, for what is checked while the DAG is parsed. The asset may also be a mere reference to
        # one whose watchers are defined in another file: then there is nothing to check.
        self.max_messages = sum(trigger.max_messages * trigger.max_unsettled_batches for trigger in triggers)
        self.payload = next((trigger.payload for trigger in triggers), None)

    def resolve_template_files(self) -> None:
        """Check the finished DAG too: Airflow calls this when it has parsed the DAG's file."""
        super().resolve_template_files()
        for task in self.downstream_list:
            if isinstance(task, SqsLeaseKeeperOperator) and task.receive_task_id == self.task_id:
                refuse_late_readers(self, task.work_task_ids)

    def execute(self, context: Any) -> BatchValue:
        """Claim the run's batches, and publish them.

        Returns:
            The messages, or with ``payload`` what stands for them.

        Raises:
            AirflowSkipException: None is left for this run.
            AirflowException: The trigger, or Airflow, does not answer; trying again may help.
        """
        events = self._events(context)
        if not events:
            raise AirflowSkipException(
                f"no event of asset {self.event.name!r} started this run, so there are no messages for it"
            )
        claimant = Claimant(self.dag_id, context["run_id"], self._keeper_task_id())
        claiming = Claiming(TaskAssetState(events[0].place.asset), events, claimant, clock=SystemClock())
        try:
            for seconds in claiming.steps():
                time.sleep(seconds)
        except (CommsError, NotAnsweredError) as error:
            raise AirflowException(f"task {self.task_id!r} of DAG {self.dag_id!r}: {error}") from error
        taken = self._of_one_kind(claiming.taken())
        if not taken:
            self.log.warning(HANDED_OVER, len(events))
            raise AirflowSkipException("no message of the events is left for this run")
        return self._publish(context, taken)

    def _publish(self, context: Any, taken: list[ClaimedBatch]) -> BatchValue:
        # Batches that were received before and after the trigger was changed are kept as the last one is.
        shared = {name: taken[-1].lease[name] for name in ("policy", "connection")}
        lease = merge([{**batch.lease, **shared} for batch in taken])
        self.log.info("Taking %d messages of %s in %d batches", lease["messages"], lease["queue_url"], len(taken))
        context["ti"].xcom_push(key=LEASE_KEY, value=lease)
        return merge_messages([batch.messages for batch in taken])

    def _events(self, context: Any) -> list[BatchEvent]:
        given = context["triggering_asset_events"]
        decoded = [BatchEvent.decode(event.extra) for event in given.get(self.event, ())]
        events = [event for event in decoded if event is not None]
        if len(events) < len(decoded):
            self.log.info("%d events of asset %r are not of a queue", len(decoded) - len(events), self.event.name)
        # One queue, unless the asset's watcher was changed to another one while events waited.
        return [event for event in events if event.place == events[-1].place]

    def _of_one_kind(self, taken: list[ClaimedBatch]) -> list[ClaimedBatch]:
        """Those of the batches that are stored as the last one is: messages and references do not mix in a value."""
        kept = [
            batch for batch in taken if isinstance(batch.messages, Mapping) == isinstance(taken[-1].messages, Mapping)
        ]
        if len(kept) < len(taken):
            self.log.warning(
                "Leaving out %d batches from before payload was changed in the trigger: their messages come back when "
                "their visibility timeout ends",
                len(taken) - len(kept),
            )
        return kept

    def _keeper_task_id(self) -> str:
        for task in self.downstream_list:
            if isinstance(task, SqsLeaseKeeperOperator) and task.receive_task_id == self.task_id:
                return task.task_id
        raise AirflowFailException(
            f"{self.task_id!r} has no SqsLeaseKeeperOperator behind it, so its messages would neither be kept nor "
            "settled: use sqs_lease(..., event=...), or make a keeper its teardown"
        )


def queue_triggers(event: Asset) -> list[SqsLeaseTrigger]:
    """Return the triggers of an asset's watchers that receive from queues, also by ``MessageQueueTrigger``."""
    triggers = [getattr(watcher.trigger, "trigger", watcher.trigger) for watcher in event.watchers]
    return [trigger for trigger in triggers if isinstance(trigger, SqsLeaseTrigger)]
