"""Random messages into tables: each is in its table once or rejected with a reason, and so is the next batch."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from sqs_lease.spark import (
    NOTHING_TO_STORE,
    ArrayElements,
    AttributeColumns,
    InferredSchema,
    IngestResult,
    JsonSource,
    ParserSource,
    Sink,
    SnsEnvelope,
    Source,
    TextSource,
    VariantSource,
    ingest,
)
from tests.spark.fuzz.bodies import CANARY, PLAIN, RICH, Draw, Drawn
from tests.spark.inferring import CAN_INFER
from tests.spark.sources.s3_messages import in_sns

Rows: TypeAlias = list[dict[str, Any]]
NULLABLE: Final = PLAIN.replace(" NOT NULL", "", 1)
"""The columns of which none is required."""

ATTRIBUTES: Final = "SenderId STRING, ApproximateReceiveCount INT, text STRING, number STRING, bytes BINARY"
"""Columns of what SQS and the sender say of a message."""


@dataclass(frozen=True)
class KindOfTable:
    """How tables of one kind are made and read.

    Attributes:
        name: Its name in names of tests.
        sink: Makes a sink for the table of a case, by its directory and the key columns.
        rows: Reads some columns of that table, by the directory.
        takes_variants: Whether it has columns of the type VARIANT.
        upserts: Whether it can have one row a key.
    """

    name: str
    sink: Callable[[Path, Sequence[str]], Sink]
    rows: Callable[[Path, Sequence[str]], Rows]
    takes_variants: bool = True
    upserts: bool = True


@dataclass(frozen=True)
class KindOfSource:
    """A source, and which bodies it must take.

    Attributes:
        name: Its name in names of tests.
        source: Makes it, with a directory for what it keeps.
        wrap: Puts an envelope around most bodies.
        takes: Whether records that fit must be rows with their ``id`` and ``name``.
        keeps_everything: Whether every text must be a row.
        variants: Whether it has a column of the type VARIANT.
        infers: Whether it infers columns, which not every Spark can.
        many: Whether a message may give several rows, or none.
    """

    name: str
    source: Callable[[Path], Source[Any]]
    wrap: Callable[[str], str] = lambda body: body
    takes: bool = True
    keeps_everything: bool = False
    variants: bool = False
    infers: bool = False
    many: bool = False


def _pinned(directory: Path, schema: str | None = None) -> InferredSchema:
    """A schema that is inferred; or one that was written by hand, to be widened."""
    path = directory / "schema.json"
    if schema is not None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(StructType.fromDDL(schema).jsonValue()))
    return InferredSchema(path)


def by_words(messages: pa.RecordBatch) -> pa.Table:
    """A parser: each word is a row, a body without words has nothing to store, one with a brace is rejected."""
    found: Rows = []
    for one in messages.to_pylist():
        words = one["body"].split()[:5]
        if "{" in one["body"]:
            found.append({"message_id": one["message_id"], "reason": "has a brace"})
        elif not words:
            found.append({"message_id": one["message_id"], "reason": NOTHING_TO_STORE})
        found += [{"message_id": one["message_id"], "word": word} for word in words if "{" not in one["body"]]
    return pa.Table.from_pylist(found, pa.schema([(name, pa.string()) for name in ("message_id", "word", "reason")]))


SOURCES: Final = (
    KindOfSource("json", lambda _: JsonSource(PLAIN)),
    KindOfSource("json-rich", lambda _: JsonSource(RICH)),
    KindOfSource("json-nullable", lambda _: JsonSource(NULLABLE)),
    KindOfSource("json-closed", lambda _: JsonSource(PLAIN, new_fields="reject")),
    KindOfSource(
        "json-units",
        lambda _: JsonSource(f"{PLAIN}, at_ms TIMESTAMP", timestamp_units={"at_ms": "ms"}),
    ),
    KindOfSource("json-variants", lambda _: JsonSource(f"{PLAIN}, more VARIANT"), variants=True),
    KindOfSource("json-inferred", lambda root: JsonSource(_pinned(root)), takes=False, infers=True),
    KindOfSource(
        "json-inferred-closed", lambda root: JsonSource(_pinned(root), new_fields="reject"), takes=False, infers=True
    ),
    KindOfSource(
        "json-inferred-growing", lambda root: JsonSource(_pinned(root), new_fields="add"), takes=False, infers=True
    ),
    KindOfSource("json-growing", lambda root: JsonSource(_pinned(root, PLAIN), new_fields="add"), infers=True),
    KindOfSource("json-rescued", lambda _: JsonSource(PLAIN, rescued="rest")),
    KindOfSource("json-array", lambda _: ArrayElements(JsonSource(PLAIN)), wrap=lambda body: f"[{body}]", many=True),
    KindOfSource("json-attributes", lambda _: AttributeColumns(JsonSource(PLAIN), ATTRIBUTES)),
    KindOfSource("text", lambda _: TextSource(), takes=False, keeps_everything=True),
    KindOfSource("variant", lambda _: VariantSource(), takes=False, variants=True),
    KindOfSource("sns-json", lambda _: SnsEnvelope(JsonSource(PLAIN)), wrap=in_sns),
    KindOfSource("sns-text", lambda _: SnsEnvelope(TextSource()), wrap=in_sns, takes=False),
    KindOfSource("parser", lambda _: ParserSource(by_words, "word STRING NOT NULL"), takes=False, many=True),
)


@dataclass
class Case:
    """One table that takes batches from one source, and what must be in it.

    Attributes:
        spark: The session.
        root: A directory of its own.
        table: The kind of table.
        source: The kind of source.
        upsert_by: Its key columns.
        seed: Draws the messages.
    """

    spark: SparkSession
    root: Path
    table: KindOfTable
    source: KindOfSource
    upsert_by: Sequence[str]
    seed: int
    _accepted: dict[str, Drawn] = field(default_factory=dict)
    _order: dict[str, int] = field(default_factory=dict)
    _batches: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def run(self, count: int) -> None:
        """Ingest a random batch, one that mostly fits with some of its messages again, and one of records that fit.

        Where more than one in some hundred messages does not fit, tasks read each of them alone.
        """
        draw = Draw(self.seed, ids=max(count, 100))
        first = draw.batch(count, wrap=self.source.wrap)
        self._ingest(first)
        again = draw.random.sample(first, count // 5)
        self._ingest([*draw.batch(count // 2, wrap=self.source.wrap, fitting=0.97), *again])
        last = draw.good(20, wrap=self.source.wrap)
        result = self._ingest(last)
        if self.source.takes:
            assert result.ingested == 20, result.rejected

    def _ingest(self, batch: Sequence[Drawn]) -> IngestResult:
        with _log_lines() as lines:
            result = ingest(
                self.spark,
                [one.message for one in batch],
                source=self.source.source(self.root / "source"),
                sink=self.table.sink(self.root / "table", self.upsert_by),
                workspace=self.root / "workspace",
            )
        told = "\n".join([*lines, *result.rejected.values()])
        assert CANARY not in told, [line for line in told.splitlines() if CANARY in line][:3]
        self._check(batch, result)
        return result

    def _check(self, batch: Sequence[Drawn], result: IngestResult) -> None:
        given = {one.message_id: one for one in batch}
        before = self._accepted.keys() & given.keys()
        assert not result.rejected.keys() & before, "rejected, although it was stored before"
        assert all(result.rejected.values()), "a reject without a reason"
        assert result.rejected.keys() <= given.keys()
        accepted = given.keys() - result.rejected.keys()
        assert result.received == len(batch)
        assert result.ingested + result.empty == len(accepted - before)
        assert result.duplicates == len(batch) - len(given) + len(before)
        must = {one.message_id: result.rejected.get(one.message_id) for one in batch if self._must_be_taken(one)}
        wrong = {message_id: reason for message_id, reason in must.items() if reason is not None}
        assert not wrong, list(wrong.items())[:5]
        self._accepted |= {message_id: given[message_id] for message_id in accepted}
        self._order |= dict.fromkeys(accepted - before, self._batches)
        self._batches += 1
        self.outcomes += Counter(
            ingested=result.ingested, empty=result.empty, rejected=len(result.rejected), duplicates=result.duplicates
        )
        self._check_rows(accepted - before, result)

    def _check_rows(self, new: Iterable[str], result: IngestResult) -> None:
        has_ids = self.source.takes
        columns = ["_message_id", "_batch_id", *(["id", "name"] if has_ids else [])]
        rows = self.table.rows(self.root / "table", columns)
        stored = Counter(row["_message_id"] for row in rows)
        if self.upsert_by:
            assert {row["id"]: row["_message_id"] for row in rows} == self._winners()
            assert len(rows) == len(stored)
        else:
            assert stored.keys() <= self._accepted.keys()
            assert sum(row["_batch_id"] == result.batch_id for row in rows) == result.rows
            if not self.source.many:
                assert stored == Counter(self._accepted.keys()), "in the table not once"
            assert result.empty == len(set(new) - stored.keys())
        for row in rows if has_ids else ():
            record = self._accepted[row["_message_id"]].record
            if record is not None:
                assert (row["id"], row["name"]) == (record["id"], record.get("name"))

    def _must_be_taken(self, drawn: Drawn) -> bool:
        if self.source.keeps_everything:
            return not any("\ud800" <= character <= "\udfff" for character in drawn.message["Body"])
        return self.source.takes and drawn.record is not None

    def _winners(self) -> dict[int, str]:
        """Of each key the message whose row stays."""
        newest: dict[int, tuple[Any, ...]] = {}
        for message_id, drawn in self._accepted.items():
            sent = int(drawn.message["Attributes"].get("SentTimestamp", "-1"))
            rank = (sent, self._order[message_id], message_id)
            key = self._id_of(drawn)
            newest[key] = max(newest.get(key, rank), rank)
        return {key: rank[-1] for key, rank in newest.items()}

    def _id_of(self, drawn: Drawn) -> int:
        if drawn.record is not None:
            key: int = drawn.record["id"]
            return key
        body = json.loads(drawn.message["Body"])
        if self.source.name.startswith("sns"):
            body = json.loads(body["Message"])
        if isinstance(body, list):
            (body,) = body
        return int(body["id"])


def named(kinds: Iterable[Any], names: Sequence[str]) -> list[Any]:
    """Some of the kinds, by their names; all if there are no names."""
    return [kind for kind in kinds if not names or kind.name in names]


def pairs(
    tables: Iterable[KindOfTable], sources: Iterable[KindOfSource] = SOURCES
) -> Iterator[tuple[KindOfTable, KindOfSource, Sequence[str]]]:
    """Every source into every table that takes it, added and by key."""
    for table in tables:
        for source in sources:
            if (source.variants and not table.takes_variants) or (source.infers and not CAN_INFER):
                continue
            yield table, source, ()
            if table.upserts and source.takes and not source.many and source.name != "json-nullable":
                yield table, source, ("id",)


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    """Collect the package's log lines meanwhile."""
    lines: list[str] = []

    class Collected(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    logger, handler = logging.getLogger("sqs_lease"), Collected()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def outcome_of(result: Mapping[str, Any]) -> str:
    """One line of figures."""
    return ", ".join(f"{count:,} {what}" for what, count in result.items())
