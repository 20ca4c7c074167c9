"""The draw of a round: messages, and faults with their moments, all from one seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Final, Literal

LATEST_START_SECONDS: Final = 6.0
SHORTEST_SECONDS: Final = 0.5
ORDINARY_FAULTS: Final = (1, 2, 2, 3)


class Kind(Enum):
    """A kind of fault."""

    KILL = "kill -9"
    STOP = "SIGSTOP"
    CUT = "network cut"
    SILENCE = "no answers"
    LOST = "lost answers"
    ERRORS = "errors 500 and 503"
    THROTTLE = "throttling"
    LATENCY = "latency"
    CLOCK = "clock step"
    DISK = "disk full"
    MEMORY = "out of memory"
    DATABASE = "database restart"


AWAY: Final = frozenset(
    {Kind.STOP, Kind.CUT, Kind.SILENCE, Kind.LOST, Kind.ERRORS, Kind.THROTTLE, Kind.LATENCY, Kind.MEMORY}
)
"""During these, a worker or its service is away: a lease that ends then, ends by what is promised."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a round.

    Attributes:
        kind: Its kind.
        worker: The number of the worker that it hits; all share a disk and a database.
        starts_after_seconds: When, after the messages were sent.
        lasts_seconds: For how long; after a kill, until the worker is started again.
        strength: From 0 to 1; what it means depends on the kind.
    """

    kind: Kind
    worker: int
    starts_after_seconds: float
    lasts_seconds: float
    strength: float

    def __str__(self) -> str:
        return (
            f"{self.kind.value} on worker {self.worker} after {self.starts_after_seconds:.1f} s "
            f"for {self.lasts_seconds:.1f} s, strength {self.strength:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Work:
    """One message.

    Attributes:
        number: Its number in the round.
        kind: `good`; `flaky`, which fails the first time; or `poison`, which goes to the dead-letter queue.
        seconds: How long the work on it takes.
        settles_early: Whether it is deleted as soon as it is done, and not at the end of its batch.
        group: Its message group, on a FIFO queue.
    """

    number: int
    kind: Literal["good", "flaky", "poison"]
    seconds: float
    settles_early: bool
    group: int = 0


@dataclass(frozen=True, slots=True)
class Traits:
    """The limits of a host.

    Attributes:
        name: The host.
        workers: How many workers it has.
        faults: The faults that it can have.
        visibility_seconds: The visibility timeouts to draw from.
        messages: The least and the most messages.
        work_seconds: The shortest and the longest work on a message.
        kinds: The kinds of messages to draw from.
        groups: How many message groups there are; 0 is a standard queue.
        hits: The workers that a fault of some kind may hit, some of them more often than others; all of them where a
            kind is not named.
        latest_start_seconds: How long after the messages were sent the last fault begins.
    """

    name: str
    workers: int
    faults: tuple[Kind, ...]
    visibility_seconds: tuple[int, ...]
    messages: tuple[int, int]
    work_seconds: tuple[float, float]
    kinds: tuple[Literal["good", "flaky", "poison"], ...]
    groups: int = 0
    hits: Mapping[Kind, tuple[int, ...]] = field(default_factory=dict)
    latest_start_seconds: float = LATEST_START_SECONDS


@dataclass(frozen=True, slots=True)
class Plan:
    """A round.

    Attributes:
        host: Where it runs.
        seed: The seed that it was drawn from.
        visibility_seconds: The queue's visibility timeout.
        messages: The messages that are sent.
        faults: The faults, in the order of their starts.
    """

    host: str
    seed: int
    visibility_seconds: int
    messages: tuple[Work, ...]
    faults: tuple[Fault, ...]


def draw(traits: Traits, seed: int) -> Plan:
    """Draw a round. The same host and seed give the same one."""
    random = Random(f"{traits.name} {seed}")
    visibility = random.choice(traits.visibility_seconds)
    shortest, longest = traits.work_seconds
    messages = tuple(
        Work(
            number,
            random.choice(traits.kinds),
            round(random.uniform(shortest, longest), 2),
            random.random() < 0.3,
            random.randrange(traits.groups) if traits.groups else 0,
        )
        for number in range(random.randint(*traits.messages))
    )
    faults: dict[tuple[Kind, int], Fault] = {}
    for _ in range(random.choice(ORDINARY_FAULTS)):
        kind = random.choice(traits.faults)
        fault = Fault(
            kind,
            random.choice(traits.hits.get(kind, range(traits.workers))),
            round(random.uniform(0, traits.latest_start_seconds), 2),
            # As many short ones as long ones: up to twice the visibility timeout.
            round(SHORTEST_SECONDS * (4 * visibility) ** random.random(), 2),
            round(random.random(), 2),
        )
        # A worker has one fault of a kind at a time.
        shared = fault.kind in {Kind.DISK, Kind.DATABASE}
        faults.setdefault((fault.kind, -1 if shared else fault.worker), fault)
    ordered = sorted(faults.values(), key=lambda fault: fault.starts_after_seconds)
    return Plan(traits.name, seed, visibility, messages, tuple(ordered))
