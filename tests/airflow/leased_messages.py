"""Messages that a sensor's trigger received, and the triggerers that may keep them, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.triggers.keep import REPORT_KEY
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.testing import AuditEntry, AuditKind, MemorySqs, MessageState, ServiceChoices, VirtualClock, run_virtual
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import (
    KEEP,
    LOAD,
    RECEIVE,
    RUN_ID,
    RunningTrigger,
    VirtualTriggerer,
    keeper_trigger,
    receive_trigger,
)

ALL_HELD = dict.fromkeys("abc", MessageState.IN_FLIGHT)
ALL_VISIBLE = dict.fromkeys("abc", MessageState.VISIBLE)


class LeasedMessages:
    """Messages that a sensor's trigger received, three by default, and the triggerers that may keep them."""

    def __init__(
        self,
        supervisor: ScriptedComms,
        *,
        fifo: bool = False,
        bodies: Sequence[str] = "abc",
        choices: ServiceChoices | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.sqs = MemorySqs(self.clock, choices=choices)
        kind = ".fifo" if fifo else ""
        self.dead_letter_url = self.sqs.create_queue(f"dead{kind}")
        self.url = self.sqs.create_queue(
            f"orders{kind}", dead_letter_queue_url=self.dead_letter_url, max_receive_count=10
        )
        group = "group" if fifo else None
        self.bodies = bodies
        self.ids = [
            self.sqs.send(self.url, body, message_group_id=group, deduplication_id=body if fifo else None)
            for body in bodies
        ]
        self.supervisor = supervisor
        self.states = supervisor.states.setdefault(RUN_ID, {})
        self.states.update({RECEIVE.task_id: "deferred", KEEP.task_id: None, LOAD.task_id: None})

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        run_virtual(scenario, clock=self.clock)

    def triggerer(self, name: str = "triggerer") -> VirtualTriggerer:
        return VirtualTriggerer(self.sqs, self.clock, name)

    async def receive(
        self, triggerer: VirtualTriggerer, policy: RenewalPolicy | None = None, **options: Any
    ) -> RunningTrigger:
        queue = self.url.rpartition("/")[2]
        running = triggerer.start(receive_trigger(queue, self.clock, policy=policy, **options), RECEIVE)
        await running.ended()
        self.states.update({RECEIVE.task_id: "success", KEEP.task_id: "running", LOAD.task_id: "running"})
        return running

    def keep(self, triggerer: VirtualTriggerer, *work: WorkTask, **options: Any) -> RunningTrigger:
        self.states[KEEP.task_id] = "deferred"
        return triggerer.start(keeper_trigger(self.supervisor, work or [LOAD], **options), KEEP)

    async def receive_and_keep(self, *work: WorkTask, **options: Any) -> RunningTrigger:
        triggerer = self.triggerer()
        await self.receive(triggerer, options.pop("policy", None))
        return self.keep(triggerer, *work, **options)

    def message_states(self) -> dict[str, MessageState]:
        names = dict(zip(self.ids, self.bodies, strict=True))
        return {names[message_id]: state for message_id, state in self.sqs.contents(self.url).items()}

    def events(self, *kinds: AuditKind) -> list[AuditEntry]:
        return [entry for entry in self.sqs.trail().entries() if entry.kind in kinds]

    def report(self) -> Any:
        return self.supervisor.xcoms[RUN_ID, KEEP.task_id, -1, REPORT_KEY]
