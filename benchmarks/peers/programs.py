"""The peers: how each is installed, configured, given its messages, and started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psutil

from demo.processes import ROOT, ServerProcess, await_stop, request_stop, start_process
from demo.sqs_server import REGION

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

HERE: Final = Path(__file__).parent
INSTALLED: Final = ROOT / ".peers"
"""Where `requirements/peers.sh` installs; git ignores it."""

STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """What one process of a peer has to do.

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
        """Processor time of all of them, and of all that they started."""
        seconds = 0.0
        for process in self._members():
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds += times.user + times.system
        return seconds

    def memory_bytes(self) -> int:
        """What they have in memory; what processes share is counted once (the proportional set size)."""
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
    """One of those that are compared.

    Attributes:
        name: What it is called on the command line and in names of queues.
        title: What the page calls it.
        how: How it is configured, in a sentence for the page.
        extends: Whether it extends visibility timeouts; where it does not, the queue's own outlasts the work.
    """

    name: str
    title: str
    how: str
    extends: bool = True

    @property
    @abstractmethod
    def version(self) -> str:
        """What runs."""

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
            for job in jobs:
                processes.append(self._start(job, directory))
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
    """What people write by hand."""

    name = "boto3"
    title = "a loop over boto3"
    how = (
        "batches; a thread calls `change_message_visibility_batch` at half of the visibility timeout, and with 0 when the "
        "work fails"
    )

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "boto3_loop" / "consumer.py")

    @property
    def version(self) -> str:
        return f"boto3 {version('boto3')}"


class Ours(Program):
    """sqs-lease without an orchestrator."""

    name = "ours"
    title = "**sqs-lease**, plain Python"
    how = "`with lease(...)` at its defaults"

    @property
    def command(self) -> Sequence[str | Path]:
        return (sys.executable, HERE / "ours" / "consumer.py")

    @property
    def version(self) -> str:
        return version("sqs-lease")


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
        lock = json.loads((HERE / "sqs_consumer" / "package-lock.json").read_text())
        node = subprocess.run(["node", "--version"], capture_output=True, check=True, text=True).stdout.strip()
        return f"{lock['packages']['node_modules/sqs-consumer']['version']}, Node.js {node.removeprefix('v')}"


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


PEERS: Final[Mapping[str, type[Peer]]] = {peer.name: peer for peer in (Boto3Loop, Ours, SqsConsumer, CeleryWorker)}
"""By their names, in the order in which they run."""
