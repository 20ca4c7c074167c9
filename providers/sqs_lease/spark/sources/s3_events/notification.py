"""Parser of S3 notifications, in each shape in which they may arrive: which objects were created. Without Spark and S3.

- S3 itself sends ``{"Records": [...]}``, with the keys URL-encoded as in a form: ``+`` for a space, ``%XX``.
- With SNS in between, that text is the ``Message`` of an SNS envelope.
- EventBridge sends one event a message, with a ``detail``, and the key as it is.
- When a user configures a notification, S3 sends an ``s3:TestEvent``.

Fields: "Event message structure" and "Using EventBridge" in the Amazon S3 User Guide.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote_plus

from sqs_lease.core.failure_rules import printable
from sqs_lease.spark.json_syntax import decode_object
from sqs_lease.spark.sources.sns import is_envelope, published
from sqs_lease.spark.sources.source import UNREADABLE, NotANotificationError

# The most characters of an address that are shown: a notification may have a longer key than S3 allows.
_SHOWN_CHARACTERS: Final = 1_200
_TAG: Final = re.compile(r"[!#-~]+")
_NOT_S3: Final = "not an S3 notification: neither Records of S3, nor an EventBridge event of aws.s3, nor a test event"


@dataclass(frozen=True, slots=True)
class S3Object:
    """One object that was created.

    Attributes:
        bucket: The bucket.
        key: The key, decoded.
        version_id: The version in the notification; None in a bucket without versions.
        sequencer: The number of this write of the key, the same in every notification of it.
        tag: S3's entity tag; the same bytes have the same tag if they were written in the same way.
    """

    bucket: str
    key: str
    version_id: str | None = None
    sequencer: str | None = field(default=None, compare=False)
    tag: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        version = f" (version {self.version_id})" if self.version_id else ""
        # Made printable, because it goes into reasons, logs and errors, and a key may have line feeds.
        return printable(f"s3://{self.bucket}/{self.key}{version}"[:_SHOWN_CHARACTERS])


def created_objects(body: str) -> tuple[S3Object, ...]:
    """Return the objects that were created according to a message.

    Returns:
        Each object once, in the order of the message. Empty for test events, and for events of other kinds (an object
        was removed, restored, tagged, ...).

    Raises:
        NotANotificationError: The message is not from S3, or lacks the name of an object.
        sqs_lease.spark.json_syntax.NotJsonError: The message, or the text in its envelope, is not a JSON object.
    """
    event = decode_object(body)
    if is_envelope(event):
        event = decode_object(published(event))
    if "Records" in event:
        found = _from_records(event["Records"])
    elif "detail" in event:
        if event.get("source") != "aws.s3":
            raise NotANotificationError(_NOT_S3)
        is_creation = event.get("detail-type") == "Object Created"
        found = [_object(_mapping(event["detail"]), "version-id", "etag", 1)] if is_creation else []
    elif event.get("Event") == "s3:TestEvent":
        found = []
    else:
        raise NotANotificationError(_NOT_S3)
    # S3 delivers at least once, and that holds for the records inside one message as well.
    return tuple(dict.fromkeys(found))


def key_of(body: str) -> str | None:
    """Return the key of a message: the same for each message about the same write of the same objects.

    Returns:
        The key; None for a message without an object, or without a version or sequencer of an object.
    """
    try:
        objects = created_objects(body)
    except UNREADABLE:
        return None
    versions = [version_of(its) or its.sequencer for its in objects]
    if not objects or None in versions:
        return None
    named = [[its.bucket, its.key, version] for its, version in zip(objects, versions, strict=True)]
    return f"s3:{hashlib.sha256(json.dumps(named).encode()).hexdigest()}"


def version_of(its: S3Object) -> str | None:
    """Return the version of an object, if it stands for exactly one write of the key; None otherwise."""
    # All objects that are written while a bucket's versions are suspended have the version "null".
    return None if its.version_id == "null" else its.version_id


def _from_records(records: Any) -> list[S3Object]:
    if not isinstance(records, list):
        raise NotANotificationError(_NOT_S3)
    found = []
    for position, record in enumerate(records, 1):
        # Other servers with the S3 API call themselves "minio:s3" or "ceph:s3".
        if not isinstance(record, dict) or not str(record.get("eventSource")).endswith(":s3"):
            raise NotANotificationError(_NOT_S3)
        if not str(record.get("eventName")).removeprefix("s3:").startswith("ObjectCreated"):
            continue
        described = _mapping(record.get("s3"))
        named = _object(described, "versionId", "eTag", position)
        try:
            key = unquote_plus(named.key, errors="strict")
        except UnicodeDecodeError:
            raise NotANotificationError(f"the key of object {position} is not UTF-8") from None
        found.append(replace(named, key=key))
    return found


def _object(described: Mapping[str, Any], version_name: str, tag_name: str, position: int) -> S3Object:
    bucket = _mapping(described.get("bucket")).get("name")
    its = _mapping(described.get("object"))
    key, version_id = its.get("key"), its.get(version_name)
    if not (isinstance(bucket, str) and bucket and isinstance(key, str) and key):
        raise NotANotificationError(f"object {position} of the S3 notification has no bucket or no key")
    tag = _text(its.get(tag_name))
    # Checked, because the tag goes into a header, in quotes.
    tag = tag if tag is not None and _TAG.fullmatch(tag) else None
    return S3Object(bucket, key, _text(version_id), _text(its.get("sequencer")), tag)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
