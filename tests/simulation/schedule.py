"""Runs the schedule of one seed to its end and checks it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from sqs_lease.testing import (
    NO_FAULT,
    CallRate,
    Fault,
    FaultRule,
    HeavyTail,
    MemorySqs,
    Operation,
    Outages,
    RandomFaults,
    TransportCall,
)
from sqs_lease.testing.service_errors import ACCESS_DENIED, THROTTLED
from tests.simulation.checks import DRAIN_SECONDS, Checker
from tests.simulation.journal import Journal, Violation
from tests.simulation.lease_checks import LeaseChecker
from tests.simulation.plan import (
    Crash,
    Freeze,
    Incident,
    PassOn,
    Plan,
    QueuePlan,
    Reopen,
    Shutdown,
    WallJump,
    Writing,
    draw_plan,
)
from tests.simulation.process import WATCH_SECONDS, ConsumerProcess, Setting
from tests.simulation.store import Run, Store
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """How a schedule went.

    Attributes:
        violations: The rules that were broken, first of all.
        trace: The events, line by line; empty without tracing.
        figures: The numbers that two runs of one seed must share.
        counts: How much of what was simulated.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    trace: tuple[str, ...]
    figures: tuple[object, ...]
    counts: Mapping[str, int]

    def __str__(self) -> str:
        lines = [str(self.plan), *self.trace, *(f"VIOLATED {violation}" for violation in self.violations)]
        lines.append(f"Replay: python -m tests.simulation --trace {self.plan.seed}")
        return "\n".join(lines)


def run_schedule(seed: int, *, tracing: bool = False) -> Result:
    """Run the schedule of a seed.

    Args:
        seed: The seed.
        tracing: Write down what happens, for people; it changes nothing else.
    """
    with _silence(), _no_collections():
        schedule = _Schedule(draw_plan(seed), tracing=tracing)
        try:
            return schedule.run()
        finally:
            schedule.world.end()


def failing_seeds(seeds: Iterable[int]) -> list[int]:
    """Run the schedules of several seeds and return those that broke a rule."""
    return [seed for seed in seeds if run_schedule(seed).violations]


def figures_of(seeds: Iterable[int]) -> tuple[list[int], Mapping[str, int]]:
    """Run the schedules of several seeds; return those that broke a rule, and what was simulated."""
    failed: list[int] = []
    counted: Counter[str] = Counter()
    for seed in seeds:
        result = run_schedule(seed)
        counted.update(result.counts)
        if result.violations:
            failed.append(seed)
    return failed, counted


def digest(seed: int) -> str:
    """Digest the events in a seed's schedule: a short text that any difference changes."""
    return hashlib.sha256(repr(run_schedule(seed).figures).encode()).hexdigest()[:16]


class _Schedule:
    """One schedule as it runs."""

    def __init__(self, plan: Plan, *, tracing: bool) -> None:
        self.world = World()
        self._plan = plan
        self._journal = Journal(self.world.clock, tracing=tracing)
        self._store = Store()
        self._sqs = MemorySqs(self.world.clock, in_flight_limit=plan.in_flight_limit, choices=plan.choices)
        self._bodies: dict[str, str] = {}
        self._groups: dict[str, list[str]] = {}
        self._processes: list[ConsumerProcess] = []
        self._away: dict[str, list[tuple[float, float]]] = {}
        self._started = 0
        self._drained = False
        self._dead_letter_urls: list[str] = []
        self._queue_urls = {}
        for queue in plan.queues:
            dead_letter_url = self._create_dead_letter_queue(queue)
            self._queue_urls[queue.name] = self._sqs.create_queue(
                queue.name,
                visibility_seconds=queue.policy.visibility_seconds,
                dead_letter_queue_url=dead_letter_url,
                max_receive_count=None if dead_letter_url is None else queue.max_receive_count or 1000,
            )
        self._setting = Setting(
            plan, self.world, self._sqs, self._store, self._journal, self._faults(), self._queue_urls, self._die
        )

    def run(self) -> Result:
        service = self.world.service
        service.create_task(self._send())
        for incident in self._plan.incidents:
            service.create_task(self._cause(incident))
        service.create_task(self._drain())
        for _ in range(self._plan.processes):
            self._start_process()
        try:
            self.world.run(until=self._plan.calm_at + DRAIN_SECONDS, stop=self._is_over)
        except SystemExit:
            self._journal.violated("nothing fails unexpectedly", "a plug-in ended an event loop")
        if not self._journal.violations and not self.world.errors:
            self._check()
        for context in self.world.errors:
            self._journal.violated(
                "nothing fails unexpectedly", f"{context.get('message')}: {context.get('exception')!r}"
            )
        return Result(
            self._plan,
            tuple(self._journal.violations),
            tuple(self._journal.trace),
            self._figures(),
            self._counts(),
        )

    def _is_over(self) -> bool:
        return self._drained or bool(self._journal.violations) or bool(self.world.errors)

    def _check(self) -> None:
        if not self._drained:
            for name, url in self._queue_urls.items():
                for message_id, state in self._sqs.contents(url).items():
                    self._journal.violated("1 nothing is forgotten", f"{message_id} is still {state.value} in {name}")
            for process in self._processes:
                if not process.gone and (process.is_calling or not process.idle):
                    self._journal.violated("1 nothing is held for ever", f"{process.name} holds leases still")
            return
        dead_bodies: set[str] = set()
        for url in self._dead_letter_urls:
            while messages := self._sqs.receive(url, max_messages=10, visibility_seconds=43_200):
                dead_bodies.update(message.body for message in messages)
                # A FIFO group gives no more while these are in flight.
                self._sqs.delete(url, [message.receipt for message in messages])
        trail = self._sqs.trail()
        now = self.world.clock.now()
        leases = LeaseChecker(self._plan, trail, self._store, self._journal, away=self._away, ended_at=now)
        checker = Checker(
            trail,
            self._store,
            self._journal,
            leases,
            dead_letter_urls=self._dead_letter_urls,
            away=self._away,
            # It looks now and then, or is passing the batch on, which takes a call's time at most.
            notices_within_seconds=max(WATCH_SECONDS, self._plan.call_timeout_seconds) + 0.1,
        )
        checker.check(self._bodies, dead_bodies, self._groups)

    def _figures(self) -> tuple[object, ...]:
        entries = self._sqs.trail().entries()
        return (
            self.world.clock.now(),
            len(self._store.runs),
            tuple(self._store.table.rows),
            tuple(str(entry) for entry in entries),
        )

    def _counts(self) -> Mapping[str, int]:
        calls = [call for calls in self._journal.all_calls().values() for call in calls]
        return {
            f"{self._plan.size.value} schedules": 1,
            "simulated seconds": round(self.world.clock.now()),
            "messages": len(self._bodies),
            "leases": len(self._journal.leases()),
            "lapses": sum(len(record.lapsed_at) for record in self._journal.leases().values()),
            "calls about leases": len(calls),
            "of them throttled": sum(call.is_throttled for call in calls),
        }

    # Events

    async def _send(self) -> None:
        sends = sorted(
            (
                (at, place, queue.name, group)
                for queue in self._plan.queues
                for place, (at, group) in enumerate(queue.sends)
            ),
            key=lambda send: send[:3],
        )
        for at, place, name, group in sends:
            await asyncio.sleep(at - self.world.clock.now())
            body = f"{name}-{place}"
            message_id = self._sqs.send(
                self._queue_urls[name],
                body,
                message_group_id=group,
                deduplication_id=body if name.endswith(".fifo") else None,
            )
            self._bodies[message_id] = body
            if name.endswith(".fifo"):
                self._groups.setdefault(f"{name} {group}", []).append(message_id)
            self._journal.say("sender", "sends", message_id, "to", name)

    async def _drain(self) -> None:
        """Once it is calm, see to it that a process is there, and wait for all to end."""
        await asyncio.sleep(self._plan.calm_at)
        self._journal.say("world", "is calm")
        for process in self._processes:
            self._thaw(process)
        self._start_process()
        while not self._drained:
            await asyncio.sleep(5)
            states = [self._sqs.contents(url) for url in self._queue_urls.values()]
            if not any(states) and all(process.gone or process.idle for process in self._processes):
                self._drained = await self._is_quiet()

    async def _is_quiet(self) -> bool:
        """Whether nothing is held, and no call is under way, after a while; check then what is kept."""
        await asyncio.sleep(2 * self._plan.call_timeout_seconds)
        left = [process for process in self._processes if not process.gone]
        if any(process.is_calling or not process.idle for process in left):
            return False
        for process in left:
            process.check_leftovers(at_end=True)
        return True

    async def _cause(self, incident: Incident) -> None:
        await asyncio.sleep(incident.at)
        process = self._processes[incident.process]
        if process.gone or process.loop.frozen:
            return
        self._journal.say("world", process.name, incident)
        match incident:
            case Crash():
                process.kill()
                self._away_from(process, math.inf)
                await asyncio.sleep(incident.restart_seconds)
                self._start_process(in_place_of=process)
            case Freeze():
                process.loop.frozen = True
                self._away_from(process, self.world.clock.now() + incident.seconds)
                await asyncio.sleep(incident.seconds)
                self._thaw(process)
            case Shutdown():
                process.shut_down(incident.leaving)
                self._away_from(process, math.inf)
                await asyncio.sleep(incident.restart_seconds)
                self._start_process(in_place_of=process)
            case Reopen():
                process.reopen(adopts_first=incident.adopts_first)
            case PassOn():
                await self._pass_to_and_fro(incident)
            case WallJump():
                process.clock.wall_error += incident.seconds

    async def _pass_to_and_fro(self, incident: PassOn) -> None:
        here, there = incident.process, incident.other
        for turn in range(incident.turns):
            process = self._processes[here]
            if not process.gone and not process.loop.frozen:
                writing = incident.writing if turn == incident.turns - 1 else Writing.DONE
                process.pass_batches_on(writing, partial(self._hand, there, incident.taken_after_seconds))
            await asyncio.sleep(incident.pause_seconds)
            here, there = there, here

    def _hand(self, place: int, seconds: float, run: Run) -> None:
        """Have a process take a run over that was passed on, after a while."""

        _, giver = run.owners[-2]

        def take() -> None:
            process = self._processes[place]
            # Work inside a process ends with it, and so does what it passed on to itself.
            if not process.gone and not (run.hosted and process.name != giver):
                process.take_over(run)

        self.world.service.call_soon(lambda: self.world.service.call_later(seconds, take))

    def _die(self, process: ConsumerProcess) -> None:
        """Kill a process at this moment, by its own doing, and start another in its place."""
        restart_seconds = 10.0

        async def replace_it() -> None:
            if process.gone:
                return
            process.kill()
            self._away_from(process, math.inf)
            await asyncio.sleep(restart_seconds)
            self._start_process(in_place_of=process)

        self.world.service.call_soon(lambda: self.world.service.create_task(replace_it()))

    def _thaw(self, process: ConsumerProcess) -> None:
        if process.loop.frozen:
            process.loop.frozen = False
            began_at, _ = self._away[process.name].pop()
            self._away[process.name].append((began_at, self.world.clock.now()))
            self._journal.say("world", process.name, "goes on")

    def _away_from(self, process: ConsumerProcess, until: float) -> None:
        self._away.setdefault(process.name, []).append((self.world.clock.now(), until))

    def _start_process(self, *, in_place_of: ConsumerProcess | None = None) -> None:
        if in_place_of is not None and in_place_of not in self._processes:
            return  # it was killed while it shut down, and is replaced already
        number = self._started
        self._started += 1
        error = self._plan.wall_errors[number % len(self._plan.wall_errors)]
        process = ConsumerProcess(self._setting, number, wall_error=error)
        self._journal.say("world", process.name, "starts")
        if in_place_of is None:
            self._processes.append(process)
        else:
            self._processes[self._processes.index(in_place_of)] = process

    def _create_dead_letter_queue(self, queue: QueuePlan) -> str | None:
        if not queue.has_dead_letter_queue:
            return None
        suffix = ".fifo" if queue.name.endswith(".fifo") else ""
        url = self._sqs.create_queue(f"{queue.name.removesuffix('.fifo')}-dead{suffix}")
        self._dead_letter_urls.append(url)
        return url

    def _faults(self) -> FaultRule:
        plan = self._plan.faults
        random = Random(f"faults {self._plan.seed}")
        rule: FaultRule = RandomFaults(
            random=random,
            latency_seconds=plan.latency_seconds,
            throttled=plan.throttled,
            unavailable=plan.unavailable,
            failed=plan.failed,
            done_but_failed=plan.done_but_failed,
            refused_connections=plan.refused_connections,
            lost_requests=plan.lost_requests,
            lost_answers=plan.lost_answers,
            noticed_seconds=plan.noticed_seconds,
            throttled_entries=plan.throttled_entries,
            failed_entries=plan.failed_entries,
            unstoppable=0.5,
        )
        if plan.tail is not None:
            rule = HeavyTail(random=random, tail=plan.tail, otherwise=rule)
        if plan.slow_seconds is not None:
            rule = _Slow(random, plan.slow_seconds, rule)
        for queue in self._plan.queues:
            if queue.calls_per_second is not None:
                rule = CallRate(queue.calls_per_second, rule, queue_url=self._queue_urls[queue.name])
        rule = Outages(plan.denied_deletes, rule, error=ACCESS_DENIED, operation=Operation.DELETE)
        rule = Outages(plan.throttled_deletes, rule, error=THROTTLED, operation=Operation.DELETE)
        rule = Outages(plan.throttling, rule, error=THROTTLED)
        rule = Outages(plan.outages, rule, unreachable=plan.unreachable)
        rule = _RefusedOnce(plan.refused_once, rule)
        return lambda call: NO_FAULT if call.at >= self._plan.calm_at else rule(call)


class _RefusedOnce:
    """Refuses single calls: the first of a kind from a time on."""

    def __init__(self, calls: Sequence[tuple[float, Operation]], otherwise: FaultRule) -> None:
        self._calls = list(calls)
        self._otherwise = otherwise

    def __call__(self, call: TransportCall) -> Fault:
        for one in self._calls:
            at, operation = one
            if at <= call.at and operation is call.operation:
                self._calls.remove(one)
                return Fault(error=ACCESS_DENIED)
        return self._otherwise(call)


@dataclass(frozen=True, slots=True)
class _Slow:
    """All calls take about so long, at one moment of which they are carried out."""

    random: Random
    seconds: tuple[float, float]
    otherwise: FaultRule

    def __call__(self, call: TransportCall) -> Fault:
        seconds = self.random.uniform(*self.seconds)
        before = seconds * self.random.random()
        return replace(self.otherwise(call), before_seconds=before, after_seconds=seconds - before)


@contextmanager
def _silence() -> Iterator[None]:
    """The code under test warns about what is done to it on purpose."""
    logger = logging.getLogger("sqs_lease")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Leave alone what a killed process leaves behind: to collect it would run the ``finally`` of its coroutines.

    It also saves time: after the schedule, one collection finds all of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
