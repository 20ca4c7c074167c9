"""A triggerer in virtual time: runs triggers as Airflow's does, over the in-memory SQS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.triggers.base import BaseTrigger, TriggerEvent

from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.airflow.handover import LEASE_KEY
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger, plain_work
from sqs_lease.airflow.triggers.receive import ReceiveOptions, SqsLeaseReceiveTrigger
from sqs_lease.airflow.triggers.shared import TriggererKeepers, install
from sqs_lease.core.failure_rules import FailureRule, release
from sqs_lease.core.policies import Growing, RenewalPolicy
from sqs_lease.core.specs import encode_failure_rule, encode_policy
from sqs_lease.testing import Fault, FaultRule, MemorySqs, MemoryTransport, TransportCall, VirtualClock, no_faults
from tests.airflow.scripted_comms import ScriptedComms

DAG_ID = "dag"
RUN_ID = "run"
RECEIVE = RunOfTask(DAG_ID, RUN_ID, "orders")
KEEP = RunOfTask(DAG_ID, RUN_ID, "orders_keeper")
ROUND_SECONDS = 1.0
ON_KILL_SECONDS = 30.0
USER_ACTION = "__airflow_user_action__"
LOAD = WorkTask("load")
CHECK = WorkTask("check", mapped=True, per_message=True)


class ClosableTransport(MemoryTransport):
    """A transport that can be asked whether it was closed."""

    is_open = True

    async def aclose(self) -> None:
        self.is_open = False
        await super().aclose()


class RunningTrigger:
    """A trigger under way, with the events that it fired."""

    def __init__(self, trigger: BaseTrigger) -> None:
        self.trigger = trigger
        self.events: list[TriggerEvent] = []
        self._killed = False
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        # The order of Airflow's TriggerRunner.run_trigger: the trigger ends first, then on_kill, then cleanup.
        try:
            async for event in self.trigger.run():
                self.events.append(event)
        except asyncio.CancelledError as cancelled:
            if cancelled.args and cancelled.args[0] == USER_ACTION:
                # Like this, so that the next cancellation may end the wait on Python 3.11, and cleanup() begins.
                with suppress(asyncio.CancelledError, TimeoutError):
                    await asyncio.wait_for(self.trigger.on_kill(), timeout=ON_KILL_SECONDS)
            raise
        finally:
            if not self._killed:
                await self.trigger.cleanup()

    async def ended(self) -> list[TriggerEvent]:
        """Wait for its end."""
        await self.task
        return self.events

    async def kill(self) -> None:
        """End it as ``kill -9`` of its triggerer does: nothing more is done."""
        self._killed = True
        await self.cancel()

    async def cancel(self, message: str | None = None) -> None:
        """Cancel it as the triggerer does when it stops, or with ``USER_ACTION``, and wait for its end."""
        self.task.cancel(message)
        while message == USER_ACTION and not (await asyncio.wait([self.task], timeout=ROUND_SECONDS))[0]:
            # Airflow does so with every round of the triggerer, until the trigger has ended.
            self.task.cancel(message)
        with suppress(asyncio.CancelledError):
            await self.task


class VirtualTriggerer:
    """One triggerer process."""

    def __init__(self, sqs: MemorySqs, clock: VirtualClock, name: str = "triggerer") -> None:
        self.keepers = TriggererKeepers(open_transport=self._open, clock=clock)
        self._sqs = sqs
        self._name = name
        self.open_error: Exception | None = None
        self.faults: FaultRule = no_faults
        self._transports: list[ClosableTransport] = []
        self._running: list[RunningTrigger] = []

    async def _open(self, connection: AwsConnection) -> MemoryTransport:
        if self.open_error is not None:
            raise self.open_error
        transport = ClosableTransport(self._sqs, name=self._name, faults=self._fault)
        self._transports.append(transport)
        return self._transports[-1]

    def _fault(self, call: TransportCall) -> Fault:
        return self.faults(call)

    @property
    def open_transports(self) -> int:
        """How many clients are open."""
        return sum(transport.is_open for transport in self._transports)

    async def kill(self) -> None:
        """End the process: its triggers do nothing more, and its calls do not reach the service."""
        for running in self._running:
            await running.kill()
        for transport in self._transports:
            await transport.aclose()

    def start(self, trigger: BaseTrigger, task: RunOfTask) -> RunningTrigger:
        """Start a trigger, made again from what Airflow would have stored of it."""
        install(self.keepers)
        classpath, kwargs = trigger.serialize()
        stored = Trigger._decrypt_kwargs(Trigger.encrypt_kwargs(kwargs))
        decode: Callable[[Any], Any] = smart_decode_trigger_kwargs
        module, _, name = classpath.rpartition(".")
        made = getattr(import_module(module), name)(**{key: decode(value) for key, value in stored.items()})
        made.task_instance = SimpleNamespace(dag_id=task.dag_id, run_id=task.run_id, task_id=task.task_id, map_index=-1)
        self._running.append(RunningTrigger(made))
        return self._running[-1]


def receive_trigger(
    queue: str,
    clock: VirtualClock,
    *,
    policy: RenewalPolicy | None = None,
    timeout_seconds: float = 60.0,
    **options: Any,
) -> SqsLeaseReceiveTrigger:
    """The trigger of a sensor that deferred just now."""
    defaults: dict[str, Any] = {
        "batch_id": "batch",
        "connection": asdict(AwsConnection()),
        "policy": encode_policy(Growing(visibility=30.0) if policy is None else policy),
        "max_messages": 10,
        "linger_seconds": 1.0,
        "expires_at": clock.wall() + timeout_seconds,
        "skip_when_expired": False,
        "keeper_task_id": KEEP.task_id,
        # Less than the visibility timeout: the keeper begins at once, and what it does with short leases is seen.
        "handoff_timeout_seconds": 20.0,
        "mapped_over": False,
    }
    arguments = ReceiveOptions(queue=queue, **{**defaults, **options})
    return SqsLeaseReceiveTrigger({name: getattr(arguments, name) for name in ReceiveOptions.__slots__})


def keeper_trigger(
    supervisor: ScriptedComms,
    work: Sequence[WorkTask],
    *,
    on_failure: FailureRule | None = None,
    on_lost: str | dict[str, Any] = "warn",
    ordered: bool = True,
    tried_before: bool = False,
    handoff_timeout_seconds: float = 600.0,
    ends_in_worker: bool = False,
) -> SqsLeaseKeeperTrigger:
    """The trigger of a keeper that took what the sensor's trigger had published."""
    lease: Mapping[str, Any] = supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LEASE_KEY]
    return SqsLeaseKeeperTrigger(
        lease=dict(lease),
        receive_task_id=RECEIVE.task_id,
        work=plain_work(work),
        on_failure=encode_failure_rule(release() if on_failure is None else on_failure),
        handoff_timeout_seconds=handoff_timeout_seconds,
        on_lost=on_lost,
        ordered=ordered,
        tried_before=tried_before,
        ends_in_worker=ends_in_worker,
    )
