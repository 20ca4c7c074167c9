"""A mistake in an argument is found before anything is read, and named."""

from __future__ import annotations

from typing import Any

import pytest

from sqs_lease.spark import ArrayElements, AttributeColumns, JsonSource, SnsEnvelope


@pytest.mark.parametrize("source", ["id BIGINT", None, JsonSource])
def test_a_source_is_around_another_one(source: Any) -> None:
    for make in (ArrayElements, SnsEnvelope, lambda inner: AttributeColumns(inner, "tenant STRING")):
        with pytest.raises(TypeError, match=r"source= of .* is not a source, but"):
            make(source)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timestamp_units": "ms"}, "timestamp_units is a mapping"),
        ({"timestamp_units": None}, "timestamp_units is a mapping"),
        ({"rescued": True}, "rescued is the name of a column, not bool"),
    ],
)
def test_an_option_of_another_type_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        JsonSource("at TIMESTAMP", **options)
