"""One round on a running stack: send, let things go wrong, mend them, wait until all is accounted for, and audit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from tests.rounds.audit import Evidence, Finding, Window, audit
from tests.rounds.beliefs import read_beliefs
from tests.rounds.draw import Fault, Kind, Plan
from tests.rounds.faults import begin, impossible_here
from tests.rounds.stacks import Stack
from tests.rounds.starvation import starvation

LOOK_SECONDS: Final = 0.25

PATIENCE_SECONDS: Final = 120.0
"""How long after the last fault, or after the last message that was received or deleted, a round waits for its end,
beside the time that its processes may take to start. So a busy machine may take longer."""

MOST_PATIENCE: Final = 3.0
"""So many times as long it waits in all: messages that come and go for ever do not come to an end, either."""

SHARED: Final = frozenset({Kind.DISK, Kind.DATABASE})
OF_PROCESSES: Final = frozenset({Kind.KILL, Kind.STOP, Kind.MEMORY, Kind.CLOCK})
"""These need a process; others are of what it goes through, or of what all share."""

ENDS_PROCESSES: Final = frozenset({Kind.MEMORY, Kind.DISK, Kind.DATABASE})


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round.

    Attributes:
        plan: The plan that was drawn.
        findings: The rules that were broken.
        seconds: How long it took.
        evidence: All that is known of it.
        happened: The faults that were done; some find nothing that they could hit.
        left_out: The faults that this machine does not allow.
    """

    plan: Plan
    findings: list[Finding]
    seconds: float
    evidence: Evidence
    happened: list[Fault] = field(default_factory=list)
    left_out: list[Fault] = field(default_factory=list)


class Player:
    """Plays rounds on a stack, one after the other.

    Args:
        stack: The stack.
        stop: Set when the run is to end.
    """

    def __init__(self, stack: Stack, stop: threading.Event) -> None:
        self._stack = stack
        self._stop = stop
        self._windows: list[Window] = []
        self._under_way: list[tuple[float, Fault, float, Callable[[], None]]] = []
        self._deaths: list[str] = []
        self._happened: list[Fault] = []

    def play(self, plan: Plan) -> Round | None:
        """Play one round; None if the run is to end."""
        impossible, place = impossible_here(), self._stack.place
        faults = [fault for fault in plan.faults if fault.kind not in impossible]
        self._windows, self._deaths, self._happened = [], [], []
        began_at, first = monotonic(), len(self._stack.ledger.entries)
        stored_before = Counter(self._stack.host.table(place.disk))
        if not self._wait(self._is_idle, self._stack.host.start_seconds):
            if self._stop.is_set():
                return None
            raise TimeoutError("the workers of the stack are not ready")
        with starvation(place.workers, self._stack.server_pid, place.proxy.thread_id) as starved:
            sent = self._stack.send(plan)
            self._go_wrong(faults)
            is_done = self._wait_for_end(self._stack.host.start_seconds + PATIENCE_SECONDS, first)
        if self._stop.is_set():
            return None
        left = 0 if is_done else max(1, self._stack.left())
        evidence = Evidence(
            sent=sent,
            entries=self._stack.ledger.since(first),
            blocks=self._stack.crew.blocks(began_at),
            table=list((Counter(self._stack.host.table(place.disk)) - stored_before).elements()),
            dead_letters=self._stack.take_dead_letters(),
            windows=[*self._windows, *starved],
            each_once=self._stack.host.each_once,
            in_order=bool(self._stack.host.traits.groups),
            left=left,
            deaths=tuple(self._deaths),
            takeover=self._stack.host.takeover,
            passed_on_seconds=self._stack.host.passed_on_seconds,
            beliefs=read_beliefs(self._stack.beliefs, self._stack.ledger, began_at),
        )
        self._stack.host.forget(self._stack.place.disk)
        left_out = [fault for fault in plan.faults if fault.kind in impossible]
        return Round(plan, audit(evidence), monotonic() - began_at, evidence, self._happened, left_out)

    def _go_wrong(self, faults: list[Fault]) -> None:
        """Begin and end the faults at their moments."""
        zero = monotonic()
        waiting = list(faults)
        try:
            while waiting or self._under_way:
                now = monotonic()
                while waiting and zero + waiting[0].starts_after_seconds <= now:
                    self._begin(waiting.pop(0))
                for each in [each for each in self._under_way if each[0] <= now]:
                    self._end(each)
                moments = [zero + fault.starts_after_seconds for fault in waiting[:1]]
                moments += [each[0] for each in self._under_way]
                if moments and self._stop.wait(max(0.0, min(moments) - monotonic())):
                    return
                self._look_for_deaths()
        finally:
            for each in list(self._under_way):
                self._end(each)

    def _begin(self, fault: Fault) -> None:
        worker = self._stack.place.workers[fault.worker]
        if fault.kind in OF_PROCESSES and not worker.is_running:
            # Another fault has ended it, or it does not run just now.
            return
        began_at = monotonic()
        self._happened.append(fault)
        undo = begin(self._stack.place, fault)
        self._under_way.append((monotonic() + fault.lasts_seconds, fault, began_at, undo))

    def _end(self, under_way: tuple[float, Fault, float, Callable[[], None]]) -> None:
        _, fault, began_at, undo = under_way
        self._under_way.remove(under_way)
        undo()
        worker = None if fault.kind in SHARED else self._stack.place.workers[fault.worker].name
        self._windows.append(Window(fault.kind, worker, began_at, monotonic()))

    def _look_for_deaths(self) -> None:
        """Start again what ended by itself; that is a finding unless it had no memory or no disk."""
        waits_for_start = {each[1].worker for each in self._under_way if each[1].kind is Kind.KILL}
        for number, worker in enumerate(self._stack.place.workers):
            death = worker.found_dead()
            if death is not None:
                self._windows.append(Window(Kind.KILL, worker.name, monotonic() - LOOK_SECONDS, monotonic()))
                could_not_help_it = any(
                    window.kind in ENDS_PROCESSES and window.worker in {None, worker.name} for window in self._windows
                ) or any(
                    fault.kind in ENDS_PROCESSES and (fault.kind in SHARED or fault.worker == number)
                    for _, fault, _, _ in self._under_way
                )
                if not could_not_help_it:
                    self._deaths.append(death)
            if not worker.is_running and number not in waits_for_start:
                worker.start()

    def _is_idle(self) -> bool:
        self._look_for_deaths()
        return self._stack.crew.is_idle()

    def _is_done(self) -> bool:
        # In this order: the last message is gone before the ledger has its delete.
        return self._is_idle() and self._stack.left() == 0 and not self._stack.ledger.deletes_under_way

    def _wait_for_end(self, seconds: float, first_entry: int) -> bool:
        well_at = monotonic()
        while not self._is_done():
            entries = self._stack.ledger.since(first_entry)
            moved_at = max((entry.answered_at for entry in entries if entry.kind != "change"), default=well_at)
            ends_at = min(max(well_at, moved_at) + seconds, well_at + MOST_PATIENCE * seconds)
            if monotonic() > ends_at or self._stop.wait(LOOK_SECONDS):
                return False
        return True

    def _wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        ends_at = monotonic() + seconds
        while not ready():
            if monotonic() > ends_at or self._stop.wait(LOOK_SECONDS):
                return False
        return True
