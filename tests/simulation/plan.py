"""The plan of one seed: queues, processes, policies, work and everything that goes wrong, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from sqs_lease.core.failure_rules import FailureRule, backoff, dead_letter, expire, release
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from sqs_lease.keeper.keeper import Leaving
from sqs_lease.testing import Operation, ServiceChoices

CROWDED_SHARE = 0.01
LARGE_SHARE = 0.002
_FAR = (90, 3_600, 43_200, 86_400)


class Size(Enum):
    """How many messages a schedule has: how many are sent at most, and how many are taken at once."""

    SMALL = "small"
    """Up to 25."""

    CROWDED = "crowded"
    """Some hundreds in one queue, which come at once."""

    LARGE = "large"
    """Up to 2 000 in one queue, which come at once."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue, how it is consumed, and what is sent to it."""

    name: str
    policy: RenewalPolicy
    rule: FailureRule
    max_receive_count: int | None
    has_dead_letter_queue: bool
    calls_per_second: float | None
    """How many calls the queue allows; None for any number."""
    batch_size: int
    receivers: int
    """How many collections fill one batch side by side."""
    linger_seconds: float
    settle_within_seconds: float
    """How long a settlement may wait for others to fill its call."""
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
    """Shares of calls that fail, how long calls take, and the service's absences."""

    latency_seconds: float
    tail: float | None
    """How thick the tail of the times is that calls take, from 10 ms to 10 s; None: ``latency_seconds`` at most."""
    slow_seconds: tuple[float, float] | None
    """All calls take so long; None: as above."""
    throttled: float
    unavailable: float
    failed: float
    done_but_failed: float
    refused_connections: float
    lost_requests: float
    lost_answers: float
    noticed_seconds: float
    throttled_entries: float
    failed_entries: float
    outages: tuple[tuple[float, float], ...]
    unreachable: bool
    throttling: tuple[tuple[float, float], ...]
    """When every call is throttled."""
    denied_deletes: tuple[tuple[float, float], ...]
    """When a policy forbids deletes."""
    throttled_deletes: tuple[tuple[float, float], ...] = ()
    """When every delete is throttled, and nothing else."""
    refused_once: tuple[tuple[float, Operation], ...] = ()
    """From when on the next call of a kind is refused, and none after it."""


@dataclass(frozen=True, slots=True)
class PlugInPlan:
    """How often what hosts and users plug in raises; shares of questions, from 0 to 1."""

    policy: float
    rule: float
    listener: float
    meter: float
    source: float
    source_seconds: float
    """How long a message source takes at most."""


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
class Reopen(Incident):
    """Its host puts all leases into new batches, and drops the old ones after that or before."""

    adopts_first: bool


class Writing(Enum):
    """The outcome of the write of a batch that is passed on."""

    DONE = "done"
    FAILS = "fails"
    """So the process adopts the batch again itself."""
    KILLED_BEFORE = "killed before it"
    KILLED_AFTER = "killed after it"


@dataclass(frozen=True, slots=True)
class PassOn(Incident):
    """Its batches go to and fro between it and another process, or between two batches of its keeper.

    Attributes:
        other: The other process; itself, for another batch of the same keeper.
        turns: How often they are passed on.
        pause_seconds: How long after each time it is done again.
        taken_after_seconds: When the next holder reads what is written.
        writing: The outcome of the last write.
    """

    other: int
    turns: int
    pause_seconds: float
    taken_after_seconds: float
    writing: Writing


@dataclass(frozen=True, slots=True)
class WallJump(Incident):
    """A user sets its calendar's time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one schedule, but for the chances that are drawn on its way.

    Attributes:
        hosted: The work lives and dies with the process that holds the messages (as in Dagster); else it goes
            on elsewhere, and another process takes the leases over (as in Airflow).
        drops_contents: Processes keep leases alone; a message's content is asked of its source.
        calm_at: When everything stops going wrong.
    """

    seed: int
    size: Size
    queues: tuple[QueuePlan, ...]
    processes: int
    hosted: bool
    drops_contents: bool
    choices: ServiceChoices
    in_flight_limit: int
    call_timeout_seconds: float
    handoff_seconds: float
    quiet_after_stall_seconds: float
    work: WorkPlan
    faults: FaultPlan
    plug_ins: PlugInPlan
    incidents: tuple[Incident, ...]
    calm_at: float
    wall_errors: tuple[float, ...] = field(default=())

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.size.value}, {self.processes} processes, work "
            f"{'inside' if self.hosted else 'elsewhere'}, calm at {self.calm_at:.0f} s, at most "
            f"{self.in_flight_limit} in flight, time-out {self.call_timeout_seconds:g} s, passed on for "
            f"{self.handoff_seconds:g} s, {self.choices}, calendars wrong by {self.wall_errors}",
            f"  {self.work}",
            f"  {self.faults}",
            f"  {self.plug_ins}",
            *(f"  {incident}" for incident in self.incidents),
            *(f"  {queue}" for queue in self.queues),
        ]
        return "\n".join(lines)


def draw_plan(seed: int) -> Plan:
    """Draw the plan of a seed; the same one each time."""
    random = Random(f"plan {seed}")
    drawn = random.random()
    size = Size.LARGE if drawn < LARGE_SHARE else Size.CROWDED if drawn < LARGE_SHARE + CROWDED_SHARE else Size.SMALL
    small = size is Size.SMALL
    calm_at = random.choice([40.0, 80.0, 140.0] if small else [60.0, 120.0])
    processes = random.randint(1, 3 if small else 2)
    count = random.choice([1, 1, 2, 3]) if small else 1
    queues = tuple(_draw_queue(random, number, calm_at, size) for number in range(count))
    visibility = queues[0].policy.visibility_seconds
    plan = Plan(
        seed=seed,
        size=size,
        queues=queues,
        processes=processes,
        hosted=random.random() < 0.35,
        drops_contents=random.random() < 0.5,
        choices=ServiceChoices(
            extends_after_expiry=random.random() < 0.5, superseded_handle_changes=random.random() < 0.5
        ),
        in_flight_limit=random.choice([120_000, 120_000, 120_000, 4]) if small else 120_000,
        call_timeout_seconds=random.choice([2.0, 5.0, 10.0, 10.0]),
        handoff_seconds=300.0,
        quiet_after_stall_seconds=random.choice([0.0, 3.0]),
        work=WorkPlan(
            shortest_seconds=random.choice([0.0, 1.0, visibility / 2]),
            longest_seconds=min(visibility * random.choice([0.5, 2, 5, 15] if small else [1, 2, 4]), 300),
            success=random.choice([1.0, 0.9, 0.6]),
            retries=random.choice([0, 0, 1, 3]),
            together=random.choice([0.0, 0.5, 1.0]),
        ),
        faults=_draw_faults(random, calm_at, size),
        plug_ins=_draw_plug_ins(random),
        incidents=_draw_incidents(random, calm_at, processes),
        calm_at=calm_at,
        wall_errors=tuple(random.choice([0.0, 0.0, random.uniform(-90, 90)]) for _ in range(8)),
    )
    plan = _pass_batches_on(plan, Random(f"passing on {seed}"))
    plan = _refuse_and_throttle(plan, Random(f"refusals {seed}"))
    return plan if small else _fill_slots(plan, Random(f"slots {seed}"))


def _pass_batches_on(plan: Plan, random: Random) -> Plan:
    """Pass batches on by what is written down, between machines that do not agree on the time."""
    incidents = list(plan.incidents)
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        process = random.randrange(plan.processes)
        other = process if plan.hosted or random.random() < 0.25 else random.randrange(plan.processes)
        incidents.append(
            PassOn(
                random.uniform(0.5, plan.calm_at),
                process,
                other,
                turns=random.choice([1, 2, 5, 20]),
                pause_seconds=random.choice([0.5, 5.0, 20.0]),
                taken_after_seconds=random.choice([0.0, 1.0, 5.0, 25.0]),
                writing=random.choice([Writing.DONE, *Writing]),
            )
        )
    wall_errors = plan.wall_errors
    match random.choice(["as drawn", "as drawn", "as drawn", "a little", "hours", "hours"]):
        case "a little":
            wall_errors = tuple(random.uniform(-2.4, 2.4) for _ in range(8))
        case "hours":
            wall_errors = tuple(random.choice([0.0, *(random.uniform(-far, far) for far in _FAR)]) for _ in range(8))
            for _ in range(random.choice([0, 0, 1, 2])):
                seconds = random.choice([-1, 1]) * random.choice([3_600.0, 43_200.0, 86_400.0])
                at = random.uniform(0.5, plan.calm_at)
                incidents.append(WallJump(at, random.randrange(plan.processes), seconds))
    return replace(
        plan,
        handoff_seconds=random.choice([5.0, 20.0, 60.0, 300.0, 300.0]),
        incidents=tuple(sorted(incidents, key=lambda incident: incident.at)),
        wall_errors=wall_errors,
    )


def _refuse_and_throttle(plan: Plan, random: Random) -> Plan:
    """Refuse single calls, or throttle without an end until it is calm."""
    kinds = [Operation.DELETE, Operation.CHANGE_VISIBILITY]
    refused = [(random.uniform(0, plan.calm_at), random.choice(kinds)) for _ in range(random.choice([0, 0, 0, 1, 3]))]
    faults = replace(plan.faults, refused_once=tuple(sorted(refused, key=lambda one: one[0])))
    # Where many wait for their turn, a throttled queue leaves most of them without a try for long.
    seldom = 12 if plan.size is Size.SMALL else 2
    throttled = random.choice([*(["nothing"] * seldom), "all", "deletes"])
    calm_at = plan.calm_at
    if throttled != "nothing":
        began_at = random.uniform(0, calm_at / 2)
        calm_at = max(calm_at, began_at + random.choice([100.0, 150.0]))
        window = ((began_at, calm_at),)
        all_calls = throttled == "all"
        faults = replace(faults, throttling=window) if all_calls else replace(faults, throttled_deletes=window)
    queues = tuple(replace(queue, settle_within_seconds=random.choice([0.0, 0.0, 0.1])) for queue in plan.queues)
    return replace(plan, queues=queues, faults=faults, calm_at=calm_at)


def _fill_slots(plan: Plan, random: Random) -> Plan:
    """Have many slow calls under way at once, beside leases that are to be extended: settlements, or forwards."""
    (queue,) = plan.queues
    match random.choice(["as drawn", "settlements", "forwards", "forwards"]):
        case "settlements":
            faults = replace(
                plan.faults, slow_seconds=(3.0, 8.0), tail=None, outages=(), throttling=(), throttled_deletes=()
            )
            work = replace(plan.work, together=0.0, success=0.9, longest_seconds=40.0)
            queue = replace(queue, calls_per_second=None, batch_size=200)
            return replace(plan, queues=(queue,), faults=faults, work=work, incidents=())
        case "forwards":
            queue = replace(queue, rule=dead_letter(), has_dead_letter_queue=True, calls_per_second=None)
            work = replace(plan.work, together=0.0, success=0.5, retries=0)
            plug_ins = replace(plan.plug_ins, source=0.0, source_seconds=30.0)
            return replace(plan, queues=(queue,), drops_contents=True, work=work, plug_ins=plug_ins)
        case _:
            return plan


def _draw_queue(random: Random, number: int, calm_at: float, size: Size) -> QueuePlan:
    fifo = random.random() < 0.35
    visibility = random.choice([10, 10, 10.5, 20, 30, 30, 60])
    match size:
        case Size.SMALL:
            count = random.choice([1, 5, 12, 25])
            batch_size = random.choice([1, 3, 10, 25])
            rates = [None, None, None, 0.5, 1.0, 2.0, 5.0]
        case Size.CROWDED:
            count = random.choice([100, 200, 400])
            batch_size = random.choice([50, 100, 200])
            rates = [None, 5.0, 10.0, 20.0]
        case Size.LARGE:
            count = random.choice([1000, 2000])
            batch_size = random.choice([200, 500])
            rates = [None, 20.0, 50.0]
    groups: list[str | None] = ["a", "b", "c"] if fifo else random.choice([[None], [None], [None, "a", "b"]])
    if fifo and size is not Size.SMALL:
        groups = [f"group-{place}" for place in range(20)]
    at_once = 0.5 if size is Size.SMALL else 1.0
    return QueuePlan(
        name=f"queue-{number}{'.fifo' if fifo else ''}",
        policy=_draw_policy(random, visibility),
        rule=random.choice([release(), release(), release(7), backoff(5, 2, 60, 0.5), expire(), dead_letter()]),
        max_receive_count=random.choice([None, None, 3, 10]),
        has_dead_letter_queue=random.random() < 0.85,
        calls_per_second=random.choice(rates),
        batch_size=batch_size,
        receivers=random.choice([1, 1, 1, 2]),
        linger_seconds=random.choice([0.0, 0.0, 2.0] if size is Size.SMALL else [2.0, 5.0]),
        settle_within_seconds=0.0,
        sends=tuple(
            sorted(
                (
                    (0.0 if random.random() < at_once else random.uniform(0, calm_at * 0.9), random.choice(groups))
                    for _ in range(count)
                ),
                key=lambda send: send[0],
            )
        ),
    )


def _draw_policy(random: Random, visibility: float) -> RenewalPolicy:
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


def _draw_faults(random: Random, calm_at: float, size: Size) -> FaultPlan:
    rate = random.choice([0.0, 0.02, 0.1, 0.2])

    def share() -> float:
        return rate * random.choice([0, 0, 0.5, 1])

    def windows(counts: list[int], lengths: list[float]) -> tuple[tuple[float, float], ...]:
        starts = [random.uniform(0, calm_at) for _ in range(random.choice(counts))]
        return tuple((start, min(start + random.choice(lengths), calm_at)) for start in starts)

    speed = random.choice(["quick", "quick", "tail", "tail", "slow"])
    return FaultPlan(
        latency_seconds=random.choice([0.0, 0.05, 0.4]),
        tail=random.choice([1.0, 0.5, 0.3]) if speed == "tail" else None,
        slow_seconds=random.choice([(1.2, 1.2), (0.5, 3.0), (3.0, 8.0)]) if speed == "slow" else None,
        throttled=share(),
        unavailable=share(),
        failed=share() / 2,
        done_but_failed=share() / 2,
        refused_connections=share(),
        lost_requests=share(),
        lost_answers=share(),
        noticed_seconds=random.choice([0.5, 5.0, 30.0]),
        throttled_entries=random.choice([0, 0, 0, 0.3, 0.9]) if size is Size.SMALL else share(),
        failed_entries=share(),
        outages=windows([0, 0, 0, 1, 2], [3.0, 15.0, 60.0]),
        unreachable=random.random() < 0.5,
        throttling=windows([0, 0, 0, 1], [3.0, 10.0, 40.0]),
        denied_deletes=windows([0, 0, 0, 0, 1], [5.0, 30.0]),
    )


def _draw_plug_ins(random: Random) -> PlugInPlan:
    def share() -> float:
        return random.choice([0.0, 0.0, 0.0, 0.05, 1.0])

    return PlugInPlan(
        policy=share(),
        rule=share(),
        listener=share(),
        meter=share(),
        source=random.choice([0.0, 0.0, 0.3]),
        source_seconds=random.choice([0.0, 0.0, 1.0, 30.0]),
    )


def _draw_incidents(random: Random, calm_at: float, processes: int) -> tuple[Incident, ...]:
    incidents: list[Incident] = []
    for _ in range(random.choice([0, 0, 1, 2, 4])):
        at = random.uniform(0.5, calm_at)
        process = random.randrange(processes)
        restart = random.choice([1.0, 10.0, 40.0])
        match random.choice(["crash", "crash", "freeze", "shutdown", "reopen", "jump"]):
            case "crash":
                incidents.append(Crash(at, process, restart))
            case "freeze":
                incidents.append(Freeze(at, process, random.choice([2.0, 12.0, 40.0, 90.0])))
            case "shutdown":
                incidents.append(Shutdown(at, process, random.choice(list(Leaving)), restart))
            case "reopen":
                incidents.append(Reopen(at, process, random.random() < 0.5))
            case _:
                farthest = random.choice([600, 600, 43_200])
                incidents.append(WallJump(at, process, random.uniform(-farthest, farthest)))
    return tuple(sorted(incidents, key=lambda incident: incident.at))
