"""The statistics of a file in Delta's log, by which readers may skip it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark.sinks.delta.statistics import statistics_of

AT = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def statistics(path: Path, **columns: pa.Array) -> dict[str, Any]:
    """Those of a file of these columns, two rows a row group, and decimals as the sink stores them."""
    pq.write_table(pa.table(columns), path / "file.parquet", row_group_size=2, store_decimal_as_integer=True)
    return statistics_of(pq.read_metadata(path / "file.parquet"))


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        pytest.param(pa.array([3, None, -1], pa.int32()), (-1, 3), id="integers"),
        pytest.param(pa.array([3, 2**62], pa.int64()), (3, 2**62), id="long integers"),
        pytest.param(pa.array([5, 4], pa.int8()), (4, 5), id="short integers"),
        pytest.param(pa.array(["b", "é", "a"]), ("a", "é"), id="texts"),
        pytest.param(pa.array(["x" * 33]), ("x" * 32, "x" * 32 + "\U0010ffff"), id="long texts"),
        pytest.param(pa.array([date(2026, 3, 1)]), ("2026-03-01", "2026-03-01"), id="dates"),
        pytest.param(
            pa.array([AT], pa.timestamp("us", "UTC")),
            ("2026-03-01T12:00:00.123456Z", "2026-03-01T12:00:00.123456Z"),
            id="times",
        ),
        pytest.param(
            pa.array([AT.replace(tzinfo=None)], pa.timestamp("us")),
            ("2026-03-01T12:00:00.123456", "2026-03-01T12:00:00.123456"),
            id="times of no zone",
        ),
        pytest.param(pa.array(["x" * 32 + "\U0010ffffx"]), None, id="texts without a greater short one"),
        pytest.param(pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC")), None, id="times after 9999"),
        pytest.param(pa.array([1.0, float("nan")]), None, id="floats"),
        pytest.param(pa.array([Decimal("1.5")]), None, id="decimals"),
        pytest.param(pa.array([Decimal("1.5")], pa.decimal128(18, 2)), None, id="long decimals"),
        pytest.param(pa.array([Decimal("1.5")], pa.decimal128(38, 2)), None, id="decimals that no integer holds"),
        pytest.param(pa.array([True, False]), None, id="booleans"),
        pytest.param(pa.array([b"x"]), None, id="bytes"),
        pytest.param(pa.array([None, None], pa.int64()), None, id="only nulls"),
    ],
)
def test_bounds_are_written_as_delta_has_them_or_not_at_all(
    tmp_path: Path, values: pa.Array, bounds: tuple[object, object] | None
) -> None:
    found = statistics(tmp_path, c=values)

    assert found["numRecords"] == len(values)
    assert found["nullCount"] == {"c": values.null_count}
    assert (found["minValues"], found["maxValues"]) == ({"c": bounds[0]}, {"c": bounds[1]}) if bounds else ({}, {})


def test_columns_of_objects_have_bounds_but_not_those_of_arrays_and_maps(tmp_path: Path) -> None:
    found = statistics(
        tmp_path,
        items=pa.array([[{"a": 1}], []]),
        counts=pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        trip=pa.array([{"miles": 3, "end": {"town": "Ulm"}}, None]),
        id=pa.array([1, 2]),
    )

    assert found["minValues"] == {"trip": {"miles": 3, "end": {"town": "Ulm"}}, "id": 1}
    assert found["nullCount"] == {"trip": {"miles": 1, "end": {"town": 1}}, "id": 0}


def test_a_name_with_a_dot_is_not_taken_for_an_object(tmp_path: Path) -> None:
    found = statistics(tmp_path, **{"a.b": pa.array([1]), "a": pa.array([{"b": 2}])})

    assert found["minValues"] == {"a.b": 1, "a": {"b": 2}}


def test_only_the_first_columns_of_a_wide_table_have_statistics(tmp_path: Path) -> None:
    found = statistics(tmp_path, **{f"c{n}": pa.array([n]) for n in range(40)})

    assert list(found["nullCount"]) == [f"c{n}" for n in range(32)]
