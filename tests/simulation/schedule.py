"""Runs the schedule of one seed to its end and checks it."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random

from sqs_lease.testing import (
    NO_FAULT,
    Fault,
    FaultRule,
    MemorySqs,
    Outages,
    RandomFaults,
    TransportCall,
)
from tests.simulation.checks import DRAIN_SECONDS, Checker
from tests.simulation.journal import Journal, Violation
from tests.simulation.plan import Crash, Freeze, Incident, Plan, Shutdown, WallJump, draw_plan
from tests.simulation.process import ConsumerProcess, Setting
from tests.simulation.store import Store
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """How a schedule went.

    Attributes:
        violations: The rules that were broken, first of all.
        trace: What happened, line by line; empty without tracing.
        figures: What can be compared between two runs of one seed.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    trace: tuple[str, ...]
    figures: tuple[object, ...]

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


def digest(seed: int) -> str:
    """What happened in a seed's schedule, as a short text that any difference changes."""
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
        self._processes: list[ConsumerProcess] = []
        self._away: dict[str, list[tuple[float, float]]] = {}
        self._started = 0
        self._drained = False
        self._dead_letter_urls: list[str] = []
        self._queue_urls = {}
        for queue in plan.queues:
            suffix = ".fifo" if queue.name.endswith(".fifo") else ""
            dead_letter_url = self._sqs.create_queue(f"{queue.name.removesuffix('.fifo')}-dead{suffix}")
            self._dead_letter_urls.append(dead_letter_url)
            self._queue_urls[queue.name] = self._sqs.create_queue(
                queue.name,
                visibility_seconds=queue.visibility_seconds,
                dead_letter_queue_url=dead_letter_url,
                max_receive_count=queue.max_receive_count or 1000,
            )
        self._setting = Setting(
            plan, self.world, self._sqs, self._store, self._journal, self._faults(), self._queue_urls
        )

    def run(self) -> Result:
        service = self.world.service
        service.create_task(self._send())
        for incident in self._plan.incidents:
            service.create_task(self._cause(incident))
        service.create_task(self._drain())
        for _ in range(self._plan.processes):
            self._start_process()
        self.world.run(until=self._plan.calm_at + DRAIN_SECONDS, stop=self._is_over)
        if not self._journal.violations and not self.world.errors:
            self._check()
        for context in self.world.errors:
            self._journal.violated(
                "nothing fails unexpectedly", f"{context.get('message')}: {context.get('exception')!r}"
            )
        return Result(self._plan, tuple(self._journal.violations), tuple(self._journal.trace), self._figures())

    def _is_over(self) -> bool:
        return self._drained or bool(self._journal.violations) or bool(self.world.errors)

    def _check(self) -> None:
        if not self._drained:
            for name, url in self._queue_urls.items():
                for message_id, state in self._sqs.contents(url).items():
                    self._journal.violated("1 nothing is forgotten", f"{message_id} is still {state.value} in {name}")
            for process in self._processes:
                if not process.gone and not process.idle:
                    self._journal.violated("1 nothing is held for ever", f"{process.name} holds leases still")
            return
        dead_bodies: set[str] = set()
        for url in self._dead_letter_urls:
            while messages := self._sqs.receive(url, max_messages=10, visibility_seconds=43_200):
                dead_bodies.update(message.body for message in messages)
                # A FIFO group gives no more while these are in flight.
                self._sqs.delete(url, [message.receipt for message in messages])
        checker = Checker(
            self._sqs.trail(), self._store, self._journal, away=self._away, dead_letter_urls=self._dead_letter_urls
        )
        checker.check(self._bodies, dead_bodies)

    def _figures(self) -> tuple[object, ...]:
        entries = self._sqs.trail().entries()
        return (
            self.world.clock.now(),
            len(self._store.runs),
            tuple(self._store.table.rows),
            tuple(str(entry) for entry in entries),
        )

    # What happens

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
                self._queue_urls[name], body, message_group_id=group, deduplication_id=body if group else None
            )
            self._bodies[message_id] = body
            self._journal.say("sender", "sends", message_id, "to", name)

    async def _drain(self) -> None:
        """Once it is calm, see to it that somebody is there, and wait for all to end."""
        await asyncio.sleep(self._plan.calm_at)
        self._journal.say("world", "is calm")
        for process in self._processes:
            self._thaw(process)
        self._start_process()
        while not self._drained:
            await asyncio.sleep(5)
            states = [self._sqs.contents(url) for url in self._queue_urls.values()]
            self._drained = not any(states) and all(process.gone or process.idle for process in self._processes)

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
                self._start_process(in_place_of=incident.process)
            case Freeze():
                process.loop.frozen = True
                self._away_from(process, self.world.clock.now() + incident.seconds)
                await asyncio.sleep(incident.seconds)
                self._thaw(process)
            case Shutdown():
                process.shut_down(incident.leaving)
                self._away_from(process, math.inf)
                await asyncio.sleep(incident.restart_seconds)
                self._start_process(in_place_of=incident.process)
            case WallJump():
                process.clock.wall_error += incident.seconds

    def _thaw(self, process: ConsumerProcess) -> None:
        if process.loop.frozen:
            process.loop.frozen = False
            self._journal.say("world", process.name, "goes on")

    def _away_from(self, process: ConsumerProcess, until: float) -> None:
        self._away.setdefault(process.name, []).append((self.world.clock.now(), until))

    def _start_process(self, *, in_place_of: int | None = None) -> None:
        number = self._started
        self._started += 1
        error = self._plan.wall_errors[number % len(self._plan.wall_errors)]
        process = ConsumerProcess(self._setting, number, wall_error=error)
        self._journal.say("world", process.name, "starts")
        if in_place_of is None:
            self._processes.append(process)
        else:
            self._processes[in_place_of] = process

    def _faults(self) -> FaultRule:
        plan = self._plan.faults
        random = Random(f"faults {self._plan.seed}")
        usual = RandomFaults(
            random=random,
            latency_seconds=plan.latency_seconds,
            throttled=plan.throttled,
            failed=plan.failed,
            done_but_failed=plan.failed,
            lost_requests=plan.lost_requests,
            lost_answers=plan.lost_answers,
            noticed_seconds=plan.noticed_seconds,
            failed_entries=plan.failed_entries,
            unstoppable=0.5,
        )

        def sometimes_slow(call: TransportCall) -> Fault:
            fault = usual(call)
            if random.random() < plan.slow:
                return replace(fault, before_seconds=random.uniform(0, 15), after_seconds=random.uniform(0, 15))
            return fault

        during = Outages(plan.outages, sometimes_slow, unreachable=plan.unreachable)
        return lambda call: NO_FAULT if call.at >= self._plan.calm_at else during(call)


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
    """What a killed process leaves behind stays as it is: to collect it would run the ``finally`` of its coroutines.

    It also saves time: after the schedule, one collection finds all of it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
