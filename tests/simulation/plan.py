"""What one seed stands for: queues, processes, policies, work and everything that goes wrong, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from sqs_lease.core.failure_rules import FailureRule, backoff, dead_letter, expire, release
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.testing import ServiceChoices


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue, how it is consumed, and what is sent to it."""

    name: str
    visibility_seconds: int
    policy: RenewalPolicy
    rule: FailureRule
    max_receive_count: int | None
    batch_size: int
    linger_seconds: float
    sends: tuple[tuple[float, str | None], ...]
    """When, and to which message group."""


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """The work on the messages of one run."""

    shortest_seconds: float
    longest_seconds: float
    success: float
    """How probably one try succeeds."""
    retries: int
    together: float
    """How probably a run has one work for all its messages."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """Shares of calls that fail, and the service's absences."""

    latency_seconds: float
    throttled: float
    failed: float
    lost_requests: float
    lost_answers: float
    noticed_seconds: float
    failed_entries: float
    slow: float
    outages: tuple[tuple[float, float], ...]
    unreachable: bool


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to one process at a time."""

    at: float
    process: int


@dataclass(frozen=True, slots=True)
class Crash(Incident):
    """It is killed, and another is started in its place after a while."""

    restart_seconds: float


@dataclass(frozen=True, slots=True)
class Freeze(Incident):
    """Nothing of it runs for a while."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Shutdown(Incident):
    """It is asked to stop, and another is started in its place after a while."""

    leaving: Leaving
    restart_seconds: float


@dataclass(frozen=True, slots=True)
class WallJump(Incident):
    """Somebody sets its calendar's time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one schedule, but for the chances that are drawn on its way.

    Attributes:
        hosted: The work lives and dies with the process that holds the messages (as in Dagster); else it goes
            on elsewhere, and another process takes the leases over (as in Airflow).
        calm_at: When everything stops going wrong.
    """

    seed: int
    queues: tuple[QueuePlan, ...]
    processes: int
    hosted: bool
    choices: ServiceChoices
    in_flight_limit: int
    call_timeout_seconds: float
    work: WorkPlan
    faults: FaultPlan
    incidents: tuple[Incident, ...]
    calm_at: float
    wall_errors: tuple[float, ...] = field(default=())

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.processes} processes, work {'inside' if self.hosted else 'elsewhere'}, "
            f"calm at {self.calm_at:.0f} s, at most {self.in_flight_limit} in flight, {self.choices}",
            f"  {self.work}",
            f"  {self.faults}",
            *(f"  {incident}" for incident in self.incidents),
            *(f"  {queue}" for queue in self.queues),
        ]
        return "\n".join(lines)


def draw_plan(seed: int) -> Plan:
    """Draw the plan of a seed; the same one each time."""
    random = Random(f"plan {seed}")
    calm_at = random.choice([40.0, 90.0, 200.0])
    processes = random.randint(1, 3)
    queues = tuple(_draw_queue(random, number, calm_at) for number in range(random.choice([1, 1, 2, 3])))
    visibility = queues[0].visibility_seconds
    return Plan(
        seed=seed,
        queues=queues,
        processes=processes,
        hosted=random.random() < 0.35,
        choices=ServiceChoices(
            extends_after_expiry=random.random() < 0.5, superseded_handle_changes=random.random() < 0.5
        ),
        in_flight_limit=random.choice([120_000, 120_000, 120_000, 4]),
        call_timeout_seconds=random.choice([2.0, 5.0, 10.0]),
        work=WorkPlan(
            shortest_seconds=random.choice([0.0, 1.0, visibility / 2]),
            longest_seconds=min(visibility * random.choice([0.5, 2, 5, 15]), 300),
            success=random.choice([1.0, 0.9, 0.6]),
            retries=random.choice([0, 0, 1, 3]),
            together=random.choice([0.0, 0.5, 1.0]),
        ),
        faults=_draw_faults(random, calm_at),
        incidents=_draw_incidents(random, calm_at, processes),
        calm_at=calm_at,
        wall_errors=tuple(random.choice([0.0, 0.0, random.uniform(-90, 90)]) for _ in range(8)),
    )


def _draw_queue(random: Random, number: int, calm_at: float) -> QueuePlan:
    fifo = random.random() < 0.35
    visibility = random.choice([10, 10, 20, 30, 30, 60])
    groups: list[str | None] = ["a", "b", "c"] if fifo else [None]
    count = random.choice([1, 5, 12, 25])
    sends = (
        tuple(
            sorted(
                (random.choice([0.0, random.uniform(0, calm_at * 0.9)]), random.choice(groups)) for _ in range(count)
            )
        )
        if fifo
        else tuple(
            (at, None) for at in sorted(random.choice([0.0, random.uniform(0, calm_at * 0.9)]) for _ in range(count))
        )
    )
    return QueuePlan(
        name=f"queue-{number}{'.fifo' if fifo else ''}",
        visibility_seconds=visibility,
        policy=_draw_policy(random, visibility),
        rule=random.choice([release(), release(), release(7), backoff(5, 2, 60, 0.5), expire(), dead_letter()]),
        max_receive_count=random.choice([None, None, 3, 10]),
        batch_size=random.choice([1, 3, 10, 25]),
        linger_seconds=random.choice([0.0, 0.0, 2.0]),
        sends=sends,
    )


def _draw_policy(random: Random, visibility: int) -> RenewalPolicy:
    max_lease = random.choice([43_200, 43_200, 43_200, visibility * 4, visibility * 4, 0])
    kind = random.choice(["growing", "growing", "growing", "threshold", "buffered", "fixed", "never"])
    match kind:
        case "growing":
            return Growing(
                visibility=visibility,
                max_lease=max_lease,
                growth=random.choice([0.0, 0.5, 1.0]),
                ceiling=random.choice([60, 300]),
                margin=random.choice([1 / 3, 1 / 2]),
            )
        case "threshold":
            return Threshold(visibility=visibility, max_lease=max_lease)
        case "buffered":
            return Buffered(visibility=visibility, max_lease=max_lease)
        case "fixed":
            return Fixed(visibility=visibility, max_lease=max_lease, every=visibility * random.choice([0.3, 0.6]))
        case _:
            return Never(visibility=visibility)


def _draw_faults(random: Random, calm_at: float) -> FaultPlan:
    rate = random.choice([0.0, 0.02, 0.1, 0.3])

    def share() -> float:
        return rate * random.choice([0, 0, 0.5, 1])

    outages = []
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        start = random.uniform(0, calm_at)
        outages.append((start, min(start + random.choice([3.0, 15.0, 60.0]), calm_at)))
    return FaultPlan(
        latency_seconds=random.choice([0.0, 0.05, 0.4]),
        throttled=share(),
        failed=share(),
        lost_requests=share(),
        lost_answers=share(),
        noticed_seconds=random.choice([0.5, 5.0, 30.0]),
        failed_entries=share(),
        slow=share() / 2,
        outages=tuple(outages),
        unreachable=random.random() < 0.5,
    )


def _draw_incidents(random: Random, calm_at: float, processes: int) -> tuple[Incident, ...]:
    incidents: list[Incident] = []
    for _ in range(random.choice([0, 0, 1, 2, 4])):
        at = random.uniform(0.5, calm_at)
        process = random.randrange(processes)
        restart = random.choice([1.0, 10.0, 40.0])
        match random.choice(["crash", "crash", "freeze", "shutdown", "jump"]):
            case "crash":
                incidents.append(Crash(at, process, restart))
            case "freeze":
                incidents.append(Freeze(at, process, random.choice([2.0, 12.0, 40.0, 90.0])))
            case "shutdown":
                incidents.append(Shutdown(at, process, random.choice(list(Leaving)), restart))
            case _:
                incidents.append(WallJump(at, process, random.uniform(-600, 600)))
    return tuple(sorted(incidents, key=lambda incident: incident.at))
