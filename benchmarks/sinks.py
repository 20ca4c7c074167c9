"""The cost of `ingest` into each kind of table beside plain Spark that writes the same kind, as ratios.

    python -m benchmarks.sinks [--messages 200000] [--rounds 4] [--sinks delta parquet postgres]

The messages are those of :mod:`benchmarks.flights`. Timed, in turns, each round into new tables:

- plain: ``spark.read.schema(...).json(file)``, written in the format of the table; for PostgreSQL a COPY by hand, from
  Spark's tasks straight into the table. No check, no message ids, nothing exactly once.
- once: for PostgreSQL only, what a user would write to have each message once. The tasks COPY into a table without a
  log, and ``INSERT ... ON CONFLICT DO NOTHING`` takes their rows into one whose primary key is the message id.
- ingest: `ingest` of the manifest into an empty table.
- redelivery: `ingest` of the same messages again, received once more, all of which the table knows.

`delta` is `DeltaSink`, which is measured beside plain Parquet files. `native-delta` and `iceberg` need a Spark that has
jars: run them by ``.table-formats/bin/python``, which is what happens without ``--sinks``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Final
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from benchmarks.flights import SCHEMA, Files, timed, write_files
from demo.processes import ROOT
from sqs_lease.spark import DeltaSink, JsonSource, Sink, ingest, local_session
from sqs_lease.spark.sinks.iceberg_sink import IcebergSink
from sqs_lease.spark.sinks.jars import DELTA_SETTINGS, ICEBERG_SETTINGS, tested_jars
from sqs_lease.spark.sinks.native_delta_sink import NativeDeltaSink
from sqs_lease.spark.sinks.parquet_sink import ParquetSink

OF_THIS_SPARK: Final = ("delta", "parquet", "postgres")
WITH_JARS: Final = ("native-delta", "iceberg")
ENGINES: Final = ROOT / ".table-formats"
CATALOG: Final = "lake"


@dataclass(frozen=True, slots=True)
class Contender:
    """One kind of table.

    Attributes:
        plain: Writes rows into a new table as a user would, by a name that no other has.
        sink: A sink of a new table of that name.
        once: As `plain`, from the rows of a manifest, and each message once; None where that has no plain way.
        drop: Removes a table of that name if it is not a directory.
    """

    plain: Callable[[DataFrame, str], object]
    sink: Callable[[str], Sink]
    once: Callable[[DataFrame, str], object] | None = None
    drop: Callable[[str], object] = lambda _: None


def contenders(spark: SparkSession, directory: Path, stack: ExitStack, names: Sequence[str]) -> Mapping[str, Contender]:
    """Return the contenders with these names.

    Args:
        spark: The session.
        directory: Where tables go.
        stack: Ends what they need.
        names: The names.
    """
    parquet = Contender(
        lambda rows, name: rows.write.parquet(str(directory / name)), lambda name: ParquetSink(directory / name)
    )
    made: dict[str, Contender] = {}
    for name in names:
        if name == "parquet":
            made[name] = parquet
        elif name == "delta":
            made[name] = Contender(parquet.plain, lambda name: DeltaSink(directory / name))
        elif name == "native-delta":
            made[name] = Contender(
                lambda rows, name: rows.write.format("delta").save(str(directory / name)),
                lambda name: NativeDeltaSink(directory / name),
            )
        elif name == "iceberg":
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.flights")
            made[name] = Contender(
                lambda rows, name: rows.writeTo(f"{CATALOG}.flights.{name}").create(),
                lambda name: IcebergSink(f"{CATALOG}.flights.{name}", directory / f"{name}-ledger"),
                drop=lambda name: spark.sql(f"DROP TABLE IF EXISTS {CATALOG}.flights.{name} PURGE"),
            )
        else:
            made[name] = postgres(stack)
    return made


def postgres(stack: ExitStack) -> Contender:
    """A table in a PostgreSQL server that is started for it."""
    # Only here: the environment with jars lacks it.
    from demo.postgres import postgres_server
    from sqs_lease.spark.sinks.postgres.sink import PostgresSink

    url = stack.enter_context(postgres_server()).url.replace("+psycopg2", "")
    return Contender(
        partial(copy_by_hand, url),
        lambda name: PostgresSink(url, name),
        partial(copy_once_by_hand, url),
        partial(drop_by_hand, url),
    )


def drop_by_hand(url: str, table: str) -> None:
    """Remove a table from PostgreSQL."""
    import psycopg

    with psycopg.connect(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {table}".encode())


def copy_once_by_hand(url: str, rows: DataFrame, table: str) -> None:
    """Have each message's row once in a table."""
    import psycopg

    staged = f"{table}_staged"
    copy_by_hand(url, rows, staged, kind="UNLOGGED TABLE")
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE {table} (LIKE {staged}, PRIMARY KEY (message_id))".encode())
        connection.execute(f"INSERT INTO {table} SELECT * FROM {staged} ON CONFLICT DO NOTHING".encode())
        connection.execute(f"DROP TABLE {staged}".encode())


def copy_by_hand(url: str, rows: DataFrame, table: str, kind: str = "TABLE") -> None:
    """COPY rows from each task straight into a new table."""
    # Only here: the environment with jars lacks it.
    import psycopg

    types = {"string": "text", "double": "double precision", "timestamp": "timestamptz", "bigint": "bigint"}
    columns, values = [], []
    for field in rows.schema.fields:
        given = field.dataType.simpleString()
        is_nested = given.startswith(("struct", "array"))
        columns.append(f'"{field.name}" {"jsonb" if is_nested else types.get(given, "integer")}')
        values.append(F.to_json(field.name).alias(field.name) if is_nested else F.col(field.name))
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE {kind} {table} ({', '.join(columns)})".encode())
    statement = f"COPY {table} FROM STDIN (FORMAT csv)".encode()

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        count = 0
        # Made here: it cannot be sent to a task.
        options = csv.WriteOptions(include_header=False, quoting_style="needed")
        with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy(statement) as into:
            for batch in batches:
                text = BytesIO()
                csv.write_csv(batch, text, options)
                into.write(text.getvalue())
                count += batch.num_rows
        yield pa.RecordBatch.from_pylist([{"rows": count}])

    rows.select(*values).mapInArrow(copy, "rows BIGINT").collect()


class Contest:
    """Runs one contender.

    Args:
        spark: The session.
        directory: Where tables go, and nothing else.
        files: The files to read.
        count: How many messages that are.
    """

    def __init__(self, spark: SparkSession, directory: Path, files: Files, count: int) -> None:
        self.spark = spark
        self.directory = directory
        self.files = files
        self.count = count

    def round(self, contender: Contender) -> dict[str, float]:
        """Seconds, by what was done."""
        name = f"t{uuid4().hex}"
        rows = self.spark.read.schema(SCHEMA).json(str(self.files.bodies))
        sink = contender.sink(f"{name}_ours")
        seconds = {
            "plain": timed(lambda: contender.plain(rows, f"{name}_plain")),
            "ingest": timed(lambda: self._ingest(self.files.manifest, sink, ingested=self.count)),
            "redelivery": timed(lambda: self._ingest(self.files.redelivered, sink, ingested=0)),
        }
        if contender.once is not None:
            parsed = self.spark.read.parquet(str(self.files.manifest)).select(
                F.from_json("body", SCHEMA).alias("record"), "message_id"
            )
            write_once = partial(contender.once, parsed.select("record.*", "message_id"), f"{name}_once")
            seconds["once"] = timed(write_once)
        for suffix in ("plain", "once", "ours"):
            contender.drop(f"{name}_{suffix}")
        shutil.rmtree(self.directory)
        self.directory.mkdir()
        return seconds

    def _ingest(self, manifest: Path, sink: Sink, *, ingested: int) -> None:
        result = ingest(
            self.spark,
            str(manifest),
            source=JsonSource(SCHEMA),
            sink=sink,
            workspace=self.directory / "workspace",
        )
        if (result.ingested, result.duplicates) != (ingested, self.count - ingested):
            raise RuntimeError(f"{ingested} should have been ingested: {result}")


@contextmanager
def session_with_jars(warehouse: Path) -> Iterator[SparkSession]:
    """A local Spark with the jars of Delta and Iceberg, otherwise as `local_session` makes it."""
    jars = tested_jars()
    extensions = ",".join(settings["spark.sql.extensions"] for settings in (DELTA_SETTINGS, ICEBERG_SETTINGS))
    settings = {
        **DELTA_SETTINGS,
        **ICEBERG_SETTINGS,
        "spark.sql.extensions": extensions,
        "spark.jars.packages": f"{jars.delta},{jars.iceberg}",
        "spark.jars.ivy": str(ROOT / ".jars"),
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(warehouse),
        "spark.log.level": "ERROR",
    }
    submitted = " ".join(f"--conf '{name}={value}'" for name, value in settings.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{submitted} pyspark-shell"
    with local_session(cores=2) as spark:
        yield spark


def measure(
    directory: Path, names: Sequence[str], messages: int, rounds: int
) -> Iterator[tuple[str, Sequence[Mapping[str, float]]]]:
    """Measure one sink after the other.

    Yields:
        Its name, and the seconds of each round but the first, which warms up.
    """
    places = [directory / name for name in ("tables", "files", "warehouse")]
    for place in places:
        place.mkdir()
    tables, place, warehouse = places
    files = write_files(place, messages)
    with ExitStack() as stack:
        needs_jars = any(name in WITH_JARS for name in names)
        spark = stack.enter_context(session_with_jars(warehouse) if needs_jars else local_session(cores=2))
        contest = Contest(spark, tables, files, messages)
        made = contenders(spark, tables, stack, names)
        for name in names:
            yield name, [contest.round(made[name]) for _ in range(rounds)][1:]


def report(name: str, rounds: Sequence[Mapping[str, float]]) -> None:
    """Print the table's row of a sink."""
    plain, ours, again = (
        statistics.median(of_round[what] for of_round in rounds) for what in ("plain", "ingest", "redelivery")
    )
    ratios = [of_round["ingest"] / of_round["plain"] for of_round in rounds]
    repeated = statistics.median(of_round["redelivery"] / of_round["plain"] for of_round in rounds)
    each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    once = [of_round["ingest"] / of_round["once"] for of_round in rounds if "once" in of_round]
    beside = f"{statistics.median(once):7.2f}" if once else f"{'':7}"
    times = f"{plain:9.1f} {ours:10.1f} {statistics.median(ratios):8.2f} {again:14.1f} {repeated:8.2f}"
    print(f"{name:14} {times} {beside}  ({each})", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4, help="the first one only warms up")
    parser.add_argument("--sinks", nargs="*", choices=[*OF_THIS_SPARK, *WITH_JARS])
    given = parser.parse_args()
    names = OF_THIS_SPARK if given.sinks is None else given.sinks
    print(f"\n{given.messages:,} messages of 1 KB; medians, and in brackets `ingest` in each round\n")
    print(
        f"{'':14} {'plain, s':>9} {'ingest, s':>10} {'x plain':>8} {'redelivery, s':>14} {'x plain':>8} {'x once':>7}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="benchmark-") as temporary:
        for name, measured in measure(Path(temporary), names, given.messages, given.rounds):
            report(name, measured)
    if given.sinks is None:
        with_jars(given.messages, given.rounds)


def with_jars(messages: int, rounds: int) -> None:
    """The same of the sinks that need jars, in the environment that has their Spark."""
    subprocess.run([ROOT / "requirements/environment.sh", "table-formats"], check=True, cwd=ROOT)
    command = [str(ENGINES / "bin/python"), "-W", "ignore", "-m", "benchmarks.sinks"]
    options = ["--messages", str(messages), "--rounds", str(rounds), "--sinks", *WITH_JARS]
    subprocess.run([*command, *options], check=True, cwd=ROOT)


if __name__ == "__main__":
    main()
