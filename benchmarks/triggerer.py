"""One triggerer process with many keepers: its load, and how late it is.

    python -m benchmarks.triggerer [--keepers 500] [--leases 100] [--queues 5] [--seconds 180] [--idle] [--niceness 15]

A real triggerer of Airflow takes over so many keepers with so many leases each, all at once, as after the death of
another one: the hardest moment there is. It holds them for a while and settles them when their work has succeeded.
Everything beside it is as cheap as it can be, so that what is measured is the triggerer: SQS is `benchmarks.sqs_stub`
in a process of its own, there is no scheduler, and the work is a state in the database, which is PostgreSQL. The runs
are made through Airflow's API; what the scheduler and workers would have written after that (the keepers deferred, the
work running, later succeeded) is written by this program directly.

One line a phase: requests to the triggerer's supervisor and calls to SQS per second, how long the event loop
was blocked (Airflow warns above 0.2 s) and, as the SQS stub saw it, how many extensions came late. How Airflow starts
so many triggers is a phase of its own, and with `--idle`, which starts triggers that do nothing, the only one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from configparser import RawConfigParser
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy import Engine, NullPool, create_engine, select, text

from demo.airflow_stack import AirflowStack, airflow_stack, migrated_postgres
from demo.postgres import PostgresServer, postgres_server
from demo.processes import LOOPBACK, ROOT, ServerProcess, free_port, start_process, wait_until

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

DAGS_FOLDER = ROOT / "benchmarks" / "dags"
KEEPER_TASK = "orders_keeper"
WORK_TASK = "load"
IDLE_TRIGGER: tuple[str, dict[str, Any]] = ("benchmarks.probe.IdleTrigger", {})
HANDLE_CHARACTERS = 180
"""As long as SQS's receipt handles are at least."""

VISIBILITY_SECONDS = 180.0
"""The default visibility timeout at Airflow's default settings."""

_WARNING = re.compile(r"async thread was blocked for ([\d.]+) seconds")
OTHERS_NICENESS = 15
"""On a small machine Airflow's other processes, the database and the stub would be what the event loop waits for."""

HELD_BEFORE_SECONDS = 30.0
"""How long ago the messages were received when the triggerer takes them over: a takeover takes about that long."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much there is to hold.

    Attributes:
        keepers: Number of keepers, each with a run of its own.
        leases: Leases of each of them.
        queues: Queues that they are spread over, each with a DAG of its own.
        seconds: How long they are held after the takeover.
        mapped: Whether each message has an instance of a mapped task; else one task works on all messages of a keeper.
    """

    keepers: int
    leases: int
    queues: int
    seconds: float
    mapped: bool = False


@dataclass(frozen=True, slots=True)
class Phase:
    """The observations of one phase.

    Attributes:
        name: The name of the phase.
        seconds: How long it took.
        seen: The probe's observations, second by second.
        calls: Calls to SQS by operation.
        warnings: The warnings of Airflow's watchdog, as :meth:`Bench.warnings`.
    """

    name: str
    seconds: float
    seen: Sequence[Mapping[str, Any]]
    calls: Counter[str]
    warnings: Sequence[float]

    @property
    def busy_seconds(self) -> float:
        """The most processor time that the event loop took between two looks, however busy the machine was."""
        return max((float(second["busy_seconds"]) for second in self.seen), default=0.0)

    @property
    def collecting_seconds(self) -> float:
        """The longest garbage collection of Python's; the event loop stands still for it."""
        return max((float(second["collecting_seconds"]) for second in self.seen), default=0.0)

    @property
    def blocked_seconds(self) -> float:
        """The longest time that the event loop was blocked."""
        return max((float(second["blocked_seconds"]) for second in self.seen), default=0.0)

    @property
    def asked(self) -> int:
        """Requests to the supervisor."""
        return sum(sum(second["asked"].values()) for second in self.seen)

    @property
    def busiest_asked(self) -> int:
        """Most requests to the supervisor in one second."""
        return max((sum(second["asked"].values()) for second in self.seen), default=0)

    def line(self) -> str:
        """One line of the table."""
        calls = sum(self.calls.values())
        blocked = sum(second["blocked_seconds"] > 0.2 for second in self.seen)
        cpu = self.seen[-1]["cpu_seconds"] - self.seen[0]["cpu_seconds"] if self.seen else 0.0
        return (
            f"{self.name:<10} {self.seconds:7.1f} {self.asked / self.seconds:9.1f} {self.busiest_asked:8} "
            f"{calls / self.seconds:8.1f} {calls:8,} {self.blocked_seconds:9.2f} {blocked:9} "
            f"{100 * cpu / self.seconds:6.0f} {self.collecting_seconds:6.2f} {self.busy_seconds:6.2f}"
        )


class Bench:
    """The processes under measurement.

    Args:
        stack: Airflow.
        postgres: The server of its database.
        database: Its database.
        stub: The process that stands in for SQS.
        stub_url: Its address.
        probe_path: Where the probe writes.
        scale: How much there is to hold.
    """

    def __init__(
        self,
        stack: AirflowStack,
        postgres: PostgresServer,
        database: Engine,
        stub: ServerProcess,
        stub_url: str,
        probe_path: Path,
        scale: Scale,
    ) -> None:
        self.stack = stack
        self.scale = scale
        self.postgres = postgres
        self.database = database
        self._stub = stub
        self._stub_url = stub_url
        self._probe_path = probe_path
        self._calls: Counter[str] = Counter()
        self._since = time.time()
        self._warnings = 0

    def counts(self) -> Mapping[str, Any]:
        """Return the SQS stub's counts so far."""
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self._stub_url, timeout=30) as answer:
            counts: Mapping[str, Any] = json.load(answer)
        return counts

    def seen(self) -> list[dict[str, Any]]:
        """Return the probe's observations so far."""
        if not self._probe_path.exists():
            return []
        # The part after the last line end is still being written.
        *lines, _ = self._probe_path.read_text().split("\n")
        return [json.loads(line) for line in lines]

    def phase(self, name: str, is_over: Callable[[], bool], deadline_seconds: float) -> Phase:
        """Wait for the end of a phase that began when the last one ended."""
        wait_until(
            is_over,
            processes=[self.stack.processes["triggerer"], self._stub],
            what=f"done with: {name}",
            deadline_seconds=deadline_seconds,
        )
        until = time.time()
        calls, warnings = Counter(self.counts()["calls"]), self.warnings()
        phase = Phase(
            name,
            until - self._since,
            [second for second in self.seen() if self._since < second["at"] <= until],
            calls - self._calls,
            warnings[self._warnings :],
        )
        self._calls, self._since, self._warnings = calls, until, len(warnings)
        return phase

    def defer(self, *, idle: bool) -> None:
        """Make the runs, and have their keepers deferred as a worker would have; ``idle``: to triggers without work."""
        dag_ids = [f"held_{number}" for number in range(self.scale.queues)]
        for dag_id in [*dag_ids, "probe"]:
            self.stack.wait_for_dag(dag_id)
        wanted = [dag_ids[number % len(dag_ids)] for number in range(self.scale.keepers)]
        with ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(self.stack.api.trigger, wanted))
        if self.scale.mapped:
            self._expand(dag_ids)
        with self.database.begin() as connection:
            for task_id, state in (("orders", "success"), (WORK_TASK, "running")):
                statement = "update task_instance set state = :state, try_number = 1 where task_id = :task_id"
                connection.execute(text(statement), {"state": state, "task_id": task_id})
            connection.execute(text("update dag_run set state = 'running'"))
        triggers = [
            (dag_id, run_id, KEEPER_TASK, IDLE_TRIGGER if idle else self._keeper_trigger(dag_id, run_id))
            for dag_id, run_id in zip(wanted, runs, strict=True)
        ]
        if not idle:
            self._publish(triggers)
        probe = ("benchmarks.probe.ProbeTrigger", {"path": str(self._probe_path)})
        self._insert([("probe", self.stack.api.trigger("probe"), "probe", probe), *triggers])

    def begin(self, niceness: int) -> None:
        """Start the triggerer, before which all other processes stand back: its core is to be its own."""
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.nice(niceness)
        self._since = time.time()
        self.stack.start("triggerer")

    def _keeper_trigger(self, dag_id: str, run_id: str) -> tuple[str, dict[str, Any]]:
        from sqs_lease.airflow.airflow_api.requests import RunOfTask
        from sqs_lease.airflow.connection import AwsConnection
        from sqs_lease.core.failure_rules import release
        from sqs_lease.core.messages import Lease, Receipt
        from sqs_lease.core.policies import Growing
        from sqs_lease.core.specs import encode_failure_rule
        from sqs_lease.keeper.plain_leases import WrittenBatch

        keep: Any = package_module("airflow.triggers.keep", "airflow.keeping.trigger")
        rules: Any = package_module("airflow.settlement.rules", "airflow.keeping.settling")
        transfer: Any = package_module("airflow.sealed_lease", "airflow.transfer.lease")
        received_at = time.time() - HELD_BEFORE_SECONDS
        leases = []
        for _ in range(self.scale.leases):
            name = str(uuid.uuid4())
            leases.append(
                Lease(Receipt(name, name.ljust(HANDLE_CHARACTERS, "x")), received_at, received_at + VISIBILITY_SECONDS)
            )
        handed = transfer.HandedLease(
            f"{self._stub_url}/000000000000/{dag_id}",
            Growing(visibility=VISIBILITY_SECONDS),
            AwsConnection(),
            WrittenBatch(uuid.uuid4().hex, received_at, tuple(leases)),
            len(leases),
        )
        mapped = self.scale.mapped
        trigger: BaseTrigger = keep.SqsLeaseKeeperTrigger(
            lease=handed.encode(RunOfTask(dag_id, run_id, "orders")),
            receive_task_id="orders",
            work=keep.plain_work([rules.WorkTask(WORK_TASK, mapped=mapped, per_message=mapped, returns=False)]),
            on_failure=encode_failure_rule(release()),
            handoff_timeout_seconds=600.0,
        )
        return trigger.serialize()

    def _publish(self, triggers: Sequence[tuple[str, str, str, tuple[str, dict[str, Any]]]]) -> None:
        """Write that each run has its batch, as the sensor did: without, a keeper takes its run for cleared."""
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            for dag_id, run_id, _, (_, kwargs) in triggers:
                lease = kwargs["lease"]
                XComModel.set(
                    "lease", lease, task_id="orders", dag_id=dag_id, run_id=run_id, serialize=False, session=session
                )

    def _expand(self, dag_ids: Sequence[str]) -> None:
        """Have the work expanded in all runs, as the scheduler does once the messages were published."""
        from airflow.models import DagRun
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskmap import TaskMap
        from airflow.utils.session import create_session

        with create_session() as session:
            for dag_id in dag_ids:
                dag = SerializedDagModel.get_dag(dag_id, session=session)
                assert dag is not None, f"{dag_id} was parsed"
                work = dag.get_task(WORK_TASK)
                for run_id in session.scalars(select(DagRun.run_id).where(DagRun.dag_id == dag_id)).all():
                    session.add(TaskMap(dag_id, "orders", run_id, -1, self.scale.leases, None))
                    session.flush()
                    TaskMap.expand_mapped_task(work, run_id, session=session)

    def _insert(self, triggers: Sequence[tuple[str, str, str, tuple[str, dict[str, Any]]]]) -> None:
        from airflow.models.trigger import Trigger

        with self.database.begin() as connection:
            for dag_id, run_id, task_id, (classpath, kwargs) in triggers:
                trigger_id = connection.execute(
                    text("insert into trigger (classpath, kwargs, created_date) values (:c, :k, :d) returning id"),
                    {"c": classpath, "k": Trigger.encrypt_kwargs(kwargs), "d": datetime.now(UTC)},
                ).scalar_one()
                connection.execute(
                    text(
                        "update task_instance set state = 'deferred', try_number = 1, trigger_id = :t "
                        "where dag_id = :d and run_id = :r and task_id = :i"
                    ),
                    {"t": trigger_id, "d": dag_id, "r": run_id, "i": task_id},
                )

    def succeed(self) -> None:
        """Have all work succeed at the same moment."""
        with self.database.begin() as connection:
            connection.execute(text("update task_instance set state = 'success' where task_id = :t"), {"t": WORK_TASK})

    def has_started(self) -> bool:
        """Whether all triggers run."""
        return any(second["triggers"] >= self.scale.keepers for second in self.seen())

    def keepers_done(self) -> int:
        """How many keepers ended as successful."""
        statement = "select count(*) from task_instance where task_id = :task_id and state = 'success'"
        with self.database.begin() as connection:
            return int(connection.execute(text(statement), {"task_id": KEEPER_TASK}).scalar_one())

    def reports(self) -> list[dict[str, Any]]:
        """The lease reports of all keepers."""
        with self.database.begin() as connection:
            values = connection.execute(text("select value from xcom where key = 'lease_report'")).scalars().all()
        return [json.loads(value) if isinstance(value, str) else value for value in values]

    def warnings(self) -> list[float]:
        """The seconds for which Airflow's own watchdog found the event loop blocked so far, its 0.1 s of rest included.

        It warns from 0.2 s on.
        """
        return [float(found) for found in _WARNING.findall(self.stack.processes["triggerer"].log_path.read_text())]


def package_module(name: str, *earlier: str) -> ModuleType:
    """A module of the package, which had other names in versions that this one is compared with."""
    if earlier:
        with suppress(ModuleNotFoundError):
            return import_module(f"sqs_lease.{name}")
        return package_module(*earlier)
    return import_module(f"sqs_lease.{name}")


@contextmanager
def bench(scale: Scale, packages: Path = ROOT / "providers") -> Iterator[Bench]:
    """Run everything but the triggerer, until the block ends.

    Args:
        scale: How much there is to hold.
        packages: The directory that has the `sqs_lease` that Airflow imports.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        home = Path(temporary)
        port = free_port()
        url = f"http://{LOOPBACK}:{port}"
        connection = {
            "conn_type": "aws",
            "login": "test",
            "password": "testtest",
            "extra": {"endpoint_url": url, "region_name": "us-east-1"},
        }
        environment = {
            "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(connection),
            "HELD_DAGS": str(scale.queues),
            "HELD_MAPPED": str(int(scale.mapped)),
            # For the probe.
            "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)]),
        }
        stub = start_process(
            "The SQS stub",
            [sys.executable, "-m", "benchmarks.sqs_stub", str(port)],
            log_path=home / "sqs-stub.log",
            environment={"PATH": os.environ["PATH"]},
            directory=ROOT,
        )
        try:
            with (
                postgres_server(migrated_postgres()) as server,
                airflow_stack(
                    home,
                    DAGS_FOLDER,
                    environment,
                    database_url=server.url,
                    components=("api-server", "dag-processor"),
                ) as stack,
            ):
                # This program encrypts what the triggerer is to read.
                settings = RawConfigParser()
                settings.read(home / "airflow.cfg")
                os.environ["AIRFLOW_HOME"] = str(home)
                os.environ["AIRFLOW__CORE__FERNET_KEY"] = settings["core"]["fernet_key"]
                engine = create_engine(server.url, poolclass=NullPool)
                yield Bench(stack, server, engine, stub, url, home / "probe.jsonl", scale)
        finally:
            stub.stop()


@dataclass(frozen=True, slots=True)
class Result:
    """The measured figures.

    Attributes:
        phases: Start, takeover, holding and settling.
        reports: The lease reports of all keepers.
        pollers: Most pollers of task states at the same time.
        late: Extensions that reached the service after the deadline.
        least_left_seconds: The least that was left of a lease when its extension reached the service.
        memory_mb: The triggerer's most memory.
    """

    phases: Sequence[Phase]
    reports: Sequence[Mapping[str, Any]]
    pollers: int
    late: int
    least_left_seconds: float
    memory_mb: float


def measure(scale: Scale, niceness: int) -> Result:
    """Have a triggerer take over, hold and settle."""
    total = scale.keepers * scale.leases
    with bench(scale) as running:
        running.defer(idle=False)
        running.begin(niceness)
        started = running.phase("start", running.has_started, 300)
        taken_over = running.phase(
            "take over", lambda: running.counts()["entries"].get("ChangeMessageVisibilityBatch", 0) >= total, 300
        )
        ends_at = time.time() + scale.seconds
        held = running.phase("hold", lambda: time.time() >= ends_at, scale.seconds + 60)
        running.succeed()
        settled = running.phase("settle", lambda: running.keepers_done() == scale.keepers, 300)
        counts, seen = running.counts(), running.seen()
        return Result(
            [started, taken_over, held, settled],
            running.reports(),
            max(second["pollers"] for second in seen),
            counts["late"],
            counts["least_left_seconds"],
            seen[-1]["memory_mb"],
        )


def measure_idle(scale: Scale, niceness: int) -> Phase:
    """Have a triggerer start as many triggers that do nothing."""
    with bench(scale) as running:
        running.defer(idle=True)
        running.begin(niceness)
        return running.phase("start", running.has_started, 120)


def print_warnings(phase: Phase) -> None:
    """Say what Airflow's own watchdog wrote in a phase."""
    said = ", ".join(f"{seconds:.2f} s" for seconds in phase.warnings) or "none"
    print(f"warnings of Airflow's watchdog (from 0.2 s, its own 0.1 s included), {phase.name}: {said}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--keepers", type=int, default=500)
    parser.add_argument("--leases", type=int, default=100, help="of each keeper")
    parser.add_argument("--queues", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=180.0, help="how long they are held")
    parser.add_argument("--idle", action="store_true", help="start triggers that do nothing instead, and no more")
    parser.add_argument(
        "--niceness",
        type=int,
        default=OTHERS_NICENESS,
        help="of all processes but the triggerer's; 0 where others use the machine, too, and would leave them nothing",
    )
    given = parser.parse_args()
    scale = Scale(given.keepers, given.leases, given.queues, given.seconds)
    if given.idle:
        print(f"{given.keepers:,} triggers that do nothing")
        print_warnings(measure_idle(scale, given.niceness))
        return
    result = measure(scale, given.niceness)

    print(f"{given.keepers:,} keepers with {given.keepers * given.leases:,} leases on {given.queues} queues\n")
    print(
        f"{'':10} {'':7} {'supervisor':>18} {'SQS calls':>17} {'event loop blocked':>19} {'CPU':>6} {'GC':>6} "
        f"{'busy':>6}"
    )
    print(
        f"{'phase':<10} {'seconds':>7} {'per s':>9} {'most':>8} {'per s':>8} {'all':>8} "
        f"{'longest':>9} {'> 0.2 s':>9} {'%':>6} {'s':>6} {'s':>6}"
    )
    for phase in result.phases:
        print(phase.line())
    deleted = sum(report["deleted"] for report in result.reports)
    late = sum(report["late"] for report in result.reports)
    print(f"\nlate extensions: {result.late} as the service saw it, {late} as the keepers did")
    print(f"least time left of a lease when its extension came: {result.least_left_seconds:.0f} s")
    print(f"deleted: {deleted:,}; pollers of task states: {result.pollers}; memory: {result.memory_mb:.0f} MB")
    busy = max(phase.busy_seconds for phase in result.phases)
    print(
        f"most processor time that the event loop took in one go: {busy:.2f} s; the rest of a block is other processes'"
    )
    collecting = max(phase.collecting_seconds for phase in result.phases)
    print(f"longest garbage collection of Python's: {collecting:.2f} s, for which the event loop stands still")
    for phase in result.phases:
        print_warnings(phase)


if __name__ == "__main__":
    main()
