"""How a batch changes hands on Airflow, by the one rule.

    A batch has one holder, known by its deadline. The holder that stops extends it once, writes it down, and forgets
    it. The holder that starts reads what is written, and relies only on leases that have not passed their deadline.

The holders that stop, and their actions:

    the receiving task, as its last act          extends by ``handoff_timeout``, publishes the sealed lease, forgets
    a keeper whose triggerer stops               extends by ``handoff_timeout``, forgets
    a keeper that was cleared                    extends by ``handoff_timeout``, notes that, forgets
    a keeper whose work has begun elsewhere      forgets
    a keeper that was marked, or with a sensor   notes that the batch has ended, releases
    begins again
    a triggerer that is killed                   nothing: its last note says how long the leases last

The new holder is always the keeper's trigger (:mod:`sqs_lease.airflow.triggers.keep`), and it always starts in the same
way: it adopts the leases in its arguments, less those that the progress note calls settled. A first start, a restart
after a crash and a keeper that was cleared are the same path.

**Why so.** SQS keeps the lock: the lease itself. An owner in memory, a claim or a fence would be a second lock, which
can disagree with the first. A lease in the database needs no process that remembers it, so a triggerer may die at any
moment. The price of a hand-over without a new holder is bounded: the messages come back after ``handoff_timeout``.

**What is written** (:class:`HandedLease`) goes through XCom. A user who may edit XComs could turn it against its
deployment: name another file to be removed, another queue's receipts, another connection. So the plain values are
``{"messages": number, "sealed": text}``, and everything that names a queue, a connection, a file or a message is within
the seal (Airflow's Fernet key). The text has these lines, each sealed by itself, because nothing else runs while one is
encoded:

- the *head*: the task of the run that it was made for, the batch, the queue, the policy, the connection, when the
  leases were written and how many there are, where messages and leases are stored if they are (``payload.py``), and
  in which trace they were received;
- a line for each thousand leases, with the batch and the place of its first lease. Of a stored batch these lines are in
  a file instead.

Values that cannot be decrypted, or that were made for another task, run or batch, are refused. Without a Fernet key
Airflow stores everything in plain text, and none of this is checked: :func:`warn_if_plain` says so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from sqs_lease.airflow.airflow_api.requests import RunOfTask, seal, unseal
from sqs_lease.airflow.connection import AwsConnection
from sqs_lease.clock import Clock
from sqs_lease.core.messages import Lease, Message
from sqs_lease.core.policies import Never, RenewalPolicy
from sqs_lease.core.specs import decode_policy, encode_policy
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.event_loop_rounds import LEASES_IN_A_ROUND, RoundLimiter
from sqs_lease.keeper.plain_leases import WrittenBatch, decode_leases, encode_leases

logger = logging.getLogger(__name__)

_ENOUGH_SHARE: Final = 0.5
"""A lease counts as not extended if it lasts for less than this share of the requested time."""


async def hand_on(
    batch: Batch, policy: RenewalPolicy, seconds: float, clock: Clock, *, hold_on: bool = False
) -> WrittenBatch:
    """Stop holding a batch for its keeper: extend it once, and say until when its messages stay invisible.

    Args:
        batch: The batch.
        policy: Its policy.
        seconds: The hand-off timeout: how long each lease lasts at least, where SQS extends it.
        clock: The batch's clock.
        hold_on: Whether it is held until its caller forgets it, see :meth:`Batch.pass_on`.

    Returns:
        The batch as its keeper adopts it.
    """
    written = await batch.pass_on(seconds, hold_on=hold_on)
    if not written.leases:
        return written
    until = min(lease.deadline for lease in written.leases)
    logger.info(
        "%d messages of %s stay invisible until %s if no keeper takes them over",
        len(written.leases),
        batch.queue_url,
        datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
    )
    enough = clock.wall() + seconds * _ENOUGH_SHARE
    is_extended = not isinstance(policy, Never) and policy.max_lease_seconds > 0
    if is_extended and (short := sum(lease.deadline < enough for lease in written.leases)):
        logger.warning(
            "%d of %d leases of %s could not be extended by %g s: others may receive their messages before the keeper "
            "takes over",
            short,
            len(written.leases),
            batch.queue_url,
            seconds,
        )
    return written


async def adopt(batch: Batch, leases: Sequence[Lease], rounds: RoundLimiter, messages: Sequence[Message] = ()) -> None:
    """Let a batch hold leases that were held elsewhere, see :meth:`Batch.adopt`, a slice at a time.

    The event loop serves all triggers. Airflow warns when it is blocked for 0.2 s, and adopting 50 000 leases at once
    takes several times as long. If the caller is cancelled meanwhile, the batch still adopts all of them.

    Args:
        batch: The batch.
        leases: The leases, in times of the keeper's clock.
        rounds: Shares the rounds of the event loop among slices of work.
        messages: The messages of the leases, in their order; empty if their contents are not known.

    Raises:
        KeeperClosedError: The keeper was closed, or the batch dropped: no lease would be extended.
    """
    adopted = 0
    try:
        while adopted < len(leases):
            some = leases[adopted : adopted + LEASES_IN_A_ROUND]
            await rounds.take(len(some))
            batch.adopt(some, messages[adopted : adopted + len(some)])
            adopted += len(some)
    except BaseException:
        batch.adopt(leases[adopted:], messages[adopted:])
        raise


LEASE_KEY: Final = "lease"
"""The sensor's XCom key for it; the messages themselves, without receipt handles, are the sensor's return value."""

HANDED_KEY: Final = "handed"
"""The keeper's XCom key for the same, until it begins: Airflow deletes a task's XComs when a try of it begins.

So a sensor that was cleared finds in it what its earlier try handed on, as long as no keeper took it.
"""


class PayloadError(RuntimeError):
    """The files or the leases of a batch cannot be written or read; the text says which and what to do."""


class OtherKeyError(PayloadError):
    """The leases were encrypted with another Fernet key than this process has; no second try helps."""


@dataclass(frozen=True, slots=True)
class HandedLease:
    """A batch on its way from the task that received it to its keeper.

    Attributes:
        queue_url: The queue.
        policy: The renewal policy, with the visibility timeout filled in.
        connection: How AWS is reached.
        written: The leases, in the order of the messages in the sensor's return value. Without leases where these are
            stored, until they were read.
        messages: How many leases there are.
        manifest_uri: Where the messages are stored; None where they are in XCom.
        leases_uri: Where the leases are stored; None where they are in XCom.
        trace: Values for the span of the lease, see :func:`~sqs_lease.keeper.telemetry.trace_of`.
    """

    queue_url: str
    policy: RenewalPolicy
    connection: AwsConnection
    written: WrittenBatch
    messages: int
    manifest_uri: str | None = None
    leases_uri: str | None = None
    trace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def batch_id(self) -> str:
        """The name of the batch within a deployment."""
        return self.written.batch_id

    @property
    def leases(self) -> Sequence[Lease]:
        """The leases; times in seconds since the epoch."""
        return self.written.leases

    def encode(self, receiving: RunOfTask) -> dict[str, Any]:
        """Return it as plain values for the keeper of a task's run."""
        head = {
            "made_for": [receiving.dag_id, receiving.run_id, receiving.task_id],
            "batch_id": self.batch_id,
            "written_at": self.written.written_at,
            "queue_url": self.queue_url,
            "policy": encode_policy(self.policy),
            "connection": self.connection,
            "messages": self.messages,
            "manifest_uri": self.manifest_uri,
            "leases_uri": self.leases_uri,
            "trace": self.trace,
        }
        lines = [seal(msgspec.json.encode(head).decode())]
        if self.leases_uri is None:
            lines.append(seal_leases(self.written))
        return {"messages": self.messages, "sealed": "\n".join(lines)}

    @classmethod
    def decode(cls, plain: Mapping[str, Any], receiving: RunOfTask) -> HandedLease:
        """Build it from what :meth:`encode` returned, in a process of the same deployment.

        Leases that are stored are left out; :func:`sqs_lease.airflow.payload.load_lease` reads them.

        Args:
            plain: The plain values, which any user who may edit XComs can change.
            receiving: The task that they must have been made for.

        Raises:
            OtherKeyError: They cannot be decrypted.
            PayloadError: They are something else, or were made for another task, run or batch.
        """
        handed = cls.decode_head(plain, receiving)
        if handed.leases_uri is not None:
            return handed
        return handed.with_leases(plain["sealed"].partition("\n")[2], receiving)

    @classmethod
    def decode_head(cls, plain: Mapping[str, Any], receiving: RunOfTask) -> HandedLease:
        """Build it without the leases; arguments and errors are those of :meth:`decode`."""
        # A user, or an XCom backend, may have put any value in its place.
        sealed = plain.get("sealed") if isinstance(plain, Mapping) else None
        if not isinstance(sealed, str) or not sealed:
            raise PayloadError(f"the XCom {LEASE_KEY!r} of {receiving} is not what sqs-lease writes there: {_AGAIN}")
        head = _opened(sealed.partition("\n")[0], _HEAD.decode, receiving)
        if head.made_for != [receiving.dag_id, receiving.run_id, receiving.task_id]:
            raise PayloadError(
                f"the XCom {LEASE_KEY!r} of {receiving} was made for another task or run and copied there, so it is "
                f"not used: {_AGAIN}"
            )
        return cls(
            head.queue_url,
            decode_policy(head.policy),
            head.connection,
            WrittenBatch(head.batch_id, head.written_at, ()),
            head.messages,
            head.manifest_uri,
            head.leases_uri,
            head.trace,
        )

    def with_leases(self, sealed: str, receiving: RunOfTask) -> HandedLease:
        """Add the leases, as :func:`seal_leases` returned them.

        Raises:
            OtherKeyError: It cannot be decrypted.
            PayloadError: It is something else, or of another batch.
        """
        leases: list[Lease] = []
        is_ours = True
        for line in sealed.splitlines():
            batch_id, place, some = _opened(line, _decode_line, receiving)
            is_ours &= batch_id == self.batch_id and place == len(leases)
            leases += some
        if not is_ours or len(leases) != self.messages:
            raise PayloadError(
                f"the leases of {receiving} are not those of the batch that it received, so they are not used: {_AGAIN}"
            )
        return replace(self, written=replace(self.written, leases=tuple(leases)))


_T = TypeVar("_T")

_AGAIN: Final = "clear that task with its downstream tasks to receive again"


class _Head(msgspec.Struct):
    """The first line, as :meth:`HandedLease.encode` writes it."""

    made_for: list[str]
    batch_id: str
    written_at: float
    queue_url: str
    policy: dict[str, Any]
    connection: AwsConnection
    messages: int
    manifest_uri: str | None
    leases_uri: str | None
    trace: dict[str, Any]


_HEAD: Final = msgspec.json.Decoder(_Head)
_LINE: Final = msgspec.json.Decoder(tuple[str, int, msgspec.Raw])


def seal_leases(written: WrittenBatch) -> str:
    """Return the leases of a batch as sealed lines."""
    leases: Sequence[Lease] = written.leases
    starts = range(0, len(leases), LEASES_IN_A_ROUND)
    return "\n".join(
        seal(f"[{json.dumps(written.batch_id)},{start},{encode_leases(leases[start : start + LEASES_IN_A_ROUND])}]")
        for start in starts
    )


def warn_if_plain(plain: Mapping[str, Any]) -> None:
    """Warn where Airflow has an empty Fernet key, so that the plain values of a lease are readable by everybody."""
    if str(plain["sealed"]).startswith("{"):
        logger.warning(
            "Airflow has no Fernet key, so receipt handles are stored in plain text, and so are passwords of "
            "connections; a user who may edit XComs can have other messages deleted. Set [core] fernet_key "
            "(AIRFLOW__CORE__FERNET_KEY) for all processes"
        )


def _decode_line(text: str) -> tuple[str, int, list[Lease]]:
    """Decode a line of leases: their batch, the place of the first one, and the leases."""
    batch_id, place, rows = _LINE.decode(text)
    return batch_id, place, decode_leases(bytes(rows).decode())


def _opened(line: str, decode: Callable[[str], _T], receiving: RunOfTask) -> _T:
    """Decrypt and decode a line."""
    try:
        return decode(unseal(line))
    except Exception:  # noqa: BLE001 - cryptography's, which is not one of our dependencies, or it is not our text
        # Not the error itself: without a key its text would quote receipt handles.
        raise OtherKeyError(
            f"the leases of {receiving} cannot be decrypted: they were encrypted by a process with another Fernet key "
            "than this one, or without one, or a user changed them. Set the same [core] fernet_key "
            "(AIRFLOW__CORE__FERNET_KEY) for workers and triggerers"
        ) from None
