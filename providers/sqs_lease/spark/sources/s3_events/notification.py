"""Which objects a message from S3 tells of, in each of the shapes in which it may arrive. Without Spark and S3.

- S3 itself sends ``{"Records": [...]}``, with the keys URL-encoded as in a form: ``+`` for a space, ``%XX``.
- With SNS in between, that text is the ``Message`` of an SNS envelope.
- EventBridge sends one event a message, with a ``detail``, and the key as it is.
- When a notification is configured, S3 sends an ``s3:TestEvent``.

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

from sqs_lease.batch_files.json_syntax import decode_object
from sqs_lease.core.failure_rules import printable
from sqs_lease.spark.sources.sns import is_envelope, published
from sqs_lease.spark.sources.source import UNREADABLE, NotANotificationError

# Of an address: S3 has no longer keys, but a notification may.
_SHOWN_CHARACTERS: Final = 1_200
_TAG: Final = re.compile(r"[!#-~]+")
_NOT_S3: Final = "not an S3 notification: neither Records of S3, nor an EventBridge event of aws.s3, nor a test event"


@dataclass(frozen=True, slots=True)
class S3Object:
    """One object that was created.

    Attributes:
        bucket: The bucket.
        key: The key, decoded.
        version_id: The version that the notification tells of; None in a bucket without versions.
        sequencer: Tells one writing of the key from another; the same in every notification of it.
        tag: S3's entity tag, which the same bytes share, if they were written in the same way.
    """

    bucket: str
    key: str
    version_id: str | None = None
    sequencer: str | None = field(default=None, compare=False)
    tag: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        version = f" (version {self.version_id})" if self.version_id else ""
        # It goes into reasons, logs and errors, and a key may have line feeds in it.
        return printable(f"s3://{self.bucket}/{self.key}{version}"[:_SHOWN_CHARACTERS])


def created_objects(body: str) -> tuple[S3Object, ...]:
    """Find out which objects a message says were created.

    Returns:
        Each object once, in the order of the message; none for test events, and for events of other kinds (an object
        was removed, restored, tagged, ...).

    Raises:
        NotANotificationError: The message is none from S3, or names no object where it should.
        sqs_lease.batch_files.json_syntax.NotJsonError: It is no JSON object, or a wrapped one is none.
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
    # S3 delivers at least once, and says so of the records in one message too.
    return tuple(dict.fromkeys(found))


def key_of(body: str) -> str | None:
    """Name what a message tells of: the same for each message about the same writing of the same objects.

    Returns:
        The name; None for a message that tells of no object, or not which writing of it.
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
    """The version that is this writing of the key and no other; None where it has none."""
    # Objects that were written while a bucket's versions were suspended all have the version "null".
    return None if its.version_id == "null" else its.version_id


def _from_records(records: Any) -> list[S3Object]:
    if not isinstance(records, list):
        raise NotANotificationError(_NOT_S3)
    found = []
    for position, record in enumerate(records, 1):
        # Other servers that speak S3 call themselves "minio:s3" or "ceph:s3".
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
    # It goes into a header, in quotes.
    tag = tag if tag is not None and _TAG.fullmatch(tag) else None
    return S3Object(bucket, key, _text(version_id), _text(its.get("sequencer")), tag)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
