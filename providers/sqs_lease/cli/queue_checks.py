"""Checks of a queue's settings: their effects on leases, found from its attributes, without any call."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqs_lease.cli.durations import shown_duration
from sqs_lease.cli.findings import Finding
from sqs_lease.core.limits import MAX_IN_FLIGHT, MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import whole_number
from sqs_lease.core.policies import Growing, default_visibility_seconds, seconds_left_at_worst
from sqs_lease.sqs.client import ANSWER_SECONDS
from sqs_lease.sqs.validation import FIFO_SUFFIX, name_in_arn, queue_reference

MAX_RETENTION_SECONDS: Final = 1_209_600
"""Longest time that SQS keeps a message: 14 days."""

LEAST_RECEIVE_COUNT: Final = 3
"""A smaller ``maxReceiveCount`` sends good messages to the dead-letter queue: a crash counts as a receive, too."""

SUGGESTED_RECEIVE_COUNT: Final = 5

CROWDED_SHARE: Final = 0.8
"""The share of the limit of messages in flight that makes a finding."""

LONG_VISIBILITY_SECONDS: Final = 3600
"""A longer visibility timeout is a finding: after a crash, messages are away for that time, and leases need no more."""

CLOCK_SECONDS: Final = 60
"""A larger difference of clocks is a finding."""

REFUSED_CLOCK_SECONDS: Final = 900
"""The clock difference above which SQS refuses signatures."""


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue by its attributes.

    Attributes:
        url: Its URL.
        attributes: The answer of ``GetQueueAttributes``.
        cli: The words that follow ``aws`` in commands, so that they reach the same queue.
    """

    url: str
    attributes: Mapping[str, str]
    cli: tuple[str, ...] = ()

    @property
    def arn(self) -> str:
        """Its ARN."""
        return self.attributes["QueueArn"]

    @property
    def name(self) -> str:
        """Its name."""
        return name_in_arn(self.arn)

    @property
    def is_fifo(self) -> bool:
        """Whether it is a FIFO queue."""
        return self.name.endswith(FIFO_SUFFIX)

    @property
    def redrive(self) -> Mapping[str, Any]:
        """Its redrive policy; empty without one."""
        policy: Mapping[str, Any] = json.loads(self.attributes.get("RedrivePolicy") or "{}")
        return policy

    @property
    def retention_seconds(self) -> int:
        """The time for which it keeps a message."""
        return self.number("MessageRetentionPeriod", 345_600)

    def number(self, name: str, default: int = 0) -> int:
        """Return an attribute that is a number; the default if the server does not say one."""
        return whole_number(self.attributes.get(name)) or default

    def setting(self, **values: str) -> str:
        """Return the command that sets attributes of the queue."""
        simple = ",".join(f"{name}={value}" for name, value in values.items())
        written = simple if all(value.isalnum() for value in values.values()) else json.dumps(values)
        words = ["aws", *self.cli, "sqs", "set-queue-attributes", "--queue-url", self.url, "--attributes", written]
        return shlex.join(words)


@dataclass(frozen=True, slots=True)
class QueueContext:
    """The queues around a queue, and the work on its messages.

    Attributes:
        dead_letters: Its dead-letter queue; None without one, or if it cannot be read.
        sources: The URLs of the queues that it is the dead-letter queue of; None if that is not known.
        waits_for_queue: Whether leases use the queue's own visibility timeout; the sensors of Airflow do not.
        attempts: How often a host tries the work again, each time with another receive.
    """

    dead_letters: QueueState | None = None
    sources: tuple[str, ...] | None = None
    waits_for_queue: bool = True
    attempts: Mapping[str, int] = field(default_factory=dict)


def queue_findings(queue: QueueState, around: QueueContext) -> Iterator[Finding]:
    """Yield all findings about a queue's settings, in the order in which people read them."""
    yield from _visibility(queue, around)
    yield from _dead_letters(queue, around)
    yield from _retention(queue)
    yield from _in_flight(queue)
    yield from _encryption(queue)
    if queue.is_fifo:
        yield from _fifo(queue)


def clock_finding(ahead_seconds: float) -> Finding:
    """Return the finding about the difference of this machine's clock and the server's.

    Args:
        ahead_seconds: How far the server's clock is ahead.
    """
    off = abs(ahead_seconds)
    if off < CLOCK_SECONDS:
        return Finding.fine("clock", f"this machine's clock is right to {max(off, 1):.0f} s")
    direction = "behind" if ahead_seconds > 0 else "ahead of"
    return Finding.harm(
        "clock",
        f"this machine's clock is {shown_duration(round(off))} {direction} that of SQS",
        why=f"SQS refuses signatures that are more than {shown_duration(REFUSED_CLOCK_SECONDS)} off, and ages of "
        "messages (older_than, newer_than) are wrong by that much. Leases themselves do not count by this clock.",
        change="Have this machine set its clock from the network, for example with chrony.",
    )


def _visibility(queue: QueueState, around: QueueContext) -> Iterator[Finding]:
    seconds = queue.number("VisibilityTimeout")
    check, what = "visibility_timeout", f"its visibility timeout is {shown_duration(seconds)}"
    shortest = default_visibility_seconds(Growing(), ANSWER_SECONDS)
    left = 0.0 if seconds < 1 else seconds_left_at_worst(Growing(visibility=seconds)) or 0.0
    if left < ANSWER_SECONDS and around.waits_for_queue:
        yield Finding.harm(
            check,
            what,
            why="Every message is visible again at once. A lease without visibility= refuses the queue."
            if seconds < 1
            else f"A lease so short extends when two thirds are left, {shown_duration(round(left, 1))} here. An "
            f"extension without an answer is given up after {shown_duration(ANSWER_SECONDS)}: by then others can "
            "receive the message.",
            change=f"Set it to {shortest} s or more, or give every lease a visibility=.",
            command=queue.setting(VisibilityTimeout=str(shortest)),
        )
    elif seconds > LONG_VISIBILITY_SECONDS:
        yield Finding.harm(
            check,
            what,
            why=f"After a crash, the messages cannot be received for up to {shown_duration(seconds)}. A lease is "
            "extended while the work runs, so the visibility timeout need not be as long as the work.",
            change="Set it to a few minutes, if all consumers of the queue extend their messages.",
            command=queue.setting(VisibilityTimeout="180"),
        )
    else:
        yield Finding.fine(check, what)


def _dead_letters(queue: QueueState, around: QueueContext) -> Iterator[Finding]:
    if not queue.redrive:
        yield _without_dead_letters(queue, around)
        return
    count = int(queue.redrive.get("maxReceiveCount") or 0)
    dead_arn = str(queue.redrive.get("deadLetterTargetArn", ""))
    dead_name = name_in_arn(dead_arn)
    host, attempts = max(around.attempts.items(), key=lambda item: item[1], default=("", 0))
    if count <= attempts:
        yield Finding.harm(
            "max_receive_count",
            f"maxReceiveCount is {count}, and {host} tries {attempts + 1} times",
            why="Each try receives the messages again. The last tries find nothing: SQS has moved the messages to "
            f"{dead_name} before them.",
            change=f"Raise maxReceiveCount above {attempts + 1}.",
            command=_redrive_setting(queue, attempts + 1 + LEAST_RECEIVE_COUNT),
        )
    elif count < LEAST_RECEIVE_COUNT:
        yield Finding.harm(
            "max_receive_count",
            f"maxReceiveCount is {count}",
            why="A receive counts even when the work never ran: a process was killed, an answer was lost, a run was "
            f"cleared. After {count} of those SQS moves a good message to {dead_name}.",
            change=f"Raise it to {SUGGESTED_RECEIVE_COUNT}, and let on_failure=dead_letter() move messages that cannot "
            "succeed.",
            command=_redrive_setting(queue, SUGGESTED_RECEIVE_COUNT),
        )
    else:
        yield Finding.fine("max_receive_count", f"after {count} receives SQS moves a message to {dead_name}")
    if around.dead_letters is not None:
        yield from _of_dead_letters(queue, around.dead_letters)


def _without_dead_letters(queue: QueueState, around: QueueContext) -> Finding:
    if around.sources:
        names = ", ".join(queue_reference(url).name for url in around.sources)
        return Finding.fine("dead_letter_queue", f"it is the dead-letter queue of {names}")
    if around.sources is None:
        return Finding.note(
            "dead_letter_queue",
            "it has no dead-letter queue, and whether it is one itself is not known",
            why="Without one, a message that always fails comes back until the queue's retention ends.",
        )
    return Finding.harm(
        "dead_letter_queue",
        "it has no dead-letter queue",
        why="A message that always fails comes back until the queue's retention ends, and is then deleted. "
        "on_failure=dead_letter() cannot send it anywhere.",
        change=f"Create a {'FIFO ' if queue.is_fifo else ''}queue in the same account and region, and name it in this "
        "queue's redrive policy:",
        command=queue.setting(
            RedrivePolicy=json.dumps(
                {"deadLetterTargetArn": _dead_arn_for(queue), "maxReceiveCount": SUGGESTED_RECEIVE_COUNT}
            )
        ),
    )


def _dead_arn_for(queue: QueueState) -> str:
    plain = queue.arn.removesuffix(FIFO_SUFFIX)
    return f"{plain}-dead-letters{FIFO_SUFFIX if queue.is_fifo else ''}"


def _redrive_setting(queue: QueueState, count: int) -> str:
    return queue.setting(RedrivePolicy=json.dumps({**queue.redrive, "maxReceiveCount": count}))


def _of_dead_letters(queue: QueueState, dead: QueueState) -> Iterator[Finding]:
    kept, dead_kept = queue.retention_seconds, dead.retention_seconds
    what = f"{dead.name} keeps messages for {shown_duration(dead_kept)}, this queue for {shown_duration(kept)}"
    if queue.is_fifo or dead_kept > kept:
        yield Finding.fine("dead_letter_retention", what)
    else:
        why = (
            "SQS counts from the time when a message was first sent, even after a move. A message that waited here for "
            f"{shown_duration(dead_kept)} is deleted in {dead.name} before people can look at it."
        )
        if dead_kept < MAX_RETENTION_SECONDS:
            yield Finding.harm(
                "dead_letter_retention",
                what,
                why=why,
                change="Let the dead-letter queue keep them for 14 days, the longest time.",
                command=dead.setting(MessageRetentionPeriod=str(MAX_RETENTION_SECONDS)),
            )
        else:
            yield Finding.note(
                "dead_letter_retention",
                what,
                why=why,
                change="If messages may wait here for long, let this queue keep them for a shorter time.",
            )
    waiting = dead.number("ApproximateNumberOfMessages")
    if waiting:
        yield Finding.note(
            "dead_letters",
            f"about {_number(waiting)} {'message waits' if waiting == 1 else 'messages wait'} in {dead.name}",
            change=f"`sqs-lease peek {dead.name}` shows why they are there; `sqs-lease redrive {dead.name}` moves them "
            "back.",
        )


def _retention(queue: QueueState) -> Iterator[Finding]:
    kept = queue.retention_seconds
    if kept < MAX_VISIBILITY_SECONDS:
        yield Finding.harm(
            "retention",
            f"it keeps messages for {shown_duration(kept)} only",
            why="SQS deletes a message of that age also while a lease holds it. If its work then fails, it does not "
            f"come back. A lease may last for {shown_duration(MAX_VISIBILITY_SECONDS)}.",
            change="Keep messages for a day or more.",
            command=queue.setting(MessageRetentionPeriod="345600"),
        )


def _in_flight(queue: QueueState) -> Iterator[Finding]:
    in_flight = queue.number("ApproximateNumberOfMessagesNotVisible")
    room = max(MAX_IN_FLIGHT - in_flight, 0)
    visible = queue.number("ApproximateNumberOfMessages")
    what = f"about {_number(visible)} messages visible; {_number(in_flight)} in flight, room for {_number(room)} more"
    if in_flight < CROWDED_SHARE * MAX_IN_FLIGHT:
        yield Finding.fine("in_flight", what)
        return
    refuses = "returns no messages, without an error" if queue.is_fifo else "refuses receives (OverLimit)"
    yield Finding.harm(
        "in_flight",
        what,
        why=f"At {_number(MAX_IN_FLIGHT)} SQS {refuses}.",
        change="Take smaller or fewer batches at once, look for consumers that receive and never delete, or ask AWS "
        "for a higher quota.",
    )


def _number(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def _encryption(queue: QueueState) -> Iterator[Finding]:
    key = queue.attributes.get("KmsMasterKeyId")
    if not key:
        return
    if key.removeprefix("alias/") == "aws/sqs":
        yield Finding.note(
            "encryption",
            "it is encrypted with the AWS managed key alias/aws/sqs",
            why="Its policy cannot be changed: other accounts, and services that send (S3, SNS, EventBridge), cannot "
            "use the queue.",
        )
        return
    yield Finding.note(
        "encryption",
        f"it is encrypted with the KMS key {key}",
        why="Consumers need kms:Decrypt on it, and senders need kms:GenerateDataKey and kms:Decrypt. That is not "
        "probed: SQS uses the key only when a message is received or sent.",
        change=f"`sqs-lease policy {queue.name}` prints a policy with it.",
    )


def _fifo(queue: QueueState) -> Iterator[Finding]:
    is_high = queue.attributes.get("FifoThroughputLimit") == "perMessageGroupId"
    if is_high:
        yield Finding.fine("fifo", "it is a FIFO queue of high throughput")
        return
    yield Finding.note(
        "fifo",
        "it is a FIFO queue with 300 calls a second for each action",
        why="Receives, extensions and deletes go in tens, so that is 3 000 messages a second of each. Messages behind "
        "a held one of their group wait, at any throughput.",
    )
