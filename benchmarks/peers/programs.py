"""The peers: how each is installed, configured, given its messages, and started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil

from demo.airflow_stack import airflow_stack, migrated_postgres
from demo.dagster_stack import dagster_stack
from demo.postgres import postgres_server
from demo.processes import ROOT, ServerProcess, await_stop, request_stop, start_process
from demo.sqs_server import REGION

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

HERE: Final = Path(__file__).parent
INSTALLED: Final = ROOT / ".peers"
"""Where `requirements/peers.sh` installs; git ignores it."""

STOP_SECONDS: Final = 5.0


def installed(path: str) -> Path:
    """Return a path that `requirements/peers.sh` installed.

    Args:
        path: The path within its directory.

    Raises:
        FileNotFoundError: It is not there.
    """
    found = INSTALLED / path
    if not found.exists():
        raise FileNotFoundError(f"requirements/peers.sh has not installed {path}")
    return found


MESSAGES_A_RUN: Final = 1_000
"""How many messages a run of an orchestrator takes at most: more would be more runs."""


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one process of a peer.

    Attributes:
        name: The scenario.
        queue: The queue's name.
        queue_url: Its URL behind the peer's gate.
        endpoint_url: The peer's gate.
        visibility_seconds: The visibility timeout to receive with, which is the queue's own, too.
        work_seconds: How long the work on a message, or on a batch, takes.
        fails: Whether it fails then.
        at_once: How many messages it may have at once.
        messages: How many there are.
        record: A file to which it appends `failed` and the time when work fails.
    """

    name: str
    queue: str
    queue_url: str
    endpoint_url: str
    visibility_seconds: int
    work_seconds: float
    fails: bool
    at_once: int
    messages: int
    record: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """The same as environment variables, for programs in any language."""
        return {
            "QUEUE": self.queue,
            "QUEUE_URL": self.queue_url,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true",
            "VISIBILITY_SECONDS": str(self.visibility_seconds),
            "WORK_SECONDS": str(self.work_seconds),
            "FAILS": str(int(self.fails)),
            "AT_ONCE": str(self.at_once),
            "RECORD": str(self.record),
        }


@dataclass(frozen=True, slots=True)
class Running:
    """The processes of a peer."""

    processes: Sequence[ServerProcess]

    @property
    def is_running(self) -> bool:
        """Whether all of them run."""
        return all(process.is_running for process in self.processes)

    def processor_seconds(self) -> float:
        """Processor time of all of them, and of all that they started, also of what has ended since."""
        seconds = 0.0
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        return seconds

    def memory_bytes(self) -> int:
        """Return their memory; pages that processes share are counted once (the proportional set size)."""
        total = 0
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss
        return total

    def _members(self) -> Iterator[psutil.Process]:
        for process in self.processes:
            for pid in process.session_pids():
                with suppress(psutil.NoSuchProcess):
                    yield psutil.Process(pid)


class Peer(ABC):
    """One of the compared programs.

    Attributes:
        name: Its name on the command line and in names of queues.
        title: Its name on the page.
        how: How it is configured, in a sentence for the page.
        extends: Whether it extends visibility timeouts; where it does not, the queue's own outlasts the work.
        scenarios: Its scenarios, by their names on the command line.
        at_once: How many messages it may have at once where there is no work; None is as many as most.
    """

    name: str
    title: str
    how: str
    extends: bool = True
    scenarios: Collection[str] = ("work", "held", "throughput")
    at_once: int | None = None

    @property
    @abstractmethod
    def version(self) -> str:
        """The version that runs."""

    @abstractmethod
    def running(self, jobs: Sequence[Job], directory: Path) -> AbstractContextManager[Running]:
        """Run it for these jobs, each on its own queue, until the block ends."""

    def send(self, sqs: SQSClient, queue_url: str, job: Job) -> None:
        """Send it its messages, directly to the server."""
        for start in range(0, job.messages, 10):
            numbers = range(start, min(start + 10, job.messages))
            sqs.send_message_batch(
                QueueUrl=queue_url,
                Entries=[{"Id": str(number), "MessageBody": json.dumps({"order": number})} for number in numbers],
            )


class Program(Peer):
    """A peer that is a program: a process for each queue, which is told all by its environment."""

    @property
    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """The program and its arguments."""

    @contextmanager
    def running(self, jobs: Sequence[Job], directory: Path) -> Iterator[Running]:
        processes: list[ServerProcess] = []
        try:
            processes.extend(self._start(job, directory) for job in jobs)
            yield Running(processes)
        finally:
            request_stop(processes)
            await_stop(processes, STOP_SECONDS)

    def options(self, job: Job) -> Sequence[str]:
        """More arguments than those of every job."""
        return ()

    def _start(self, job: Job, directory: Path) -> ServerProcess:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return start_process(
            f"{self.title} ({job.name})",
            [*self.command, *self.options(job)],
            log_path=directory / f"{job.queue}.log",
            environment={**inherited, **job.variables},
            directory=directory,
        )


class Boto3Loop(Program):
    """A loop as people write it by hand."""

    name = "boto3"
    title = "a loop over boto3"
    how = (
        "batches; a thread calls `change_message_visibility_batch` at half of the visibility timeout, and with 0 when "
        "the work fails"
    )

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "boto3_loop" / "consumer.py")

    @property
    def version(self) -> str:
        return f"boto3 {version('boto3')}"


class Boto3Threads(Program):
    """The least that a consumer does, in Python."""

    name = "boto3-10"
    title = "ten threads of boto3"
    how = "they share a client; each receives ten, and deletes them by `delete_message_batch`; nothing is extended"
    extends = False
    scenarios = ("throughput",)

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "boto3_loop" / "threads.py")

    @property
    def version(self) -> str:
        return f"boto3 {version('boto3')}"


class SameCalls(Program):
    """The extensions of sqs-lease, without sqs-lease."""

    name = "same-calls"
    title = "the same extensions by boto3"
    how = "one thread receives, and sends the calls that sqs-lease sends for what it holds; it does nothing else"
    scenarios = ("held",)

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "boto3_loop" / "same_calls.py")

    @property
    def version(self) -> str:
        return f"boto3 {version('boto3')}"


class Ours(Program):
    """sqs-lease without an orchestrator."""

    name = "ours"
    title = "**sqs-lease**, plain Python"
    how = "`with lease(...)` at its defaults; `linger` 60 s where thousands are held"

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "ours" / "leases.py")

    @property
    def version(self) -> str:
        return version("sqs-lease")


class OursByThousands(Ours):
    """sqs-lease without an orchestrator, whose batches are large."""

    name = "ours-1000"
    title = "**sqs-lease**, plain Python, 1 000 a lease"
    how = "`with lease(...)` with `max_messages` 1 000 and `linger` 60 s"
    scenarios = ("throughput",)
    at_once = 1_000


class OursConsumer(Ours):
    """sqs-lease as a consumer that lives as long as its program."""

    name = "consumer"
    title = "**sqs-lease** `Consumer`, plain Python"
    how = (
        "`Consumer.run` with ten threads, at most a hundred messages at once; `Consumer.run_batches` with one batch "
        "and `linger` 60 s where thousands are held"
    )

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "ours" / "consumer.py")


class SqsConsumer(Program):
    """sqs-consumer for Node.js."""

    name = "sqs-consumer"
    title = "sqs-consumer (Node.js)"
    how = (
        "`handleMessageBatch` with `batchSize` 10, `heartbeatInterval` at half of the visibility timeout, "
        "`terminateVisibilityTimeout`; one consumer for ten messages at once"
    )

    @property
    def command(self) -> Sequence[str | Path]:
        return ("/usr/bin/env", "node", INSTALLED / "sqs_consumer" / "consumer.mjs")

    @property
    def version(self) -> str:
        package = installed("sqs_consumer/node_modules/sqs-consumer/package.json")
        node = subprocess.run(["node", "--version"], capture_output=True, check=True, text=True).stdout.strip()
        return f"{json.loads(package.read_text())['version']}, Node.js {node.removeprefix('v')}"


class CeleryWorker(Program):
    """Celery, whose tasks SQS carries."""

    name = "celery"
    title = "Celery, SQS as its broker"
    how = (
        "`task_acks_late`, `task_acks_on_failure_or_timeout` off, `worker_prefetch_multiplier` 1, a pool of threads; "
        "its one `visibility_timeout` is twice the work; a message is a task of its own"
    )
    extends = False
    _bin: Final = INSTALLED / "celery" / "bin"

    @property
    def command(self) -> Sequence[str | Path]:
        return (self._bin / "celery", "--workdir", HERE / "celery_worker", "-A", "tasks", "worker", "--pool", "threads")

    def options(self, job: Job) -> Sequence[str]:
        return ("--concurrency", str(job.at_once), "--without-gossip", "--without-mingle", "--without-heartbeat")

    @property
    def version(self) -> str:
        asked = "from importlib.metadata import version as v; print(v('celery') + ', kombu ' + v('kombu'))"
        return subprocess.run(
            [self._bin / "python", "-c", asked], capture_output=True, check=True, text=True
        ).stdout.strip()

    def send(self, sqs: SQSClient, queue_url: str, job: Job) -> None:
        server = sqs.meta.endpoint_url
        subprocess.run(
            [self._bin / "python", HERE / "celery_worker" / "tasks.py", str(job.messages)],
            env={**job.variables, "QUEUE_URL": queue_url, "AWS_ENDPOINT_URL": server},
            check=True,
        )


class Benthos(Program):
    """Benthos, which has been Redpanda Connect since."""

    name = "benthos"
    title = "Benthos `aws_sqs` (Go)"
    how = (
        "`wait_time_seconds` 20, a pipeline thread for each message, failed ones are rejected; it extends all that "
        "it has every second"
    )

    @property
    def command(self) -> Sequence[str | Path]:
        return (INSTALLED / "benthos" / "benthos", "-c", HERE / "benthos" / "consumer.yaml")

    @property
    def version(self) -> str:
        installed("benthos/benthos")
        modules = (HERE / "benthos" / "go.mod").read_text()
        return next(
            line.split()[-1].removeprefix("v") for line in modules.splitlines() if "benthosdev/benthos/v4 v" in line
        )


class Spring(Program):
    """Spring Cloud AWS, with Spring Boot."""

    name = "spring"
    title = "Spring Cloud AWS (Java)"
    how = (
        "`@SqsListener` with an asynchronous method, `ImmediateRetryAsyncErrorHandler`; it extends nothing by itself, "
        "so `messageVisibility` is twice the work"
    )
    extends = False

    @property
    def command(self) -> Sequence[str | Path]:
        target = INSTALLED / "spring" / "target"
        return (
            "/usr/bin/env",
            "java",
            "-cp",
            f"{target}/spring-consumer-1.jar:{target}/dependency/*",
            "peers.Consumer",
        )

    @property
    def version(self) -> str:
        jars = installed("spring/target/dependency")
        (jar,), (boot,) = jars.glob("spring-cloud-aws-sqs-*.jar"), jars.glob("spring-boot-[0-9]*.jar")
        return f"{jar.stem.removeprefix('spring-cloud-aws-sqs-')}, Spring Boot {boot.stem.removeprefix('spring-boot-')}"


def _described(job: Job) -> Mapping[str, Any]:
    """A job for the definitions of an orchestrator, in JSON's types."""
    return {
        "name": job.name,
        "queue_url": job.queue_url,
        "endpoint_url": job.endpoint_url,
        "visibility_seconds": job.visibility_seconds,
        "work_seconds": job.work_seconds,
        "fails": job.fails,
        "record": str(job.record),
        "a_run": min(job.messages, MESSAGES_A_RUN),
    }


def _runs(job: Job) -> int:
    return -(-job.messages // MESSAGES_A_RUN)


class OnAirflow(Peer):
    """A DAG for each queue, on one real Airflow: LocalExecutor, one triggerer, PostgreSQL."""

    @contextmanager
    def running(self, jobs: Sequence[Job], directory: Path) -> Iterator[Running]:
        described = [{**_described(job), "connection": f"peer_{job.name.replace('-', '_')}"} for job in jobs]
        connections = {
            f"AIRFLOW_CONN_PEER_{job.name.replace('-', '_').upper()}": json.dumps(
                {
                    "conn_type": "aws",
                    "login": "test",
                    "password": "test",
                    "extra": {"endpoint_url": job.endpoint_url, "region_name": REGION},
                }
            )
            for job in jobs
        }
        with (
            # A hundred runs at once wait for SQLite for more than a minute, and then fail.
            postgres_server(migrated_postgres()) as database,
            airflow_stack(
                directory / f"airflow-{jobs[0].name}",
                HERE / "airflow_dags",
                {"PEER": self.name, "PEER_JOBS": json.dumps(described), **connections},
                database_url=database.url,
            ) as stack,
        ):
            for job in jobs:
                stack.wait_for_dag(job.name)
            for job in jobs:
                for _ in range(_runs(job)):
                    stack.api.trigger(job.name)
            yield Running([*stack.processes.values(), database.process])

    @property
    def version(self) -> str:
        return f"{self._package()}, Airflow {version('apache-airflow-core')}"

    @abstractmethod
    def _package(self) -> str:
        """The version of what consumes."""


class OursOnAirflow(OnAirflow):
    """sqs-lease in a DAG."""

    name = "ours-airflow"
    title = "**sqs-lease** on Airflow"
    how = (
        "`with sqs_lease(...)` around one task, at its defaults but for the visibility timeout; `linger` 60 s where "
        "thousands are held"
    )

    def _package(self) -> str:
        return version("sqs-lease")


class StockSensor(OnAirflow):
    """The sensor of Airflow's own provider, as it comes."""

    name = "sqs-sensor"
    title = "`SqsSensor`, Airflow"
    how = "deferrable, at its defaults: it deletes what it reads, before the work"
    extends = False
    scenarios: Collection[str] = (
        "work",
        "throughput",
    )  # The messages are no longer in the queue while it works on them.

    def _package(self) -> str:
        return f"provider {version('apache-airflow-providers-amazon')}"


class KeepingSensor(StockSensor):
    """The sensor of Airflow's own provider, told to leave messages in the queue."""

    name = "sqs-sensor-kept"
    title = "`SqsSensor`, told not to delete"
    how = (
        "`delete_message_on_reception=False`, a last task deletes; nothing extends, so the queue's visibility timeout "
        "is twice the work"
    )
    scenarios = Peer.scenarios


class OursOnDagster(Peer):
    """sqs-lease in a job of Dagster for each queue: web server, daemon and code server, SQLite."""

    name = "ours-dagster"
    title = "**sqs-lease** on Dagster"
    how = (
        "`with queue.lease(context)` in an op, at its defaults; `linger` 60 s where thousands are held; the in-process "
        "executor"
    )

    @property
    def version(self) -> str:
        return f"{version('sqs-lease')}, Dagster {version('dagster')}"

    @contextmanager
    def running(self, jobs: Sequence[Job], directory: Path) -> Iterator[Running]:
        described = [{**_described(job), "name": job.name.replace("-", "_")} for job in jobs]
        environment = {**jobs[0].variables, "PEER_JOBS": json.dumps(described)}
        # Each job's queue names its own gate.
        del environment["AWS_ENDPOINT_URL"]
        home = directory / f"dagster-{jobs[0].name}"
        definitions = HERE / "dagster_jobs.py"
        with dagster_stack(home, definitions, environment, stop_grace_seconds=STOP_SECONDS) as stack:
            for job, description in zip(jobs, described, strict=True):
                for _ in range(_runs(job)):
                    stack.api.launch(description["name"])
            yield Running(list(stack.processes.values()))


PEERS: Final[Mapping[str, type[Peer]]] = {
    peer.name: peer
    for peer in (
        Boto3Loop,
        Boto3Threads,
        SameCalls,
        OursConsumer,
        Ours,
        OursByThousands,
        SqsConsumer,
        CeleryWorker,
        StockSensor,
        KeepingSensor,
        OursOnAirflow,
        Benthos,
        Spring,
        OursOnDagster,
    )
}
"""By their names, in the order in which they run."""
