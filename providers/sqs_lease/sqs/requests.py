"""Requests to SQS and its answers, built and read as the dictionaries that AWS clients take and return."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqs_lease.core.calls import EntryAnswer, Verdict, VisibilityChange
from sqs_lease.core.messages import Message, Receipt, plain_attributes
from sqs_lease.sqs.classification import entry_verdict, plain_code, redacted
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes
from sqs_lease.sqs.validation import QueueReference, check_queue_url

_ATTRIBUTES_READ: Final = [
    "QueueArn",
    "VisibilityTimeout",
    "RedrivePolicy",
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
]

Parameters = dict[str, Any]


def queue_url_request(reference: QueueReference) -> Parameters:
    """Build ``GetQueueUrl`` for a queue given by name or ARN."""
    parameters: Parameters = {"QueueName": reference.name}
    if reference.account is not None:
        parameters["QueueOwnerAWSAccountId"] = reference.account
    return parameters


def found_url(answer: Mapping[str, Any]) -> str:
    """Read the URL in the answer of ``GetQueueUrl``.

    Raises:
        KeyError: It has none.
        TypeError: It is not a text.
        ValueError: It is not a queue's URL.
    """
    url = text_of(answer["QueueUrl"])
    check_queue_url(url)
    return url


def dead_letter_sources(answer: Mapping[str, Any]) -> list[str]:
    """Read the queues' URLs in the answer of ``ListDeadLetterSourceQueues``.

    Raises:
        KeyError: It has none.
        TypeError: It is not a list of texts.
        ValueError: One is not a queue's URL.
    """
    # The API spells this key unlike all others.
    urls = [text_of(url) for url in answer["queueUrls"]]
    for url in urls:
        check_queue_url(url)
    return urls


def queue_attributes_request(queue_url: str) -> Parameters:
    """Build ``GetQueueAttributes`` for the attributes in :class:`QueueAttributes`.

    It leaves out ``FifoQueue``: standard queues refuse that attribute, and the queue's name tells.
    """
    return {"QueueUrl": queue_url, "AttributeNames": list(_ATTRIBUTES_READ)}


def queue_attributes(answer: Mapping[str, Any]) -> QueueAttributes:
    """Read the attributes in the answer of ``GetQueueAttributes``.

    Raises:
        KeyError: The answer lacks an attribute that every queue has.
        AttributeError: A value is of another type than SQS gives it; the same for the following.
        TypeError: See above.
        ValueError: See above.
        OverflowError: See above.
    """
    attributes: Mapping[str, str] = answer["Attributes"]
    redrive = json.loads(attributes.get("RedrivePolicy") or "{}")
    count, dead_letter_arn = redrive.get("maxReceiveCount"), redrive.get("deadLetterTargetArn")
    arn = text_of(attributes["QueueArn"])
    return QueueAttributes(
        arn=arn,
        visibility_seconds=int(attributes["VisibilityTimeout"]),
        fifo=arn.endswith(".fifo"),
        dead_letter_arn=None if dead_letter_arn is None else text_of(dead_letter_arn),
        # The service returns a number; some tools write a string into the policy.
        max_receive_count=None if count is None else int(count),
        visible=int(attributes.get("ApproximateNumberOfMessages", 0)),
        in_flight=int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0)),
        delayed=int(attributes.get("ApproximateNumberOfMessagesDelayed", 0)),
    )


def receive_request(
    queue_url: str, *, max_messages: int, wait_seconds: int, visibility_seconds: int | None, attempt_id: str | None
) -> Parameters:
    """Build ``ReceiveMessage`` with all attributes of the service and the sender."""
    parameters: Parameters = {
        "QueueUrl": queue_url,
        "MaxNumberOfMessages": max_messages,
        "WaitTimeSeconds": wait_seconds,
        # The newer MessageSystemAttributeNames means the same; some emulators know only this name.
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["All"],
    }
    if visibility_seconds is not None:
        parameters["VisibilityTimeout"] = visibility_seconds
    if attempt_id is not None:
        parameters["ReceiveRequestAttemptId"] = attempt_id
    return parameters


def received_messages(answer: Mapping[str, Any]) -> list[Message]:
    """Read the messages in the answer of ``ReceiveMessage``; without messages, the service leaves the key out.

    Raises:
        KeyError: A message lacks its id, its receipt handle or its body.
        AttributeError: A value is of another type than SQS gives it; the same for the following.
        TypeError: See above.
        ValueError: See above.
    """
    return [_received_message(entry) for entry in answer.get("Messages") or ()]


def _received_message(entry: Mapping[str, Any]) -> Message:
    message = Message.from_api(entry)
    receipt = message.receipt
    if not receipt.message_id or not receipt.handle:
        raise ValueError("a message without an id or a receipt handle")
    for value in message.attributes.values():
        if not isinstance(value, str):
            raise TypeError(f"an attribute is a {type(value).__name__}")
    if message.message_attributes:
        # The code that stores or publishes them relies on this.
        plain_attributes(message.message_attributes)
    return message


def text_of(value: object) -> str:
    """Return a value of an answer that must be a text.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(value, str):
        raise TypeError(f"a text is a {type(value).__name__}")
    return value


def change_visibility_request(queue_url: str, changes: Sequence[VisibilityChange]) -> Parameters:
    """Build ``ChangeMessageVisibilityBatch``; an entry's id is its place in ``changes``."""
    entries = [
        {"Id": str(place), "ReceiptHandle": change.receipt.handle, "VisibilityTimeout": change.seconds}
        for place, change in enumerate(changes)
    ]
    return {"QueueUrl": queue_url, "Entries": entries}


def delete_request(queue_url: str, receipts: Sequence[Receipt]) -> Parameters:
    """Build ``DeleteMessageBatch``; an entry's id is its place in ``receipts``."""
    entries = [{"Id": str(place), "ReceiptHandle": receipt.handle} for place, receipt in enumerate(receipts)]
    return {"QueueUrl": queue_url, "Entries": entries}


def send_request(
    queue_url: str,
    body: str,
    *,
    message_attributes: Mapping[str, Mapping[str, Any]] | None,
    message_group_id: str | None,
    deduplication_id: str | None,
) -> Parameters:
    """Build ``SendMessage``."""
    parameters: Parameters = {"QueueUrl": queue_url, "MessageBody": body}
    if message_attributes:
        parameters["MessageAttributes"] = {name: dict(value) for name, value in message_attributes.items()}
    if message_group_id is not None:
        parameters["MessageGroupId"] = message_group_id
    if deduplication_id is not None:
        parameters["MessageDeduplicationId"] = deduplication_id
    return parameters


def entry_answers(receipts: Sequence[Receipt], answer: Mapping[str, Any]) -> list[EntryAnswer]:
    """Read the result of each entry from the answer of a batch call, in the order of ``receipts``.

    HTTP 200 can carry failed entries. An entry that the answer does not mention may or may not have been carried
    out: ``TRANSIENT``.
    """
    successful, failed = _by_id(answer.get("Successful")), _by_id(answer.get("Failed"))
    handles = [receipt.handle for receipt in receipts]
    answers = []
    for place, receipt in enumerate(receipts):
        entry_id = str(place)
        # An entry that an answer names twice counts as failed.
        if entry_id in failed:
            answers.append(_failed_entry(receipt, failed[entry_id], handles))
        elif entry_id in successful:
            answers.append(EntryAnswer(receipt, Verdict.DONE))
        else:
            answers.append(
                EntryAnswer(receipt, Verdict.TRANSIENT, "NoAnswer", "the service's answer does not mention this entry")
            )
    return answers


def _by_id(entries: Sequence[Any] | None) -> dict[str, Mapping[str, Any]]:
    """Return the entries of an answer by their ids, without values that do not have the form of one."""
    by_id: dict[str, Mapping[str, Any]] = {}
    for entry in entries or ():
        if isinstance(entry, dict) and isinstance(entry_id := entry.get("Id"), str):
            by_id[entry_id] = entry
    return by_id


def failed_call(receipts: Sequence[Receipt], error: SqsError) -> list[EntryAnswer]:
    """Return the answers of a batch call that failed as a whole: the same verdict for each entry.

    An error about one lease (lost, or capped) counts as such only if the call had one entry. Otherwise it could be
    about any of ten, and a lost lease is final.
    """
    verdict = error.verdict
    if len(receipts) == 1 and entry_verdict(error.code, error.text) in {Verdict.LOST, Verdict.CAPPED}:
        verdict = entry_verdict(error.code, error.text)
    return [EntryAnswer(receipt, verdict, error.code, str(error)) for receipt in receipts]


def _failed_entry(receipt: Receipt, entry: Mapping[str, Any], handles: Sequence[str]) -> EntryAnswer:
    code, text = str(entry.get("Code", "")), str(entry.get("Message") or "")
    verdict = entry_verdict(code, text, sender_fault=entry.get("SenderFault"))
    return EntryAnswer(receipt, verdict, redacted(plain_code(code), handles), redacted(text, handles))
