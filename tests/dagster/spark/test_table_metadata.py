"""Dagster's own metadata about the table that messages are ingested into."""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.dagster.spark import table_metadata

DELTA = {"kind": "delta", "path": "/data/orders"}


def told(source: dict[str, Any], sink: dict[str, Any] | None = None) -> dict[str, Any]:
    return {key: value.value for key, value in table_metadata({"source": source, "sink": sink or DELTA}).items()}


def columns(schema: str, **source: Any) -> list[tuple[str, str, bool, str | None]] | None:
    found = told({"kind": "json", "schema": schema, **source}).get("dagster/column_schema")
    if found is None:
        return None
    return [(each.name, each.type, each.constraints.nullable, each.description) for each in found.columns]


def test_a_schema_gives_the_columns_with_their_types_and_whether_they_may_be_null() -> None:
    schema = "order_id BIGINT NOT NULL, total DECIMAL(10, 2), items ARRAY<STRUCT<sku: STRING, n: INT>> NOT NULL"
    assert columns(schema) == [
        ("order_id", "BIGINT", False, None),
        ("total", "DECIMAL(10, 2)", True, None),
        ("items", "ARRAY<STRUCT<sku: STRING, n: INT>>", False, None),
    ]


def test_names_may_be_quoted_and_columns_may_have_comments() -> None:
    schema = "`order, ``id``` STRING COMMENT 'the shop\\'s, not ours', total: DOUBLE"
    assert columns(schema) == [
        ("order, `id`", "STRING", True, "the shop's, not ours"),
        ("total", "DOUBLE", True, None),
    ]


@pytest.mark.parametrize("schema", ["", "order_id", "{{ env.SCHEMA }}", "a INT, "])
def test_a_schema_that_is_not_understood_gives_no_columns(schema: str) -> None:
    assert columns(schema) is None


def test_columns_that_messages_may_add_to_are_not_known() -> None:
    assert columns("a INT", new_fields="add") is None
    assert columns("a INT", new_fields="reject") is not None
    assert "dagster/column_schema" not in told({"kind": "json", "inferred_schema": "/data/schema.json"})


def test_the_schema_of_what_is_in_an_envelope_counts() -> None:
    source = {"kind": "sns", "source": {"kind": "json", "schema": "a INT"}}
    assert [each.name for each in told(source)["dagster/column_schema"].columns] == ["a"]


@pytest.mark.parametrize(
    ("sink", "expected"),
    [
        (DELTA, {"dagster/storage_kind": "delta"}),
        (
            {"kind": "native-delta", "table": "shop.orders"},
            {"dagster/storage_kind": "delta", "dagster/table_name": "shop.orders"},
        ),
        ({"kind": "postgres", "url": "u", "table": {"env": "TABLE"}}, {"dagster/storage_kind": "postgres"}),
    ],
    ids=["path", "table", "table from the environment"],
)
def test_the_storage_and_the_name_of_the_table_are_told(sink: dict[str, Any], expected: dict[str, str]) -> None:
    assert told({"kind": "text"}, sink) == expected
