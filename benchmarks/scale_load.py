"""The process that `benchmarks.scale` measures: one triggerer's event loop with many runs. It prints one JSON object.

    python -m benchmarks.scale_load {carry,prepare} LOAD

`carry` starts triggers as Airflow's triggerer does, fifty a second, takes all of their leases over, holds each until it
was extended twice, and settles them when all work has succeeded. The triggers come from `prepare`, which it runs in a
process of its own, so that the memory it takes is not measured: a line each, as Airflow's database holds them.

It is what runs in a triggerer: the trigger's own class, made from its encrypted arguments; the keeper that all triggers
share; the AWS client with its signatures, on asyncio's own event loop. Two things stand in for others. SQS is
`benchmarks.sqs_stub` in a process of its own. Airflow's supervisor is an object in this process that counts what it is
asked and answers one request after the other, as many a second as a real one was seen to answer.

Time is the machine's, without that for which this process could have run while others had the processor
(:class:`UndisturbedClock`). So the figures are those of a triggerer with a core of its own, also on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import math
import os
import resource
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import greenback
from airflow.models.trigger import Trigger
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    DeleteVariable,
    GetTaskStates,
    GetVariableKeys,
    GetXCom,
    OKResponse,
    SetXCom,
    TaskStatesResult,
    VariableKeysResult,
    XComResult,
)
from airflow.serialization.decoders import smart_decode_trigger_kwargs

from sqs_lease.airflow.airflow_api.requests import RunOfTask
from sqs_lease.airflow.connection import AwsConnection, load_client_code, open_transport
from sqs_lease.airflow.handover import LEASE_KEY, HandedLease
from sqs_lease.airflow.settlement.rules import WorkTask
from sqs_lease.airflow.triggers.keep import REPORT_KEY, SqsLeaseKeeperTrigger, plain_work
from sqs_lease.airflow.triggers.shared import TriggererKeepers, install
from sqs_lease.core.calls import EntryAnswer, VisibilityChange
from sqs_lease.core.failure_rules import release
from sqs_lease.core.ledger import Outlook
from sqs_lease.core.messages import Lease, Receipt
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.sqs.transport import Transport

RECEIVE_TASK: Final = "orders"
KEEPER_TASK: Final = "orders_keeper"
WORK_TASK: Final = "load"

VISIBILITY_SECONDS: Final = 180.0
"""The default visibility timeout at Airflow's default settings."""

HELD_BEFORE_SECONDS: Final = 30.0
"""How long ago the messages were received when they are taken over: so late Airflow notices that a triggerer died."""

PREPARING_RESERVE: Final = 2.0
"""So many times as long as the first trigger took is reserved for each; what takes longer adds to the time above."""

HANDLE_CHARACTERS: Final = 180
"""As long as SQS's receipt handles are at least."""

STARTS_A_SECOND: Final = 50
"""As many triggers as Airflow's triggerer starts in a second."""

ANSWERS_A_SECOND: Final = 45.0
"""As many requests as a real supervisor was seen to answer, see `benchmarks.triggerer`."""

EXTENSIONS: Final = 2
"""How often each lease is extended before the work ends: in the takeover, and when it falls due after that."""

LONGEST_TAKEOVER_SECONDS: Final = 180.0
LONGEST_HOLD_SECONDS: Final = 300.0
LONGEST_SETTLEMENT_SECONDS: Final = 360.0
"""A phase that takes longer is cut off, and none follows it. By the first time leases have lapsed for half a minute."""

LOOK_SECONDS: Final = 0.1
"""As often as Airflow's own watchdog looks at the event loop."""

READ_SECONDS: Final = 0.001
"""How often the time that this process waited is read: it costs some microseconds."""

BLOCKED_SECONDS: Final = 0.2
"""From when on Airflow warns that the event loop was blocked, the time between two looks included."""


OVERDUE_SECONDS: Final = 1.0
"""An extension that is sent so much later than it fell due is overdue."""


class UndisturbedClock:
    """The machine's time, without that for which this thread waited for a processor that others had.

    Linux counts that time. Elsewhere, none is left out.
    """

    def __init__(self) -> None:
        waits = Path("/proc/thread-self/schedstat")
        self._waits = waits.open("rb", buffering=0) if waits.exists() else None
        self._read_at = -math.inf
        self._waited = 0.0
        self._last = 0.0
        self._wall_ahead = time.time() - self.now()

    def now(self) -> float:
        real = time.monotonic()
        if self._waits is not None and real - self._read_at > READ_SECONDS:
            self._waits.seek(0)
            self._waited = int(self._waits.read().split()[1]) / 1e9
            self._read_at = real
        self._last = max(self._last, real - self._waited)
        return self._last

    def wall(self) -> float:
        return self.now() + self._wall_ahead

    def set_wall(self) -> None:
        """Take the machine's time since the epoch from now on."""
        self._wall_ahead = time.time() - self.now()


class UndisturbedLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop on that clock."""

    def __init__(self, clock: UndisturbedClock) -> None:
        self.clock = clock
        super().__init__()

    def time(self) -> float:
        return self.clock.now()


@dataclass(frozen=True, slots=True)
class Load:
    """How much there is to hold.

    Attributes:
        runs: Runs, each with one keeper and one batch.
        messages: Messages of each.
        queues: Queues that they are spread over, each with a DAG of its own.
        stub_url: Where the SQS stub listens.
        path: The file with the triggers.
    """

    runs: int
    messages: int
    queues: int
    stub_url: str
    path: str

    @property
    def leases(self) -> int:
        """All leases."""
        return self.runs * self.messages

    def dag_id(self, run: int) -> str:
        """The DAG of a run."""
        return f"held_{run % self.queues}"


@dataclass(slots=True)
class Phase:
    """The observations of one phase.

    Attributes:
        name: The name of the phase.
        seconds: How long it took.
        real_seconds: The same with what this process waited for a processor.
        finished: Whether it came to its end; if not, it was cut off.
        calls: Calls to SQS by kind.
        busiest_calls: Most calls in one second.
        asked: Requests to Airflow by kind.
        busiest_asked: Most requests in one second.
        blocked_seconds: The longest time that the event loop took to come back from a sleep of 0.1 s, that included.
        blocked_looks: How often it took longer than 0.2 s.
        looks: How often that was looked at.
        cpu_seconds: Processor time of this process.
        stub_cpu_seconds: That of the SQS stub.
    """

    name: str
    seconds: float = 0.0
    real_seconds: float = 0.0
    finished: bool = False
    calls: Mapping[str, int] = field(default_factory=dict)
    busiest_calls: int = 0
    asked: Mapping[str, int] = field(default_factory=dict)
    busiest_asked: int = 0
    blocked_seconds: float = 0.0
    blocked_looks: int = 0
    looks: int = 0
    cpu_seconds: float = 0.0
    stub_cpu_seconds: float = 0.0


class CountingTransport:
    """Counts the calls about leases, and passes everything on.

    Args:
        transport: Where the calls go.
        clock: The keeper's clock.
        outlook: When the first of some leases of a queue was to be extended, and when the first ends.

    Attributes:
        calls: How many, by kind.
        overdue: Extensions in calls that were sent too late for one of their leases.
        most_overdue_seconds: The longest time by which one was.
        least_left_seconds: The least that was left of a lease when its extension was sent.
    """

    def __init__(
        self,
        transport: Transport,
        clock: UndisturbedClock,
        outlook: Callable[[str, Sequence[Receipt]], Outlook],
        calls: Counter[str],
    ) -> None:
        self.calls = calls
        self.overdue = 0
        self.most_overdue_seconds = 0.0
        self.least_left_seconds = math.inf
        self._transport = transport
        self._clock = clock
        self._outlook = outlook

    async def change_visibility(self, queue_url: str, changes: Sequence[VisibilityChange]) -> Sequence[EntryAnswer]:
        """See the transport."""
        self.calls["extend"] += 1
        now, outlook = self._clock.now(), self._outlook(queue_url, [change.receipt for change in changes])
        if outlook.renew_at is not None and outlook.deadline is not None:
            overdue_seconds = now - outlook.renew_at
            self.overdue += len(changes) if overdue_seconds > OVERDUE_SECONDS else 0
            self.most_overdue_seconds = max(self.most_overdue_seconds, overdue_seconds)
            self.least_left_seconds = min(self.least_left_seconds, outlook.deadline - now)
        return await self._transport.change_visibility(queue_url, changes)

    async def delete(self, queue_url: str, receipts: Sequence[Receipt]) -> Sequence[EntryAnswer]:
        """See the transport."""
        self.calls["delete"] += 1
        return await self._transport.delete(queue_url, receipts)

    async def aclose(self) -> None:
        """See the transport."""
        await self._transport.aclose()


class Supervisor:
    """Stands in for Airflow's supervisor: counts requests, and answers them one after the other.

    Args:
        load: How much there is to hold.
        leases: The lease of each run that was started so far, as its XCom has it.

    Attributes:
        asked: Requests by kind.
        state: The state of all work.
        reports: The keepers' reports at their end.
    """

    def __init__(self, load: Load, leases: Mapping[str, Mapping[str, Any]]) -> None:
        self.asked: Counter[str] = Counter()
        self.state = "running"
        self.reports: list[Mapping[str, Any]] = []
        self._leases = leases
        self._xcoms: dict[tuple[str, str, str], Any] = {}
        self._free_at = 0.0

    def send(self, request: Any) -> Any:
        """Answer within a portal, as in a triggerer."""
        return greenback.await_(self.asend(request))

    async def asend(self, request: Any) -> Any:
        """Answer when all that was asked before was answered."""
        self.asked[type(request).__name__] += 1
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + 1 / ANSWERS_A_SECOND
        await asyncio.sleep(self._free_at - now)
        return self._answer(request)

    def _answer(self, request: Any) -> Any:
        match request:
            case GetTaskStates(run_ids=run_ids):
                states = {RECEIVE_TASK: "success", KEEPER_TASK: "deferred", WORK_TASK: self.state}
                asked = {task_id: states[task_id] for task_id in request.task_ids or ()}
                return TaskStatesResult(task_states=dict.fromkeys(run_ids or (), asked))
            case GetXCom(run_id=run_id, task_id=task_id, key=key):
                if key == LEASE_KEY:
                    return XComResult(key=key, value=cast("Any", self._leases[run_id]))
                return XComResult(key=key, value=self._xcoms.get((run_id, task_id, key)))
            case SetXCom(run_id=run_id, task_id=task_id, key=key, value=value):
                self._xcoms[run_id, task_id, key] = value
                if key == REPORT_KEY:
                    self.reports.append(cast("Mapping[str, Any]", value))
                return None
            case GetVariableKeys():
                return VariableKeysResult(keys=[], total_entries=0)
            case DeleteVariable():
                return OKResponse(ok=True)
        raise AssertionError(f"the stand-in does not answer {type(request).__name__}")


class Meter:
    """Looks at the event loop ten times a second, and counts by phase.

    Args:
        calls: Calls to SQS so far.
        asked: Requests to Airflow so far.
        stub_url: The SQS stub, which tells its processor time.
        clock: The event loop's clock.
    """

    def __init__(self, calls: Counter[str], asked: Counter[str], stub_url: str, clock: UndisturbedClock) -> None:
        self._calls = calls
        self._asked = asked
        self._stub_url = stub_url
        self._clock = clock
        self._phase = Phase("")
        self.phases: list[Phase] = []

    @asynccontextmanager
    async def phase(self, name: str) -> AsyncIterator[Phase]:
        """Count for as long as the block takes."""
        calls, asked, began_at, real = self._calls.copy(), self._asked.copy(), self._clock.now(), time.monotonic()
        stub, cpu = (await self.stub_counts())["cpu_seconds"], _cpu_seconds()
        self._phase = phase = Phase(name)
        yield phase
        phase.seconds, phase.real_seconds = self._clock.now() - began_at, time.monotonic() - real
        phase.cpu_seconds = _cpu_seconds() - cpu
        phase.stub_cpu_seconds = (await self.stub_counts())["cpu_seconds"] - stub
        phase.calls, phase.asked = dict(self._calls - calls), dict(self._asked - asked)
        self.phases.append(phase)

    async def stub_counts(self) -> Mapping[str, Any]:
        """Return the SQS stub's counts so far."""
        return await asyncio.to_thread(self._read_counts)

    def _read_counts(self) -> Mapping[str, Any]:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self._stub_url, timeout=60) as answer:
            counts: Mapping[str, Any] = json.load(answer)
        return counts

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            calls, asked, second_ends = self._calls.total(), self._asked.total(), self._clock.now() + 1.0
            while (began := self._clock.now()) < second_ends:
                await asyncio.sleep(LOOK_SECONDS)
                blocked = self._clock.now() - began
                self._phase.looks += 1
                self._phase.blocked_seconds = max(self._phase.blocked_seconds, blocked)
                self._phase.blocked_looks += blocked > BLOCKED_SECONDS
            # A second that was longer because the loop was blocked must not count as busier.
            length = self._clock.now() - second_ends + 1.0
            self._phase.busiest_calls = max(self._phase.busiest_calls, round((self._calls.total() - calls) / length))
            self._phase.busiest_asked = max(self._phase.busiest_asked, round((self._asked.total() - asked) / length))


class Triggerer:
    """Runs the triggers.

    Args:
        load: How much there is to hold.
        clock: The event loop's clock.
    """

    def __init__(self, load: Load, clock: UndisturbedClock) -> None:
        self._load = load
        self._clock = clock
        self._transports: list[CountingTransport] = []
        self._calls: Counter[str] = Counter()
        self._leases: dict[str, Mapping[str, Any]] = {}
        self._supervisor = Supervisor(load, self._leases)
        self._meter = Meter(self._calls, self._supervisor.asked, load.stub_url, clock)
        self._running: set[asyncio.Task[None]] = set()

    async def carry(self) -> Mapping[str, Any]:
        """Take over, hold and settle; return the figures."""
        task_runner.SUPERVISOR_COMMS = self._supervisor  # type: ignore[assignment]
        self._keepers = keepers = TriggererKeepers(open_transport=self._open, clock=self._clock)
        install(keepers)
        load_client_code()
        watching = asyncio.create_task(self._meter.watch())
        received_at = await asyncio.to_thread(self._prepare)
        await asyncio.sleep(max(0.0, received_at + HELD_BEFORE_SECONDS - time.time()))
        base_mb, held_before_seconds = _memory_mb(), time.time() - received_at
        self._clock.set_wall()
        async with self._meter.phase("take over") as phase:
            await self._start_all()
            phase.finished = await self._until(lambda: self._are_extended(1), LONGEST_TAKEOVER_SECONDS)
        if phase.finished:
            async with self._meter.phase("hold") as phase:
                phase.finished = await self._until(lambda: self._are_extended(EXTENSIONS), LONGEST_HOLD_SECONDS)
        held = self._held()
        batches, leases = len(held), sum(batch.count_held() for batch in held)
        extensions = sum(batch.extensions for batch in held)
        if phase.finished:
            self._supervisor.state = "success"
            async with self._meter.phase("settle") as phase:
                phase.finished = await self._until(lambda: not self._running, LONGEST_SETTLEMENT_SECONDS)
        watching.cancel()
        (transport,) = self._transports
        reports = [*self._supervisor.reports, *(asdict(batch.report()) for batch in self._held())]
        return {
            "phases": [asdict(phase) for phase in self._meter.phases],
            "leases": leases,
            "batches": batches,
            "extensions": extensions,
            "lapsed": sum(report["late"] for report in reports),
            "lost": sum(report["lost"] for report in reports),
            "deleted": sum(report["deleted"] for report in reports),
            "uncertain": sum(report["uncertain"] for report in reports),
            "overdue": transport.overdue,
            "most_overdue_seconds": transport.most_overdue_seconds,
            "least_left_seconds": transport.least_left_seconds,
            "base_mb": base_mb,
            "memory_mb": _memory_mb(),
            "held_before_seconds": held_before_seconds,
        }

    def _prepare(self) -> float:
        """Have the triggers written; return when their messages were received, in seconds since the epoch."""
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.scale_load", "prepare"]
        load = json.dumps(asdict(self._load))
        answer = subprocess.run([*command, load], stdout=subprocess.PIPE, check=True, text=True).stdout
        return float(answer.splitlines()[-1])

    async def _open(self, connection: AwsConnection) -> Transport:
        transport = CountingTransport(await open_transport(connection), self._clock, self._outlook, self._calls)
        self._transports.append(transport)
        return cast("Transport", transport)

    def _outlook(self, queue_url: str, receipts: Sequence[Receipt]) -> Outlook:
        (shared,) = self._keepers._keepers.values()  # noqa: SLF001 - nothing else tells when leases fell due
        return shared.keeper._drivers[queue_url]._ledger.outlook(receipts)  # noqa: SLF001

    async def _start_all(self) -> None:
        with Path(self._load.path).open() as file:  # noqa: ASYNC230 - a line is read in no time
            for run, line in enumerate(file):
                # As Airflow's own TriggerRunner makes a trigger, in the event loop.
                stored = Trigger._decrypt_kwargs(line.strip())  # noqa: SLF001 - it has no other name
                decode: Callable[[Any], Any] = smart_decode_trigger_kwargs
                trigger = SqsLeaseKeeperTrigger(**{name: decode(value) for name, value in stored.items()})
                del stored
                run_id = f"run_{run}"
                self._leases[run_id] = trigger.lease
                trigger.task_instance = cast(
                    "Any",
                    SimpleNamespace(dag_id=self._load.dag_id(run), run_id=run_id, task_id=KEEPER_TASK, map_index=-1),
                )
                task = asyncio.create_task(_run(trigger))
                self._running.add(task)
                task.add_done_callback(self._ended)
                await asyncio.sleep(1.0 if run % STARTS_A_SECOND == STARTS_A_SECOND - 1 else 0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        task.result()

    def _are_extended(self, times: int) -> bool:
        batches, wanted = self._held(), times * self._load.messages
        return len(batches) == self._load.runs and all(batch.extensions >= wanted for batch in batches)

    def _held(self) -> list[Batch]:
        """The batches of the triggers that run."""
        (shared,) = self._keepers._keepers.values()  # noqa: SLF001 - nothing else tells of single batches
        return list(shared.keeper._batches)  # noqa: SLF001

    @staticmethod
    async def _until(is_over: Callable[[], bool], longest_seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(longest_seconds):
                while not is_over():  # noqa: ASYNC110 - what it waits for has many causes
                    await asyncio.sleep(LOOK_SECONDS)
                return True
        return False


async def _run(trigger: SqsLeaseKeeperTrigger) -> None:
    try:
        async for _ in trigger.run():
            pass
    finally:
        await trigger.cleanup()


def receiving_of(load: Load, run: int) -> RunOfTask:
    """The task that received the messages of a run."""
    return RunOfTask(load.dag_id(run), f"run_{run}", RECEIVE_TASK)


def triggers(load: Load, received_at: float) -> Iterator[str]:
    """The encrypted arguments of each trigger, of messages that were received at a time since the epoch."""
    for run in range(load.runs):
        leases = []
        for _ in range(load.messages):
            name = str(uuid.uuid4())
            leases.append(
                Lease(Receipt(name, name.ljust(HANDLE_CHARACTERS, "x")), received_at, received_at + VISIBILITY_SECONDS)
            )
        handed = HandedLease(
            f"{load.stub_url}/000000000000/{load.dag_id(run)}",
            Growing(visibility=VISIBILITY_SECONDS),
            AwsConnection(),
            WrittenBatch(uuid.uuid4().hex, received_at, tuple(leases)),
            len(leases),
        )
        trigger = SqsLeaseKeeperTrigger(
            lease=handed.encode(receiving_of(load, run)),
            receive_task_id=RECEIVE_TASK,
            work=plain_work([WorkTask(WORK_TASK, returns=False)]),
            on_failure=encode_failure_rule(release()),
            handoff_timeout_seconds=600.0,
        )
        yield Trigger.encrypt_kwargs(trigger.serialize()[1])


def prepare(load: Load) -> float:
    """Write the triggers; return when their messages were received, in seconds since the epoch."""
    began = time.monotonic()
    next(triggers(load, 0.0))
    reserved_seconds = PREPARING_RESERVE * load.runs * (time.monotonic() - began)
    received_at = time.time() + reserved_seconds - HELD_BEFORE_SECONDS
    with Path(load.path).open("w") as file:
        file.writelines(f"{stored}\n" for stored in triggers(load, received_at))
    return received_at


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _memory_mb() -> float:
    """The most memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Carry and print the figures, or prepare and print when the messages were received."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("do", choices=("carry", "prepare"))
    parser.add_argument("load", help="the fields of a Load, as JSON")
    given = parser.parse_args()
    load = Load(**json.loads(given.load))
    if given.do == "prepare":
        print(prepare(load))
        return
    logging.getLogger("sqs_lease").setLevel(logging.INFO)
    clock = UndisturbedClock()
    with asyncio.Runner(loop_factory=lambda: UndisturbedLoop(clock)) as runner:
        runner.run(_carry(load, clock))


async def _carry(load: Load, clock: UndisturbedClock) -> None:
    print(json.dumps(await Triggerer(load, clock).carry()), flush=True)
    # Exit at once: a triggerer that stops in the usual way would extend its leases once more.
    os._exit(0)


if __name__ == "__main__":
    main()
