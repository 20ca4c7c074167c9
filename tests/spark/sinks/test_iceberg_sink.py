"""An Iceberg that would store a batch twice is refused, whichever Spark has it."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.types import StructType

from sqs_lease.spark import TableError
from sqs_lease.spark.sinks.iceberg_sink import IcebergTable


class SparkWithIceberg:
    """Answers the one question for the version of Iceberg."""

    def __init__(self, version: str) -> None:
        self._version = version

    def sql(self, text: str) -> SparkWithIceberg:
        assert text == "SELECT `lake`.system.iceberg_version() AS version"
        return self

    def collect(self) -> list[dict[str, str]]:
        return [{"version": self._version}]


def table_with(version: str) -> IcebergTable:
    spark: Any = SparkWithIceberg(version)
    staged: Any = None
    return IcebergTable(spark, "`lake`.`sales`.`orders`", (), staged, StructType(), "`lake`")


@pytest.mark.parametrize("version", ["1.10.1", "1.10.0-amzn-2", "1.9.2"])
def test_an_iceberg_that_does_not_mark_its_snapshots_is_refused_with_the_remedy(version: str) -> None:
    with pytest.raises(TableError, match=rf"`lake`.`sales`.`orders`: Iceberg {version} .*1\.11 or newer.*tested_jars"):
        table_with(version).require_version()


@pytest.mark.parametrize("version", ["1.11.0", "1.12.0-amzn-0", "2.0.0"])
def test_a_newer_iceberg_is_taken(version: str) -> None:
    table_with(version).require_version()
