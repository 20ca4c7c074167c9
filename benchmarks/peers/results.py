"""The results of a run of the peers, as values and as a file: `results.json`, the source of the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).with_name("results.json")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much each peer is given.

    Attributes:
        messages: Messages of the scenarios with long work.
        visibility_seconds: The visibility timeout, where the peer extends it.
        fixed_visibility_seconds: The visibility timeout of a peer that does not: it has to outlast the work.
        work_seconds: How long the work on a message takes.
        failing_after_seconds: After how long it fails, where it is to fail.
        outage_seconds: How long the peer is cut off.
        outages_after_seconds: When it is, counted from when it has all messages: a run of its own for each.
        held: Messages that are held at once.
        held_seconds: How long that is measured.
        throughput: Messages of the scenario without any work.
        at_once: How many messages the peer is allowed at once in that scenario.
    """

    messages: int = 10
    visibility_seconds: int = 30
    fixed_visibility_seconds: int = 120
    work_seconds: int = 60
    failing_after_seconds: int = 40
    outage_seconds: int = 20
    outages_after_seconds: tuple[int, ...] = (5, 16, 25)
    held: int = 10_000
    held_seconds: int = 40
    throughput: int = 20_000
    at_once: int = 100


@dataclass(frozen=True, slots=True)
class LongWork:
    """Work that takes longer than the visibility timeout, and succeeds.

    Attributes:
        receives: Calls that brought messages.
        empty_receives: Calls that brought none, up to the end of the work.
        extensions: Calls that extended visibility timeouts.
        deletes: Calls that deleted.
        others: All other calls.
        deliveries: Messages that the second consumer was given.
        again: Messages that the peer was given once more.
        done: Messages that the peer deleted.
    """

    receives: int
    empty_receives: int
    extensions: int
    deletes: int
    others: int
    deliveries: int
    again: int
    done: int

    @property
    def requests(self) -> int:
        """The number of requests that AWS would bill."""
        return self.receives + self.empty_receives + self.extensions + self.deletes + self.others


@dataclass(frozen=True, slots=True)
class FailingWork:
    """Work that fails.

    Attributes:
        lost: Messages that are neither visible nor in flight afterwards, though no work on them succeeded.
        delivered_before: Messages that the second consumer was given while the work still ran.
        visible_after_seconds: From the failure to when the next consumer is given the message, the median; None
            when it was not given to a consumer.
    """

    lost: int
    delivered_before: int
    visible_after_seconds: float | None


@dataclass(frozen=True, slots=True)
class Outage:
    """The peer cannot reach the queue for a while, and the second consumer can.

    Attributes:
        after_seconds: When it began.
        deliveries: Messages that the second consumer was given.
        done: Messages that the peer deleted in the end.
        survived: Whether the peer's process runs on.
    """

    after_seconds: int
    deliveries: int
    done: int
    survived: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Many messages at once.

    Attributes:
        messages: How many the peer had at once.
        processor_percent: Of one core, while it holds them.
        memory_megabytes: The memory of its processes.
        requests_a_minute: Calls, while it holds them.
        deliveries: Messages that the second consumer was given.
    """

    messages: int
    processor_percent: float
    memory_megabytes: float
    requests_a_minute: float
    deliveries: int


@dataclass(frozen=True, slots=True)
class Throughput:
    """No work at all.

    Attributes:
        messages: How many were deleted in the time that was measured.
        first_seconds: From the start of the peer to its first message.
        last_seconds: The time that was measured: from when a message was first seen to be received to when the queue
            was empty.
        processor_seconds: Processor time of all of its processes in that time; None where it was not measured, as in
            rows of before.
    """

    messages: int
    first_seconds: float
    last_seconds: float
    processor_seconds: float | None = None

    @property
    def a_second(self) -> float:
        """Messages a second."""
        return self.messages / self.last_seconds if self.last_seconds else 0.0

    @property
    def processor_microseconds(self) -> float | None:
        """Processor time a message, in microseconds."""
        return 1e6 * self.processor_seconds / self.messages if self.processor_seconds and self.messages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The results of one peer.

    Attributes:
        name: Its name on the command line.
        title: Its name on the page.
        version: The version that ran.
        how: How it was configured.
        ran_on: The day.
        sizes: How much it was given.
        load: The machine's load average before the run: more than about 0.5 says that it was not quiet.
        problem: Why there are no figures, or not all of them; empty where there are.
    """

    name: str
    title: str
    version: str
    how: str
    ran_on: str
    sizes: Sizes
    load: float
    problem: str = ""
    long_work: LongWork | None = None
    failing_work: FailingWork | None = None
    outages: tuple[Outage, ...] = ()
    held: Held | None = None
    throughput: Throughput | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """All rows, in the order of the page.

    Attributes:
        machine: Cores, Python and the server, in words.
        rows: A row for each peer that was tried.
    """

    machine: str = ""
    rows: tuple[Row, ...] = field(default=())


def load(path: Path = FILE) -> Results:
    """Load the results of former runs; empty without any."""
    return msgspec.json.decode(path.read_bytes(), type=Results) if path.exists() else Results()


def save(results: Results, path: Path = FILE) -> None:
    """Write the file."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n")
