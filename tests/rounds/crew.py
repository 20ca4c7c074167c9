"""The workers on a stack: what faults hit, what is known of it from outside, and consumers of the smaller hosts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final, Protocol

from benchmarks.peers.proxy import Proxy
from demo.processes import ROOT
from demo.sqs_server import SqsServer
from tests.rounds import recorder
from tests.rounds.audit import Block
from tests.rounds.draw import Kind, Traits
from tests.rounds.faults import impossible_here
from tests.rounds.gate import FaultyGate
from tests.rounds.ledger import Ledger
from tests.rounds.workers import Consumer, Worker, python_environment

FIFO_SUFFIX: Final = ".fifo"


@dataclass(frozen=True, slots=True)
class Ground:
    """The surroundings of a host.

    Attributes:
        directory: For logs and notes.
        server: The SQS server.
        proxy: The proxy before it.
        ledger: Where the gates write down what goes through them.
        disk: The disk for the table.
        queue: The name of the queue.
    """

    directory: Path
    server: SqsServer
    proxy: Proxy
    ledger: Ledger
    disk: Path
    queue: str

    def gate(self, worker: str, number: int) -> FaultyGate:
        """Open a way to the queue."""
        gate = FaultyGate(
            worker=worker,
            ledger=self.ledger,
            random=Random(number),
            # A FIFO queue refuses them on AWS, too.
            stale_deletes_succeed=not self.queue.endswith(FIFO_SUFFIX),
        )
        self.proxy.open(gate)
        return gate

    @property
    def beliefs(self) -> Path:
        """The directory in which the processes record what they believe about their leases."""
        return self.directory / "beliefs"

    @property
    def recorded(self) -> dict[str, str]:
        """The environment that makes Python processes record, also such that are started with nothing else."""
        paths = (recorder.PLACE, ROOT / "providers", ROOT)
        return {**recorder.environment(self.beliefs), "PYTHONPATH": os.pathsep.join(map(str, paths))}


class Crew(Protocol):
    """The processes of a host, which run."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that faults hit, by number."""

    def is_idle(self) -> bool:
        """Whether all of them are up, and none has messages."""

    def blocks(self, since: float) -> list[Block]:
        """The blocks that were entered since a moment."""

    def restart_database(self) -> None:
        """End the database at once, and start it again."""


@dataclass(frozen=True, slots=True)
class Consumers:
    """Programs that lease by themselves."""

    workers: Sequence[Consumer]

    def is_idle(self) -> bool:
        """Whether each has ended its block."""
        return all(worker.is_running and worker.is_idle() for worker in self.workers)

    def blocks(self, since: float) -> list[Block]:
        """The blocks by their notes."""
        return [block for worker in self.workers for block in worker.blocks(since, monotonic())]

    def restart_database(self) -> None:
        """Do nothing: there is none."""


@contextmanager
def consumers(ground: Ground, traits: Traits, command: Callable[[int], Sequence[str | Path]]) -> Iterator[Consumers]:
    """Start programs that consume, and kill them when the block ends.

    Args:
        ground: Where.
        traits: How many, and whether they have clocks.
        command: The program of a worker, by its number, and its arguments but for the path of its notes.
    """
    has_clock = Kind.CLOCK in traits.faults and Kind.CLOCK not in impossible_here()
    with ExitStack() as exits:
        workers = []
        for number in range(traits.workers):
            gate = ground.gate(f"worker-{number}", number)
            worker = Consumer(
                gate.worker,
                gate,
                command(number),
                {
                    **python_environment(gate.endpoint_url, ground.directory),
                    **ground.recorded,
                    "ROUNDS_QUEUE": ground.queue,
                    # A JVM lives for minutes, and is killed.
                    "JDK_JAVA_OPTIONS": (
                        f'-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "-Djava.io.tmpdir={ground.directory}"'
                    ),
                },
                ground.directory,
                has_clock,
            )
            exits.callback(worker.kill)
            worker.start()
            workers.append(worker)
        yield Consumers(workers)
