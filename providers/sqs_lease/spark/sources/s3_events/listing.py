"""Objects that were in a bucket before there were notifications, as messages that a source of notifications takes.

A listed object has the names by which its notification would be known (:func:`.notification.key_of`), so an object
that is both listed and told of is stored once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark.sources.s3_events.notification import listed_body
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore, ObjectStoreError, code_of

_NO_VERSION: Final = "null"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ListedObjects:
    """Some objects of a bucket.

    Attributes:
        messages: A message for each object, for ``ingest`` with an ``S3EventsSource``.
        last_key: The key of the last of them: :func:`listed_objects` goes on behind it with ``after_key``.
    """

    messages: tuple[Message, ...]
    last_key: str


def listed_objects(
    bucket: str,
    prefix: str = "",
    *,
    before: datetime,
    after_key: str | None = None,
    objects_per_batch: int = 1000,
    region: str | None = None,
    endpoint_url: str | None = None,
) -> Iterator[ListedObjects]:
    """List the objects that are in a bucket, as messages that look like S3's notifications of them.

    Of each object the newest version is listed, and not what was deleted. In a table, repeats are recognised for 29
    days: an object that is listed twice, and one that is listed and that a notification told of, by the version, or
    in a bucket without versions by the entity tag. The messages have ids made of bucket, key and version (or tag), and
    the object's time as the time at which they were sent.

    Args:
        bucket: The bucket. This process needs the right ``s3:ListBucketVersions`` on it.
        prefix: What keys begin with; all by default.
        before: When notifications began, with a zone: objects that were written later are left out.
        after_key: Go on behind this key, in the order of UTF-8, as S3 lists them. None, the default, begins at the
            first.
        objects_per_batch: How many objects are one batch, at most; S3 gives 1000 at a time.
        region: The region of S3; None, the default, for what the environment says.
        endpoint_url: Another server that speaks S3; None, the default, for what the environment says.

    Yields:
        Batches in the order of the keys, none empty. The same objects make the same batches.

    Raises:
        ObjectStoreError: S3 does not list the bucket.
        ValueError: ``before`` has no zone, or ``objects_per_batch`` is less than 1.
    """
    if before.tzinfo is None:
        raise ValueError("before has no time zone: give one, for example datetime(2026, 3, 1, tzinfo=UTC)")
    if objects_per_batch < 1:
        raise ValueError(f"objects_per_batch must be at least 1, not {objects_per_batch}")
    client = ObjectStore(1, endpoint_url, region).client
    # Not in the generator: what is wrong with the arguments is said at once.
    return _batches(_newest(client, bucket, prefix, after_key), bucket, before, objects_per_batch)


def _batches(
    found: Iterator[dict[str, Any]], bucket: str, before: datetime, objects_per_batch: int
) -> Iterator[ListedObjects]:
    older = (one for one in found if one["LastModified"] < before)
    while batch := list(islice(older, objects_per_batch)):
        yield ListedObjects(tuple(_message(bucket, one) for one in batch), batch[-1]["Key"])


def _newest(client: Any, bucket: str, prefix: str, after_key: str | None) -> Iterator[dict[str, Any]]:
    begin = {} if after_key is None else {"KeyMarker": after_key}
    try:
        for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix, **begin):
            yield from (one for one in page.get("Versions", ()) if one["IsLatest"])
    except (BotoCoreError, ClientError) as error:
        code = code_of(error) if isinstance(error, ClientError) else None
        raise ObjectStoreError(
            f"S3 does not list s3://{bucket}/{prefix} ({code or type(error).__name__}): check the bucket's name and "
            "region, and that this process may list the versions of its objects (s3:ListBucketVersions)"
        ) from error


def _message(bucket: str, listed: dict[str, Any]) -> Message:
    modified: datetime = listed["LastModified"]
    version_id = None if listed.get("VersionId") in (None, _NO_VERSION) else listed["VersionId"]
    tag = listed["ETag"].strip('"')
    named = json.dumps([bucket, listed["Key"], version_id or tag])
    body = listed_body(
        bucket,
        listed["Key"],
        version_id=version_id,
        tag=tag,
        size=listed["Size"],
        modified=modified.astimezone(UTC).isoformat().replace("+00:00", "Z"),
    )
    milliseconds = (modified - _EPOCH) // timedelta(milliseconds=1)
    return Message(
        Receipt(f"s3-{hashlib.sha256(named.encode()).hexdigest()}", ""), body, {"SentTimestamp": str(milliseconds)}
    )
