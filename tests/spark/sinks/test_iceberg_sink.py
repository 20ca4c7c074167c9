"""An Iceberg that would store a batch twice is refused, whichever Spark has it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from sqs_lease.spark import TableError
from sqs_lease.spark.sinks.iceberg_sink import IcebergTable


class SparkWithIceberg:
    """A session of Spark Connect, which answers the one question for the version of Iceberg."""

    def __init__(self, version: str) -> None:
        self._version = version

    def sql(self, text: str) -> SparkWithIceberg:
        assert text == "SELECT `lake`.system.iceberg_version() AS version"
        return self

    def collect(self) -> list[dict[str, str]]:
        return [{"version": self._version}]


def session_with_java(iceberg: Any) -> Any:
    """A session with a Java process, whose catalog shows no functions."""
    return SimpleNamespace(
        _jvm=SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(iceberg=iceberg))), _jsparkSession=object()
    )


def table_with(version: str) -> IcebergTable:
    return table_in(SparkWithIceberg(version))


def table_in(spark: Any) -> IcebergTable:
    staged: Any = None
    return IcebergTable(spark, "`lake`.`sales`.`orders`", (), staged, StructType(), "`lake`")


@pytest.mark.parametrize("version", ["1.10.1", "1.10.0-amzn-2", "1.9.2"])
def test_an_iceberg_that_does_not_mark_its_snapshots_is_refused_with_the_remedy(version: str) -> None:
    with pytest.raises(TableError, match=rf"`lake`.`sales`.`orders`: Iceberg {version} .*1\.11 or newer.*tested_jars"):
        table_with(version).require_version()


@pytest.mark.parametrize("version", ["1.11.0", "1.12.0-amzn-0", "2.0.0"])
def test_a_newer_iceberg_is_taken(version: str) -> None:
    table_with(version).require_version()


@pytest.mark.parametrize(("version", "is_taken"), [("1.10.1", False), ("1.12.0", True)])
def test_the_jar_itself_is_asked_where_a_session_has_java(version: str, is_taken: bool) -> None:
    table = table_in(session_with_java(SimpleNamespace(IcebergBuild=SimpleNamespace(version=lambda: version))))
    with nullcontext() if is_taken else pytest.raises(TableError, match=f"Iceberg {version} does not write"):
        table.require_version()


def test_a_session_without_the_jar_is_told_what_to_check() -> None:
    package = SimpleNamespace()  # as Java's packages: it cannot be called
    table = table_in(session_with_java(SimpleNamespace(IcebergBuild=SimpleNamespace(version=package))))
    with pytest.raises(TableError, match=r"cannot be used: .* Check that the session has Iceberg's jar"):
        table.require_version()
