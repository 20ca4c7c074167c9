"""Records what each process of a stack believes about its leases, for the auditor, and breaks processes on request.

A process records a line whenever its ledger takes a lease, learns a deadline, or has done with the lease, and whenever
a batch writes a lease down for its next holder, or takes one. The auditor holds these against what the service
confirmed: :mod:`tests.rounds.beliefs`. The recorder watches from outside: it wraps methods of ledger and batch, and the
package does not know of it.

``ROUNDS_BREAK`` breaks the package in all processes, to show that the auditor sees it: ``extensions:50`` answers one
extension of 50 as if SQS had confirmed it, without sending it; ``deadlines:20`` writes deadlines into one hand-over of
20 that are ten minutes too late; ``batches:20`` writes leases of an earlier batch into one of 20.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tests.rounds.notebook import append

if TYPE_CHECKING:
    from sqs_lease.core.calls import EntryAnswer, VisibilityChange
    from sqs_lease.core.messages import Lease

DIRECTORY: Final = "ROUNDS_BELIEFS"
BREAK: Final = "ROUNDS_BREAK"

LATER_SECONDS: Final = 600.0
"""By how much the deadlines of a false hand-over are too late."""


def environment(directory: Path) -> dict[str, str]:
    """Return the variables that make processes record into a directory; ``PYTHONPATH`` must have :data:`PLACE`."""
    directory.mkdir(exist_ok=True)
    return {DIRECTORY: str(directory), BREAK: os.environ.get(BREAK, "")}


PLACE: Final = Path(__file__).with_name("in_each_process")
"""The directory in ``PYTHONPATH`` that makes a process call :func:`install` when it starts."""


def key_of(handle: str) -> str:
    """Return a short text for a receipt handle, which is too long and too powerful for a note."""
    return sha256(handle.encode()).hexdigest()[:16]


def install() -> None:
    """Record from now on, if the environment asks for that."""
    directory = os.environ.get(DIRECTORY)
    if not directory:
        return
    _record(Path(directory))
    kind, _, times = os.environ.get(BREAK, "").partition(":")
    if kind == "extensions":
        _fake_extensions(int(times))
    elif kind == "deadlines":
        _falsify_deadlines(int(times))
    elif kind == "batches":
        _falsify_batches(int(times), Path(directory) / "newest")


def _record(directory: Path) -> None:
    from sqs_lease.clock import SystemClock
    from sqs_lease.core.calls import Call, ExtendCall
    from sqs_lease.core.ledger import Ledger
    from sqs_lease.core.messages import Message, Receipt
    from sqs_lease.core.policies import RenewalPolicy
    from sqs_lease.keeper.batch import Batch
    from sqs_lease.keeper.plain_leases import WrittenBatch

    clock = SystemClock()
    hold, report, forget = Ledger.hold, Ledger.report, Ledger.forget

    def write(receipt: Receipt, holder: str, what: str, **more: Any) -> None:
        # A disk that is full, or memory that is short, is the round's doing and must not reach the package.
        with suppress(OSError, MemoryError):
            line = {"at": monotonic(), "holder": holder, "what": what, "id": receipt.message_id}
            append(directory / f"{os.getpid()}.jsonl", {**line, "key": key_of(receipt.handle), **more})

    def note(ledger: Ledger, receipt: Receipt, what: str, asked_at: float | None = None) -> None:
        held = ledger.lease(receipt)
        # The ledger counts suspended time as well.
        ahead = monotonic() - clock.now()
        write(
            receipt,
            f"{os.getpid()}:{id(ledger)}",
            what if held is not None else "ended",
            # The deadline of a lease in doubt is relied on by nothing.
            until=None if held is None or held.doubtful else held.deadline + ahead,
            asked_at=None if asked_at is None else asked_at + ahead,
        )

    def recorded_hold(self: Ledger, lease: Lease, policy: RenewalPolicy, *, batch: int = 0) -> None:
        hold(self, lease, policy, batch=batch)
        note(self, lease.receipt, "holds")

    def recorded_report(self: Ledger, call: Call, answers: Sequence[EntryAnswer], now: float) -> None:
        report(self, call, answers, now)
        extends = isinstance(call, ExtendCall)
        for receipt in call.receipts:
            note(self, receipt, "extends" if extends else "settles", call.asked_at)

    def recorded_forget(self: Ledger, receipt: Receipt) -> None:
        is_held = receipt in self
        forget(self, receipt)
        if is_held:
            note(self, receipt, "ended")

    _replace(Ledger, hold=recorded_hold, report=recorded_report, forget=recorded_forget)

    pass_on, put = Batch.pass_on, Batch._put

    async def recorded_pass_on(self: Batch, seconds: float, **options: Any) -> WrittenBatch:
        written = await pass_on(self, seconds, **options)
        for lease in written.leases:
            write(lease.receipt, f"{os.getpid()}:{id(self)}", "writes", batch=written.batch_id)
        return written

    def recorded_put(self: Batch, leases: Sequence[Lease], messages: Iterable[Message]) -> None:
        put(self, leases, messages)
        for lease in leases:
            write(lease.receipt, f"{os.getpid()}:{id(self)}", "takes", batch=self._batch_id)

    _replace(Batch, pass_on=recorded_pass_on, _put=recorded_put)


def _fake_extensions(times: int) -> None:
    """Answer one extension of so many as confirmed, without sending it."""
    from sqs_lease.core.calls import EntryAnswer, Verdict
    from sqs_lease.sqs.client_transport import ClientTransport

    change_visibility, random = ClientTransport.change_visibility, Random()

    async def half_sent(
        self: ClientTransport, queue_url: str, changes: Sequence[VisibilityChange]
    ) -> Sequence[EntryAnswer]:
        faked = [change for change in changes if change.seconds and random.random() < 1 / times]
        answers = [EntryAnswer(change.receipt, Verdict.DONE) for change in faked]
        sent = [change for change in changes if change not in faked]
        return [*answers, *(await change_visibility(self, queue_url, sent) if sent else ())]

    _replace(ClientTransport, change_visibility=half_sent)


def _falsify_deadlines(times: int) -> None:
    """Write deadlines that are too late for the next holder of one batch of so many."""
    from msgspec.structs import replace as replace_lease

    from sqs_lease.keeper.batch import Batch
    from sqs_lease.keeper.plain_leases import WrittenBatch

    pass_on, random = Batch.pass_on, Random()

    async def falsified(self: Batch, seconds: float, **options: Any) -> WrittenBatch:
        written = await pass_on(self, seconds, **options)
        if random.random() >= 1 / times:
            return written
        later = [replace_lease(lease, deadline=lease.deadline + LATER_SECONDS) for lease in written.leases]
        return replace(written, leases=tuple(later))

    _replace(Batch, pass_on=falsified)


def _falsify_batches(times: int, newest: Path) -> None:
    """Encode leases of the batch before in place of those of one batch of so many.

    It is done where leases become text, because the sensor itself refuses leases that do not fit its messages. Modules
    that import the function get this one: no module of a host is imported yet.
    """
    from sqs_lease.keeper import plain_leases

    encode, random = plain_leases.encode_leases, Random()

    def falsified(leases: Sequence[Lease]) -> str:
        before = plain_leases.decode_leases(newest.read_text()) if newest.exists() else []
        newest.write_text(encode(leases))
        is_false = random.random() < 1 / times
        return encode([*before, *leases][: len(leases)] if is_false else leases)

    plain_leases.encode_leases = falsified


def _replace(owner: type, **methods: Any) -> None:
    for name, method in methods.items():
        setattr(owner, name, method)
