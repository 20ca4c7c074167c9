# ruff: noqa: T201 - what it prints is for people
"""Ingests random messages from every source into every table, and prints each case that breaks a promise.

``python -m tests.spark.fuzz --bodies 10000`` draws them by a new seed, which it prints; ``--seed 7 --tables delta
--sources json`` repeats a case. Native Delta and Iceberg are run by ``.table-formats/bin/python``, in the same way.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

from sqs_lease.spark import local_session
from sqs_lease.spark.sinks.jars import TESTED
from tests.spark.fuzz.cases import SOURCES, Case, KindOfTable, named, outcome_of, pairs


def main() -> int:
    """Return 1 if a case broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the messages")
    parser.add_argument("--bodies", type=int, default=10_000, help="how many in the first batch of each table")
    parser.add_argument("--tables", nargs="*", default=[], help="kinds of tables; all by default")
    parser.add_argument("--sources", nargs="*", default=[], help="kinds of sources; all by default")
    options = parser.parse_args()
    failed = 0
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spark, tables = stack.enter_context(_environment(root))
        for table, source, upsert_by in pairs(named(tables, options.tables), named(SOURCES, options.sources)):
            name = f"{source.name} into {table.name}{' by key' if upsert_by else ''}"
            directory = root / name.replace(" ", "_").replace("-", "_")
            case = Case(spark, directory, table, source, upsert_by, options.seed)
            began = time.monotonic()
            try:
                case.run(options.bodies)
            except Exception:  # noqa: BLE001 - whatever it is, the other cases go on
                failed += 1
                traceback.print_exc(file=sys.stdout, limit=-12)
                print(f"BROKEN, seed {options.seed}: {name}", flush=True)
            seconds = time.monotonic() - began
            print(f"seed {options.seed}, {name}: {outcome_of(case.outcomes)}, {seconds:.0f} s", flush=True)
    print(f"seed {options.seed}: {failed} cases are broken")
    return 1 if failed else 0


@contextmanager
def _environment(root: Path) -> Iterator[tuple[SparkSession, Sequence[KindOfTable]]]:
    """A session, and the kinds of tables that it can write."""
    if pyspark.__version__.rpartition(".")[0] in TESTED:
        from tests.processes.spark.engines.table_formats.conftest import session_with_jars
        from tests.processes.spark.engines.table_formats.fuzz_tables import table_formats

        with session_with_jars(root / "warehouse") as spark:
            yield spark, table_formats(spark)
        return
    from demo.postgres import postgres_server
    from tests.spark.fuzz.tables import DELTA, PARQUET, postgres

    with postgres_server() as server, local_session(cores=2) as spark:
        yield spark, (DELTA, PARQUET, postgres(server.url.replace("+psycopg2", "")))


if __name__ == "__main__":
    sys.exit(main())
