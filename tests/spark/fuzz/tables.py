"""The kinds of tables that this environment can write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import psycopg
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable
from psycopg import sql
from psycopg.rows import dict_row

from sqs_lease.spark import DeltaSink, ParquetSink, Sink
from sqs_lease.spark.sinks.postgres.sink import PostgresSink
from tests.spark.fuzz.cases import KindOfTable, Rows


def _delta_rows(directory: Path, columns: Sequence[str]) -> Rows:
    rows: Rows = DeltaTable(str(directory)).to_pyarrow_table(columns=list(columns)).to_pylist()
    return rows


def _parquet_rows(directory: Path, columns: Sequence[str]) -> Rows:
    rows: Rows = []
    for file in sorted(directory.glob("*/*.parquet")):
        rows += pq.ParquetFile(file).read(columns=list(columns)).to_pylist()
    return rows


DELTA = KindOfTable(
    "delta", lambda directory, upsert_by: DeltaSink(directory, (), upsert_by), _delta_rows, takes_variants=False
)
PARQUET = KindOfTable(
    "parquet", lambda directory, _: ParquetSink(directory), _parquet_rows, takes_variants=False, upserts=False
)


def postgres(url: str) -> KindOfTable:
    """Tables of a server's database, called as their directories would be."""

    def name(directory: Path) -> str:
        return directory.parent.name

    def sink(directory: Path, upsert_by: Sequence[str]) -> Sink:
        return PostgresSink(url, name(directory), upsert_by=upsert_by)

    def rows(directory: Path, columns: Sequence[str]) -> Rows:
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(name(directory))
        )
        with psycopg.connect(url, row_factory=dict_row) as connection:
            return connection.execute(query).fetchall()

    return KindOfTable("postgres", sink, rows)
