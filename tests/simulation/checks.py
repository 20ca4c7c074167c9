"""The four invariants of the design, and exactly what each allows.

The service's audit trail says what happened to every message; the store, what was worked on; the journal,
what each process did and heard. A rule that is broken is a :class:`tests.simulation.journal.Violation`.

1. **Nothing is deleted unless its work succeeded; nothing is forgotten.**
   A message that a consumer deleted has a row in the table, committed before, or a copy in the dead-letter queue.
   Once things are calm, every message ends: its queue is empty within ``DRAIN_SECONDS``, no process
   holds anything, and each message is in the table or in the dead-letter queue (or in both: its work
   succeeded, but it could not be deleted before it was received too often).

2. **Two workers hold one message at once only if the service or all who hold it were away for too long.**
   The service gives a message out again only if it became visible, so what is checked is stronger: *a message whose
   lease is held, and is not being settled, does not become visible*, unless at that moment

   - its policy had ended: ``Never``, ``max_lease`` or the service's 12 hours, announced by ``Ending``;
   - or whoever took it over has another calendar than who wrote it down, and got no extension through yet;
   - or its owner was away: killed, frozen, or not yet known to the store, at some time during the last
     ``RECOVERY_SECONDS`` (or the owner changed then: another one had just taken over);
   - or the last calls about it were disturbed: one of them was refused, lost, or slower than a second, and this
     lasted until within the last ``RECOVERY_SECONDS``; or the queue throttled its process then;
   - or the message was received with so little left that no renewal could be in time;
   - or a superseded handle changed its visibility: the service allows that to whoever held it before.

   Where its holder believed the deadline to have passed earlier (an extension was carried out, but its answer lost),
   that moment counts: afterwards the ledger tries on more slowly.

   And a lease is given up as lost only if its message did become visible, or went, before.

   So "away for longer than the visibility timeout" reads, exactly: away from when the renewal fell due until
   ``RECOVERY_SECONDS`` before the deadline. In the time after that the ledger is not expected to get through.

3. **Nothing is extended after it was settled; nothing lost is released.** Seen from the wire, for each process, with no
   exception: no call about a lease that was lost, settled or handed over; no extension after its settlement
   began (one decided in the same instant is under way); no delete or release that was not asked for. Seen from the
   service: a message is released by a superseded handle only by a process that stood still during the last minute, or
   that took the lease over with a calendar that differs by more than a second from that of who wrote it down, or
   whose request took longer than ``RELEASE_MARGIN_SECONDS`` to reach the service.

4. **The table holds each message once**, whatever was redelivered, crashed or taken over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqs_lease.core.events import Outcome
from sqs_lease.core.ledger import RELEASE_MARGIN_SECONDS
from sqs_lease.core.messages import Receipt
from sqs_lease.core.policies import Never
from sqs_lease.testing import AuditEntry, AuditKind, AuditTrail
from tests.simulation.journal import Journal, LeaseRecord
from tests.simulation.store import Run, Store

RECOVERY_SECONDS = 8.0
"""Undisturbed for this long, a keeper gets an extension through, however badly things went before."""

DRAIN_SECONDS = 3600.0

_ENDS = (AuditKind.EXPIRED, AuditKind.RELEASED, AuditKind.DELETED, AuditKind.DEAD_LETTERED)
"""After these a message is not invisible for its holder any more."""


class Checker:
    """Checks one schedule after its end.

    Args:
        trail: The service's audit trail.
        away: By process: from when until when it was dead or frozen.
        dead_letter_urls: The dead-letter queues.
    """

    def __init__(
        self,
        trail: AuditTrail,
        store: Store,
        journal: Journal,
        *,
        away: Mapping[str, Collection[tuple[float, float]]],
        dead_letter_urls: Collection[str],
    ) -> None:
        self._trail = trail
        self._store = store
        self._journal = journal
        self._away = away
        self._dead_letter_urls = dead_letter_urls

    def check(self, bodies: Mapping[str, str], dead_bodies: Collection[str]) -> None:
        """Check all messages.

        Args:
            bodies: By message id: the body, as it was sent.
            dead_bodies: The bodies that are in dead-letter queues at the end.
        """
        committed = self._store.table.committed_at
        for message_id, body in bodies.items():
            if message_id not in committed and body not in dead_bodies:
                self._journal.violated("1 nothing is forgotten", f"{message_id} ({body}) is nowhere")
            self._check_events(message_id, in_dead_letter_queue=body in dead_bodies)
        for (process, receipt), record in self._journal.leases().items():
            self._check_loss(process, receipt, record)
        rows = self._store.table.rows
        if len(rows) != len(set(rows)):
            self._journal.violated("4 the table holds each message once", f"{len(rows)} rows")

    def _check_events(self, message_id: str, *, in_dead_letter_queue: bool) -> None:
        received_at = changed_at = 0.0
        stale_change = False
        for entry in self._trail.of(message_id):
            if entry.queue_url in self._dead_letter_urls:
                continue
            match entry.kind:
                case AuditKind.RECEIVED:
                    received_at, changed_at, stale_change = entry.at, entry.at, False
                case AuditKind.REPLAYED:
                    changed_at, stale_change = entry.at, False
                case AuditKind.CHANGED:
                    changed_at, stale_change = entry.at, entry.stale
                case AuditKind.RELEASED if entry.stale:
                    self._check_stale_release(entry)
                case AuditKind.DELETED:
                    self._check_delete(entry, in_dead_letter_queue=in_dead_letter_queue)
                case AuditKind.EXPIRED if not stale_change:
                    self._check_expiry(entry, received_at, changed_at)

    def _check_loss(self, process: str, receipt: Receipt, record: LeaseRecord) -> None:
        lost_at = record.lost_at
        if record.settled is not None and record.settled.outcome is Outcome.LOST:
            lost_at = record.settled_at
        if lost_at is None:
            return
        received = False
        for entry in self._trail.of(receipt.message_id):
            received = received or entry.handle == receipt.handle
            if received and entry.kind in _ENDS and entry.at <= lost_at:
                return
        self._journal.violated("2 what is held is not given up", f"{receipt} by {process}", at=lost_at)

    def _check_delete(self, entry: AuditEntry, *, in_dead_letter_queue: bool) -> None:
        committed_at = self._store.table.committed_at.get(entry.message_id)
        if (committed_at is None or committed_at > entry.at) and not in_dead_letter_queue:
            self._journal.violated("1 nothing is deleted unless its work succeeded", str(entry), at=entry.at)

    def _check_stale_release(self, entry: AuditEntry) -> None:
        run = self._store.by_handle.get(entry.handle)
        if run is not None and run.calendar_error > 1:
            return
        record = self._journal.lease(entry.caller, Receipt(entry.message_id, entry.handle))
        slow = any(
            arrived - sent > RELEASE_MARGIN_SECONDS and abs(arrived - entry.at) < 0.001
            for sent, arrived in record.arrivals
        )
        if not slow and not self._was_away(entry.caller, entry.at - 60, entry.at):
            self._journal.violated("3 nothing lost is released", str(entry), at=entry.at)

    def _check_expiry(self, entry: AuditEntry, received_at: float, changed_at: float) -> None:
        run = self._store.by_handle.get(entry.handle)
        if run is None or entry.at < run.received_at(entry.handle) or self._has_ended(run, entry.at - received_at):
            return
        since, owner = run.owner_at(entry.at)
        if owner is None or run.intents.get(entry.message_id, entry.at + 1) <= entry.at:
            return
        receipt = Receipt(entry.message_id, entry.handle)
        record = self._journal.lease(owner, receipt)
        if self._is_let_go(record, entry.at):
            return
        lapses = [at for at in record.lapsed_at if changed_at < at < entry.at]
        if self._is_excused(run, record, owner, since, changed_at, min(lapses, default=entry.at)):
            return
        self._journal.violated(
            "2 what is held stays invisible",
            f"{receipt} of {run} held by {owner} became visible; last changed at {changed_at:.3f}; {run.policy}",
            at=entry.at,
        )

    @staticmethod
    def _has_ended(run: Run, held_seconds: float) -> bool:
        """Whether the policy extends no further; extensions are whole seconds, and calendars may differ."""
        longest = 0.0 if isinstance(run.policy, Never) else run.policy.max_lease_seconds
        # A lease counts from when the poll was sent that brought it, up to a third of the visibility timeout earlier.
        imprecise = 2 + run.policy.visibility_seconds / 3 + run.calendar_error
        return held_seconds > max(longest, run.policy.visibility_seconds) - imprecise

    @staticmethod
    def _is_let_go(record: LeaseRecord, at: float) -> bool:
        """Whether the lease was being settled, had ended, or was about to."""
        times = (record.began_at, record.ending_at, record.lost_at, record.settled_at, record.forgotten_at)
        return any(time is not None and time <= at for time in times)

    def _is_excused(
        self, run: Run, record: LeaseRecord, owner: str, since: float, changed_at: float, at: float
    ) -> bool:
        recent = at - RECOVERY_SECONDS
        came_late = run.received_at(record.handle) - changed_at
        if len(run.owners) > 1 and since > recent:
            return True
        if changed_at < since and run.calendar_error > 1:
            return True
        if came_late > 1 and came_late > (at - changed_at) / 2 - 1:
            return True
        if self._was_away(owner, recent, at):
            return True
        if any(ended_at > recent and began_at <= at for began_at, ended_at in record.disturbed):
            return True
        throttled = self._journal.throttled.get((owner, run.queue_url), ())
        return any(recent < throttled_at <= at for throttled_at in throttled)

    def _was_away(self, process: str, start: float, end: float) -> bool:
        return any(began <= end and ended >= start for began, ended in self._away.get(process, ()))
