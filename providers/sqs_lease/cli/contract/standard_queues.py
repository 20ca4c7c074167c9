"""The checks of standard queues: visibility, what old receipt handles do, batches, messages, long polls, counts."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from sqs_lease.cli.contract.checks import Check, DiffersError, Outcome, QueueKind, TooSlowError
from sqs_lease.cli.contract.ground import (
    COMES_SECONDS,
    HELD_SECONDS,
    LATE_SECONDS,
    ROUNDING_SECONDS,
    Ground,
    shown,
)
from sqs_lease.core.calls import EntryAnswer, Verdict
from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS, MAX_WAIT_SECONDS
from sqs_lease.core.messages import Receipt
from sqs_lease.sqs.errors import InvalidRequestError, QueueNotFoundError

COUNTS_SECONDS: Final = 120.0
"""How long a queue's counts may be out of date: AWS says that they are approximate, and right within a minute."""

_MESSAGE_BYTES: Final = 1_048_576
_MOST_ATTRIBUTES: Final = 10
_ENDED: Final = frozenset({Verdict.DONE, Verdict.LOST})


async def _visibility(ground: Ground) -> str:
    seconds = 2 * ground.unit
    await ground.send()
    held = await ground.hold(visibility=seconds)
    back = await ground.comes_again(hidden_from=held.asked_at, latest=held.answered_at + seconds + LATE_SECONDS)
    if back.held is None:
        raise DiffersError(f"it was invisible {LATE_SECONDS:g} s after its visibility timeout of {seconds} s had ended")
    after = back.held.answered_at - held.asked_at
    if after < seconds - ROUNDING_SECONDS:
        raise DiffersError(f"it came again {after:.1f} s after a receive for {seconds} s")
    if back.hidden_until < held.asked_at + ground.unit - ROUNDING_SECONDS:
        raise TooSlowError
    return f"received for {seconds} s, it came again after {after:.1f} s"


async def _extension(ground: Ground) -> str:
    unit = ground.unit
    first, second = 4 * unit, 5 * unit
    await ground.send()
    held = await ground.hold(visibility=first)
    await ground.pause_until(held.answered_at + unit)
    asked_at = ground.clock.now()
    (answer,) = await ground.change([held.receipt], second)
    answered_at = ground.clock.now()
    if answered_at > held.asked_at + first:
        raise TooSlowError
    if answer.verdict is not Verdict.DONE:
        raise DiffersError(f"an extension of a message in flight was answered {shown(answer)}")
    back = await ground.comes_again(hidden_from=asked_at, latest=answered_at + second + 2 * unit)
    if back.held is None:
        raise DiffersError(f"it was still invisible {2 * unit} s after an extension by {second} s had ended")
    after = back.held.answered_at - asked_at
    if after < second - ROUNDING_SECONDS:
        raise DiffersError(f"it came again {after:.1f} s after an extension by {second} s")
    # Counted from the receive, it would have been visible a unit before.
    if back.hidden_until < asked_at + second - unit - ROUNDING_SECONDS:
        raise TooSlowError
    return f"extended by {second} s, it came again after {after:.1f} s"


async def _release(ground: Ground) -> str:
    await ground.send()
    held = await ground.hold()
    asked_at = ground.clock.now()
    await ground.release(held)
    back = await ground.comes_again(hidden_from=asked_at, latest=ground.clock.now() + LATE_SECONDS)
    if back.held is None:
        raise DiffersError(f"it was still invisible {LATE_SECONDS:g} s after a visibility timeout of 0")
    return f"it came again after {back.held.answered_at - asked_at:.1f} s"


async def _redelivery(ground: Ground) -> str:
    await ground.send()
    first = await ground.hold()
    await ground.release(first)
    second = await ground.hold()
    counts = [held.message.attributes.get("ApproximateReceiveCount") for held in (first, second)]
    if first.message.message_id != second.message.message_id:
        raise DiffersError("the message came again with another message id")
    if first.receipt == second.receipt:
        raise DiffersError("the message came again with the same receipt handle")
    if counts != ["1", "2"]:
        raise DiffersError(f"the first two receives had the receive counts {counts[0]} and {counts[1]}")
    return "same id, another receipt handle, receive counts 1 and 2"


async def lapsed_lease(ground: Ground) -> str:
    """Extend and delete a message by its handle after its visibility timeout ended; on queues of both kinds."""
    await ground.send()
    held = await ground.hold(visibility=1)
    # A service that looks at its timers once a second is through then.
    await ground.pause_until(held.answered_at + 3)
    answers = [*await ground.change([held.receipt], HELD_SECONDS), *await ground.delete([held.receipt])]
    return _answered_as_ended(answers, ("extending it", "deleting it"))


async def _superseded_lease(ground: Ground) -> str:
    await ground.send()
    old = await ground.hold(visibility=1)
    new = (await ground.comes_again(hidden_from=old.asked_at, latest=old.answered_at + 1 + LATE_SECONDS)).held
    if new is None:
        raise DiffersError(f"it was still invisible {LATE_SECONDS:g} s after its visibility timeout had ended")
    answers = [*await ground.change([old.receipt], HELD_SECONDS), *await ground.delete([old.receipt])]
    said = _answered_as_ended(answers, ("extending by the old handle", "deleting by it"))
    (still_there,) = await ground.change([new.receipt], HELD_SECONDS)
    if still_there.verdict is Verdict.LOST:
        raise DiffersError(f"{said}, and that deleted the message of its next holder", outcome=Outcome.HARMLESS)
    return said


def _answered_as_ended(answers: list[EntryAnswer], doing: tuple[str, str]) -> str:
    said = ", ".join(f"{what}: {shown(answer)}" for what, answer in zip(doing, answers, strict=True))
    if any(answer.verdict not in _ENDED for answer in answers):
        raise DiffersError(said)
    return ", ".join(f"{what}: {answer.verdict.value}" for what, answer in zip(doing, answers, strict=True))


async def _second_delete(ground: Ground) -> str:
    await ground.send()
    held = await ground.hold()
    (first,) = await ground.delete([held.receipt])
    if first.verdict is not Verdict.DONE:
        raise DiffersError(f"deleting a message in flight was answered {shown(first)}")
    (again,) = await ground.delete([held.receipt])
    if again.verdict not in _ENDED:
        raise DiffersError(f"the second delete was answered {shown(again)}")
    if not await ground.is_empty():
        raise DiffersError("a message that was deleted came again")
    return f"the second delete: {again.verdict.value}"


async def _batches(ground: Ground) -> str:
    for number in range(MAX_BATCH_ENTRIES):
        await ground.send(f"message {number}")
    # Fewer than there are, first: a receive must not bring more than it asks for.
    messages = [*await ground.hold_all(4), *await ground.hold_all(MAX_BATCH_ENTRIES - 4)]
    receipts = [message.receipt for message in messages]
    for doing, answers in (
        ("extended", await ground.change(receipts, HELD_SECONDS)),
        ("deleted", await ground.delete(receipts)),
    ):
        failed = [answer for answer in answers if answer.verdict is not Verdict.DONE]
        if failed:
            raise DiffersError(f"{len(failed)} of {len(receipts)} messages were not {doing}: {shown(failed[0])}")
    return "ten messages were extended by one call and deleted by another"


async def _entries_apart(ground: Ground) -> str:
    for number in range(3):
        await ground.send(f"message {number}")
    one, deleted, other = (message.receipt for message in await ground.hold_all(3))
    await ground.delete([deleted])
    malformed = Receipt("no-such-message", "no-such-handle")
    extended = await ground.change([one, deleted, malformed, other], HELD_SECONDS)
    ended = await ground.delete([one, malformed, other])
    for answer in extended + ended:
        if answer.receipt in {one, other} and answer.verdict is not Verdict.DONE:
            raise DiffersError(f"beside a lost message, another one was answered {shown(answer)}")
        if answer.receipt == malformed and answer.verdict is not Verdict.LOST:
            raise DiffersError(f"a receipt handle of no message was answered {shown(answer)}")
        if answer.receipt == deleted and answer.verdict not in _ENDED:
            raise DiffersError(f"extending a deleted message was answered {shown(answer)}")
    if extended[1].verdict is Verdict.DONE:
        raise DiffersError("a message that was deleted could be extended", outcome=Outcome.HARMLESS)
    return "lost ones of a batch are answered as lost, the others as done"


async def _twelve_hours(ground: Ground) -> str:
    margin = 2 * ground.unit
    await ground.send()
    sent_at = ground.clock.now()
    # A service that counts from when the message was sent refuses the first extension.
    await ground.pause_until(sent_at + 2 * margin)
    held = await ground.hold()
    (within,) = await ground.change([held.receipt], MAX_VISIBILITY_SECONDS - margin)
    if within.verdict is not Verdict.DONE:
        if ground.clock.now() > held.asked_at + margin:
            raise TooSlowError
        raise DiffersError(f"an extension to {margin} s before the end of the 12 hours was answered {shown(within)}")
    await ground.pause_until(held.answered_at + margin)
    (beyond,) = await ground.change([held.receipt], MAX_VISIBILITY_SECONDS)
    if beyond.verdict is Verdict.DONE:
        raise DiffersError("an extension beyond 12 hours was accepted", outcome=Outcome.HARMLESS)
    if beyond.verdict is not Verdict.CAPPED:
        raise DiffersError(f"an extension beyond 12 hours was answered {shown(beyond)}")
    return f"refused with {beyond.code}, and the text that is known"


async def _message_size(ground: Ground) -> str:
    body = "äöü → €\n" + "x" * _MESSAGE_BYTES
    body = body.encode()[:_MESSAGE_BYTES].decode()
    try:
        await ground.send(body)
    except InvalidRequestError as error:
        what = f"a body of 1 MiB was refused ({error.code}: {error.text})"
        raise DiffersError(what, outcome=Outcome.HARMLESS) from error
    if (await ground.hold()).message.body != body:
        raise DiffersError("a body of 1 MiB arrived altered")
    return "a body of 1 MiB arrived whole"


async def _attributes(ground: Ground) -> str:
    text = {"DataType": "String", "StringValue": "Grüße"}
    attributes: dict[str, dict[str, Any]] = {f"text-{number}": text for number in range(_MOST_ATTRIBUTES - 1)}
    attributes["bytes"] = {"DataType": "Binary", "BinaryValue": b"\x00\xff"}
    await ground.send(attributes=attributes)
    message = (await ground.hold()).message
    came = {name: dict(value) for name, value in message.message_attributes.items()}
    values = {name: {key: came.get(name, {}).get(key) for key in value} for name, value in attributes.items()}
    if values != attributes or len(came) != len(attributes):
        raise DiffersError(f"of {len(attributes)} attributes, {len(came)} arrived, or they were altered")
    if message.sent_at is None or "ApproximateReceiveCount" not in message.attributes:
        raise DiffersError("the message came without SentTimestamp or ApproximateReceiveCount")
    try:
        await ground.send("one more", attributes={**attributes, "one-more": text})
    except InvalidRequestError:
        return "ten arrived whole, and eleven are refused"
    raise DiffersError("eleven attributes were taken", outcome=Outcome.HARMLESS)


async def _long_polls(ground: Ground) -> str:
    seconds = 2 * ground.unit
    asked_at = ground.clock.now()
    await ground.receive(wait=seconds)
    took = ground.clock.now() - asked_at
    if took < seconds - ROUNDING_SECONDS:
        raise DiffersError(f"a poll that waits {seconds} s for messages was answered without one after {took:.1f} s")
    polling = asyncio.ensure_future(ground.receive(wait=MAX_WAIT_SECONDS))
    try:
        # So that it is at the service; where it is not, the poll finds the message at once.
        await asyncio.sleep(ground.unit)
        sent_at = ground.clock.now()
        await ground.send()
        came = await polling
    finally:
        polling.cancel()
    after = ground.clock.now() - sent_at
    if not came:
        raise DiffersError("an open poll did not bring a message that was sent meanwhile")
    if after > COMES_SECONDS:
        raise DiffersError(f"an open poll brought a message {after:.1f} s after it was sent", outcome=Outcome.HARMLESS)
    return f"an open poll brought a message {after:.1f} s after it was sent"


async def _counts(ground: Ground) -> str:
    for number in range(3):
        await ground.send(f"message {number}")
    await ground.hold()
    began_at = ground.clock.now()
    while True:
        seen = await ground.service.queue_attributes(ground.url)
        after = ground.clock.now() - began_at
        if (seen.visible, seen.in_flight) == (2, 1):
            return f"right after {after:.1f} s"
        if after > COUNTS_SECONDS:
            raise DiffersError(
                f"{after:.0f} s after 3 messages were sent and 1 received, it says {seen.visible} visible and "
                f"{seen.in_flight} in flight"
            )
        await asyncio.sleep(2)


async def _queue_attributes(ground: Ground) -> str:
    seen = await ground.service.queue_attributes(ground.url)
    name = ground.url.rpartition("/")[2]
    if seen.arn.rpartition(":")[2] != name or seen.fifo:
        raise DiffersError(f"the ARN of {name} is {seen.arn}")
    if seen.visibility_seconds != HELD_SECONDS:
        raise DiffersError(f"created with {HELD_SECONDS} s, its visibility timeout is {seen.visibility_seconds} s")
    if (await ground.service.queue_attributes(await ground.service.queue_url(name))).arn != seen.arn:
        raise DiffersError("GetQueueUrl names another queue")
    try:
        await ground.service.queue_attributes(f"{ground.url}-missing")
    except QueueNotFoundError:
        return "name, ARN and visibility timeout are right, and a missing queue is called missing"
    except InvalidRequestError as error:
        raise DiffersError(f"a queue that does not exist was answered {error.code}: {error.text}") from error
    raise DiffersError("a queue that does not exist has attributes")


STANDARD: Final = (
    Check(
        "visibility",
        "A received message is invisible to others until its visibility timeout ends, and comes again then.",
        "If early, two consumers work on one message; if never, the messages of a consumer that died are away.",
        QueueKind.STANDARD,
        _visibility,
    ),
    Check(
        "extension",
        "ChangeMessageVisibility counts from the call, not from the receive or from the old end.",
        "If it ends earlier, others receive messages that are worked on; if later, messages come back late.",
        QueueKind.STANDARD,
        _extension,
    ),
    Check(
        "release",
        "A visibility timeout of 0 gives a message back at once.",
        "Messages that failed are retried only when their leases end.",
        QueueKind.STANDARD,
        _release,
    ),
    Check(
        "redelivery",
        "A message comes again with its id, another receipt handle, and a receive count that is one higher.",
        "A redelivery is taken for another message or for the old lease, and backoff() waits for the wrong time.",
        QueueKind.STANDARD,
        _redelivery,
    ),
    Check(
        "lapsed_lease",
        "After a lease ended, extending and deleting are answered as done or as lost.",
        "A lost lease is not noticed as lost: its calls are repeated, and the log blames permissions.",
        QueueKind.STANDARD,
        lapsed_lease,
    ),
    Check(
        "superseded_lease",
        "After another consumer received the message, the old handle's calls are answered as done or as lost.",
        "A lost lease is not noticed as lost: its calls are repeated, and the log blames permissions.",
        QueueKind.STANDARD,
        _superseded_lease,
    ),
    Check(
        "second_delete",
        "A delete that is repeated is answered as done or as lost, and a deleted message does not come again.",
        "After a lost answer, a delete ends in an error; or work that is done is done again.",
        QueueKind.STANDARD,
        _second_delete,
    ),
    Check(
        "batches",
        "A receive brings at most as many messages as asked for; ten are extended, and deleted, by one call.",
        "Leases end, because extensions fail.",
        QueueKind.STANDARD,
        _batches,
    ),
    Check(
        "entries_apart",
        "Each entry of a batch call has its own answer: one lost message does not fail the other nine.",
        "One lost message takes up to nine others along.",
        QueueKind.STANDARD,
        _entries_apart,
    ),
    Check(
        "twelve_hours",
        "The 12 hours count from the receive, and an extension beyond them is refused with a text that is known.",
        "Long leases end before their work, or the log blames permissions when they reach 12 hours.",
        QueueKind.STANDARD,
        _twelve_hours,
    ),
    Check(
        "message_size",
        "A message of 1 MiB arrives whole.",
        "Work is done on other content than was sent.",
        QueueKind.STANDARD,
        _message_size,
    ),
    Check(
        "attributes",
        "Ten attributes of the sender arrive whole, beside SentTimestamp and ApproximateReceiveCount.",
        "dead_letter() loses attributes, and ages and receive counts are unknown.",
        QueueKind.STANDARD,
        _attributes,
    ),
    Check(
        "long_polls",
        "A receive waits as long as it was asked to, and brings a message that is sent meanwhile.",
        "Polls follow one another without a pause, and each costs a request; or messages come late.",
        QueueKind.STANDARD,
        _long_polls,
    ),
    Check(
        "counts",
        f"GetQueueAttributes counts visible messages and those in flight, right within {COUNTS_SECONDS:.0f} s.",
        "Sensors that count start no run, or too many.",
        QueueKind.STANDARD,
        _counts,
    ),
    Check(
        "queue_attributes",
        "A queue says its ARN and its visibility timeout, is found by its name, and a missing one is called missing.",
        "Leases count by a wrong visibility timeout, or a wrong queue is not noticed.",
        QueueKind.STANDARD,
        _queue_attributes,
    ),
)
"""In the order in which people read them."""
