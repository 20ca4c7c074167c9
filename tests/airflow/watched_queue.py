"""A queue that an asset's watcher receives from, the triggerers that run it, and runs that claim, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from airflow.sdk import Asset
from airflow.sdk.execution_time.context import AssetStateStoreAccessors
from airflow.triggers.base import BaseEventTrigger

from sqs_lease.airflow.airflow_api.assets import TaskAssetState
from sqs_lease.airflow.batches.claim import ClaimedBatch, Claiming
from sqs_lease.airflow.batches.protocol import BatchEvent, BatchRegistry, Claimant
from sqs_lease.airflow.transfer.lease import LEASE_KEY, merge
from sqs_lease.airflow.transfer.payload import merge_messages, read_messages
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.policies import Growing
from sqs_lease.testing import AuditKind, MemorySqs, MessageState, VirtualClock, run_virtual
from tests.airflow.scripted_assets import ScriptedAssets
from tests.airflow.virtual_triggerer import (
    DAG_ID,
    KEEP,
    LOAD,
    RECEIVE,
    RUN_ID,
    RunningTrigger,
    VirtualTriggerer,
    keeper_trigger,
)

ASSET = "orders asset"
VISIBILITY_SECONDS = 60.0
RUN = Claimant(DAG_ID, RUN_ID, KEEP.task_id)
OTHER_RUN = Claimant("other_dag", "other_run", "keep")


class WatchingTriggerer(VirtualTriggerer):
    """A triggerer process that runs the triggers of asset watchers as well."""

    def watch(self, trigger: SqsLeaseTrigger) -> RunningTrigger:
        """Start the trigger of the asset's watcher."""
        running = self.start(trigger, KEEP)
        assert isinstance(running.trigger, BaseEventTrigger)
        running.trigger.task_instance = None
        running.trigger.asset_state_store = AssetStateStoreAccessors(inlets=[Asset(ASSET)])
        return running

    async def kill(self) -> None:
        """End the process."""
        work = [task for running in self._running for task in getattr(running.trigger, "_work", ())]
        await super().kill()
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


class WatchedQueue:
    """The queue, the triggerers of its watcher, and what Airflow knows of the run that may claim."""

    def __init__(self, supervisor: ScriptedAssets, *, visibility: float | None = VISIBILITY_SECONDS) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock)
        self.url = self.sqs.create_queue("orders")
        self.visibility = visibility
        self.supervisor = supervisor
        self.states = supervisor.states.setdefault(RUN_ID, {})
        self.states.update({RECEIVE.task_id: None, KEEP.task_id: None, LOAD.task_id: None})
        supervisor.states[OTHER_RUN.run_id] = {OTHER_RUN.keeper_task_id: None}

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario in virtual time."""
        run_virtual(scenario, clock=self.clock)

    def send(self, *bodies: str) -> None:
        """Send messages."""
        for body in bodies:
            self.sqs.send(self.url, body)

    def triggerer(self, name: str = "triggerer") -> WatchingTriggerer:
        """Start a triggerer process."""
        return WatchingTriggerer(self.sqs, self.clock, name)

    def watch(self, triggerer: WatchingTriggerer | None = None, **options: Any) -> RunningTrigger:
        """Start the watcher's trigger."""
        arguments = {"linger": 0, "policy": Growing(visibility=self.visibility), "handoff_timeout": 600, **options}
        return (triggerer or self.triggerer()).watch(SqsLeaseTrigger("orders", **arguments))

    async def fired(self, running: RunningTrigger, number: int = 1, within: float = 60.0) -> list[BatchEvent]:
        """Wait until so many events were fired, and return all of them."""
        async with asyncio.timeout(within):
            while len(running.events) < number:  # noqa: ASYNC110 - in virtual time, for a list that Airflow would fill
                await asyncio.sleep(0.1)
        return events_of(running)

    async def claim(self, events: list[BatchEvent], claimant: Claimant = RUN) -> list[ClaimedBatch]:
        """Claim as a run does whose first task was given these events."""
        claiming = Claiming(TaskAssetState(events[0].place.asset), events, claimant, clock=self.clock)
        for seconds in claiming.steps():
            await asyncio.sleep(seconds)
        return claiming.taken()

    def keep(self, triggerer: WatchingTriggerer, taken: list[ClaimedBatch]) -> RunningTrigger:
        """Start the keeper of the run with what it claimed."""
        self.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY] = merge([batch.lease for batch in taken])
        messages = merge_messages([batch.messages for batch in taken])
        self.supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, "return_value"] = messages
        self.states.update({RECEIVE.task_id: "success", KEEP.task_id: "deferred", LOAD.task_id: "running"})
        return triggerer.start(keeper_trigger(self.supervisor, [LOAD]), KEEP)

    def message_states(self) -> list[MessageState]:
        """The states of the messages in the queue, in the order in which they were sent."""
        return list(self.sqs.contents(self.url).values())

    def registry(self) -> BatchRegistry:
        """What the trigger shows."""
        (shown,) = [value for (asset, key), value in self.supervisor.store.items() if key.endswith("/registry")]
        registry = BatchRegistry.decode(shown)
        assert registry is not None
        return registry

    def stored_batches(self) -> int:
        """How many values of batches the asset's state store has."""
        return sum("/messages/" in key or "/lease/" in key for _, key in self.supervisor.store)

    def count(self, *kinds: AuditKind) -> int:
        """How often these things happened at the service."""
        return sum(entry.kind in kinds for entry in self.sqs.trail().entries())


def events_of(running: RunningTrigger) -> list[BatchEvent]:
    """The events that a trigger fired so far."""
    decoded = [BatchEvent.decode({"from_trigger": True, "payload": event.payload}) for event in running.events]
    assert None not in decoded
    return [event for event in decoded if event is not None]


def bodies_of(taken: list[ClaimedBatch]) -> list[str]:
    """The bodies of all messages of claimed batches."""
    return [message["Body"] for batch in taken for message in read_messages(batch.messages)]
