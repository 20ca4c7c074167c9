"""The names that tables and columns may have in PostgreSQL."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from sqs_lease.spark.columns import table_columns
from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.sinks.postgres.catalog import TableName, require_columns


@pytest.mark.parametrize("name", ["", ".orders", "a.b.c", "o" * 64, "sales.", '"Orders"', 'sales."Orders"'])
def test_a_text_that_is_not_the_name_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(TableError, match="is not the name of a PostgreSQL table"):
        TableName.of(name)


def test_names_that_postgresql_would_cut_are_refused() -> None:
    columns = table_columns(StructType([StructField("ü" * 32, StringType())]))
    with pytest.raises(SchemaError, match="63 bytes"):
        require_columns(columns, ())
