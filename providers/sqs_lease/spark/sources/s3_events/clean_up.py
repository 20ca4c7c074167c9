"""Deletes or tags objects whose records are in the table, on the executors.

Whatever goes wrong here, the records are stored: it is counted and reported, and fails nothing. It may be done twice.

An object whose version is known is told from all other writings of its key by that. Without a version, S3's entity tag
tells it: what was written since is another object, of which another message tells, and is left alone.
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
    """Have so many tasks of Spark's delete or tag the objects that messages tell of: see :data:`.source.CleanerOf`."""
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
    """What ``mapInArrow`` calls with objects: it deletes or tags them, and says in one row how many.

    Attributes:
        store: Where they are. As many are worked on at the same time as it has connections.
        tags: What they get, besides the tags that they have; None to delete them.
    """

    store: ObjectStore
    tags: Mapping[str, str] | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``DataFrame.mapInArrow``."""
        objects = [S3Object(**its) for batch in batches for its in batch.to_pylist()]
        if not objects:
            return
        # Made once, before threads share it.
        _ = self.store.client
        # Once S3 does not answer, the others would wait as long for it, and the messages would be held meanwhile.
        no_answer = Event()
        with ThreadPoolExecutor(self.store.connections) as pool:
            outcomes = list(pool.map(lambda its: self._outcome(its, no_answer), objects))
        errors = [outcome for outcome in outcomes if outcome not in (_CLEANED, _LEFT)]
        error = next((error for error in errors if error != _NOT_TRIED), None)
        done = CleanUp(outcomes.count(_CLEANED), outcomes.count(_LEFT), len(errors), error)
        yield pa.RecordBatch.from_pylist([asdict(done)], schema=_SUMMARY)

    def _outcome(self, its: S3Object, no_answer: Event) -> str:
        """Clean up one object: what became of it, or the error."""
        if no_answer.is_set():
            return _NOT_TRIED
        if not (version_of(its) or its.tag):
            return _LEFT
        try:
            client, named = self.store.client, _named(its)
            unchanged = {} if version_of(its) else {"IfMatch": f'"{its.tag}"'}
            if unchanged and (self.tags is not None or not _is_s3(client)):
                # Tagging has no such condition; and other servers than S3 may not look at that of a deletion.
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
    """Whether a client reaches S3 itself, and not another server."""
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _add_tags(client: Any, named: Mapping[str, str], tags: Mapping[str, str]) -> None:
    has = {tag["Key"]: tag["Value"] for tag in client.get_object_tagging(**named)["TagSet"]}
    if (wanted := has | dict(tags)) != has:
        # It replaces all tags.
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
