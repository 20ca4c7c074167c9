"""Clean-up of objects whose records are in the table: the executors delete or tag them.

It is a Spark job of its own after the commit, because the executors have the role that reads the objects, and the
driver may have none. The records are stored by then, so errors are counted and reported, and fail nothing. Doing it
twice does no harm, so a batch that was interrupted in between does it when it comes again.

A key may be written again before the clean-up, and the new content has a message of its own. With a version, exactly
that version is deleted. Without one, S3 deletes on the condition that the entity tag is that of the notification, so
newer content is left alone. Objects are never moved: a copy has no such condition, and needs a multipart upload beyond
5 GB; a tag with a lifecycle rule does the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.ingestion.result import CleanUp
from sqs_lease.spark import batch_file
from sqs_lease.spark.sources.s3_events.notification import S3Object, created_objects, version_of
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore, code_of, is_of_the_object
from sqs_lease.spark.sources.source import IS_STORED

_OBJECT: Final = ("bucket", "key", "version_id", "tag")
_TOLD: Final = pa.schema([*((name, pa.string()) for name in _OBJECT), (IS_STORED, pa.bool_())])
_TOLD_DDL: Final = ", ".join([*(f"{name} STRING" for name in _OBJECT), f"{IS_STORED} BOOLEAN"])
_SUMMARY: Final = pa.schema(
    [("cleaned", pa.int64()), ("left", pa.int64()), ("failed", pa.int64()), ("error", pa.string())]
)
_SUMMARY_DDL: Final = "cleaned BIGINT, left BIGINT, failed BIGINT, error STRING"

_CLEANED: Final = "cleaned"
_LEFT: Final = "left"
_NOT_TRIED: Final = "not tried"
_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "404"})
_REPLACED: Final = frozenset({"PreconditionFailed", "412"})


def clean_up(messages: DataFrame, cleaner: ObjectCleaner, tasks: int) -> CleanUp:
    """Delete or tag the objects of messages in so many tasks: see :data:`.source.CleanerOf`."""
    told = messages.select(batch_file.BODY, IS_STORED).mapInArrow(_told, _TOLD_DDL)
    stored = told.groupBy(*_OBJECT).agg(F.bool_and(IS_STORED).alias(IS_STORED)).where(IS_STORED)
    tried = stored.select(*_OBJECT).repartition(tasks, *_OBJECT).mapInArrow(cleaner, _SUMMARY_DDL).collect()
    return CleanUp(
        cleaned=sum(row["cleaned"] for row in tried),
        left=sum(row["left"] for row in tried),
        failed=sum(row["failed"] for row in tried),
        error=next((row["error"] for row in tried if row["error"]), None),
    )


@dataclass(frozen=True)
class ObjectCleaner:
    """Function for ``mapInArrow``: it deletes or tags objects, and returns one row with the counts.

    Attributes:
        store: The store of the objects. Its number of connections is the number of objects at the same time.
        tags: The tags to add to those that the objects have; None to delete the objects.
    """

    store: ObjectStore
    tags: Mapping[str, str] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``DataFrame.mapInArrow``."""
        objects = [S3Object(**its) for batch in batches for its in batch.to_pylist()]
        if not objects:
            return
        # The client is made once, before threads share it.
        _ = self.store.client
        # After one request without an answer, the others are not tried: each would wait as long, with messages held.
        no_answer = Event()
        with ThreadPoolExecutor(self.store.connections) as pool:
            outcomes = list(pool.map(lambda its: self._outcome(its, no_answer), objects))
        errors = [outcome for outcome in outcomes if outcome not in (_CLEANED, _LEFT)]
        error = next((error for error in errors if error != _NOT_TRIED), None)
        done = CleanUp(outcomes.count(_CLEANED), outcomes.count(_LEFT), len(errors), error)
        yield pa.RecordBatch.from_pylist([asdict(done)], schema=_SUMMARY)

    def _outcome(self, its: S3Object, no_answer: Event) -> str:
        """Clean up one object; return what happened to it, or the error."""
        if no_answer.is_set():
            return _NOT_TRIED
        if not (version_of(its) or its.tag):
            return _LEFT
        try:
            client, named = self.store.client, _named(its)
            unchanged = {} if version_of(its) else {"IfMatch": f'"{its.tag}"'}
            if unchanged and (self.tags is not None or not _is_s3(client)):
                # S3 has no such condition for tagging, and other servers than S3 may ignore the condition of a
                # deletion.
                client.head_object(**named, **unchanged)
            if self.tags is None:
                client.delete_object(**named, **unchanged)
            else:
                _add_tags(client, named, self.tags)
        except ClientError as error:
            code = code_of(error)
            if code in _MISSING:
                return _CLEANED if self.tags is None else _LEFT
            if code in _REPLACED:
                return _LEFT
            if not is_of_the_object(error):
                no_answer.set()
            return f"{its}: {code}"
        except BotoCoreError as error:
            no_answer.set()
            return f"{its}: {type(error).__name__}"
        return _CLEANED


def _is_s3(client: Any) -> bool:
    """Whether a client talks to S3 itself, and not to another server."""
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _add_tags(client: Any, named: Mapping[str, str], tags: Mapping[str, str]) -> None:
    has = {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(**named)["TagSet"]}
    if (wanted := has | dict(tags)) != has:
        # The request replaces all tags.
        client.put_object_tagging(
            **named, Tagging={"TagSet": [{"Key": name, "Value": value} for name, value in wanted.items()]}
        )


def _told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pylist(
            [
                {**{name: getattr(its, name) for name in _OBJECT}, IS_STORED: message[IS_STORED]}
                for message in batch.to_pylist()
                for its in created_objects(message[batch_file.BODY])
            ],
            schema=_TOLD,
        )


def _named(its: S3Object) -> dict[str, Any]:
    version_id = version_of(its)
    return {"Bucket": its.bucket, "Key": its.key, **({} if version_id is None else {"VersionId": version_id})}
