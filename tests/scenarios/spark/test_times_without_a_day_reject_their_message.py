"""A time without a day rejects its message: Spark itself takes the day on which it happens to look."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import AttributeColumns, DeltaSink, JsonSource
from sqs_lease.spark.session import session_settings
from tests.spark.samples import Place, message, rows

pytestmark = pytest.mark.processes

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_in_json(place: Place) -> None:
    schema = "at TIMESTAMP, stop STRUCT<at: TIMESTAMP>, more ARRAY<TIMESTAMP>, by MAP<STRING, TIMESTAMP>, note STRING"
    good = [
        {"at": "2026-01-31T12:00:00Z", "note": "12:30"},
        {"at": "2026-01-31 12:00", "stop": {"at": None, "note": "T12:30"}},
        {"at": 1769860800, "12:30": "12:30", "more": ["2026-01-31"]},
    ]
    bad: dict[str, list[Any]] = {
        "at": ["12:30", "T12:30:15", " 1:2", "T12", "12:30 Europe/Berlin", "\t12:30:15.123456", "\x01\x7f12:30"],
        "stop.at": [{"at": "12:30"}],
        "more[]": [["2026-01-31T12:00:00Z", "12:30"]],
        "by[]": [{"a": "12:30"}],
    }
    flawed = [(where, {where.partition(".")[0].removesuffix("[]"): its}) for where in bad for its in bad[where]]
    escaped = '{"at": "\\u00312:30"}', '{"at": "\\t\\u0054\\u0031\\u0032:30"}'
    long = json.dumps({"at": "2026-01-31T12:00:00Z", "note": "\u65e5" * 100_000}, ensure_ascii=False)
    bodies = [long, *map(json.dumps, good), *(json.dumps(its) for _, its in flawed), *escaped]
    batch = [message(f"m{number:02}", body) for number, body in enumerate(bodies)]

    result = place.ingest(batch, source=JsonSource(schema))
    saved = place.ingest(batch, source=JsonSource(schema, rescued="rest"), sink=DeltaSink(place.root / "saved"))

    reasons = [f"not of the type in the schema: {where}" for where in (*(where for where, _ in flawed), "at", "at")]
    assert list(result.rejected.values()) == reasons
    assert [row["at"].astimezone(UTC) for row in rows(place.table)] == [NOON] * 4
    assert saved.rejected == {}
    assert [row["rest"] for row in rows(place.root / "saved")][4:] == bodies[4:]


def test_in_attributes_which_do_not_depend_on_the_session(place: Place) -> None:
    def sent(number: int, **texts: str) -> Message:
        attributes: dict[str, Any] = {name: {"DataType": "String", "StringValue": text} for name, text in texts.items()}
        return Message(Receipt(f"m{number}", ""), f'{{"id": {number}}}', {"SentTimestamp": "1700000000123"}, attributes)

    source = AttributeColumns(JsonSource("id INT"), "at TIMESTAMP, day DATE")
    good = [sent(0, at="2026-01-31 12:00"), sent(1, at="2026-01-31T12:00:00Z"), sent(2, day="2026-01-31"), sent(3)]
    bad = [
        sent(4, at="12:30"),
        sent(5, at="T12:30"),
        sent(6, day="2026-01-31 or so"),
        sent(7, day="2026"),
        sent(8, at=""),
    ]

    with session_settings(place.spark, {"spark.sql.session.timeZone": "America/New_York"}):
        result = place.ingest([*good, *bad], source=source)

    assert result.rejected == {
        f"m{number}": f"the attribute {name} is not of the type in the schema"
        for number, name in zip(range(4, 9), ("at", "at", "day", "day", "at"), strict=True)
    }
    assert [(row["at"], row["day"]) for row in rows(place.table)] == [
        (NOON, None),
        (NOON, None),
        (None, date(2026, 1, 31)),
        (None, None),
    ]
