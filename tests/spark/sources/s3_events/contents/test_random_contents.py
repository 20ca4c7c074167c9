"""Whatever bytes an object has, it gives rows or is refused by a reason: nothing else stops its batch."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from sqs_lease.spark.sources.s3_events.allowance import OverAllowanceError
from sqs_lease.spark.sources.s3_events.contents import BadContentError, Csv, Format, JsonDocument, JsonLines
from sqs_lease.spark.sources.s3_events.parquet import Parquet
from tests.form import FULL_FORM
from tests.spark.sources.allowances import allowance

EXAMPLES = 5_000 if FULL_FORM else 150
SECRET = "S3CRET"
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.decimal128(6, 2)),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": f"{SECRET} {number}",
        "amount": Decimal("1.25"),
        "ratio": number / 4,
        "ok": number % 2 == 0,
        "day": date(2026, 3, 1),
        "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
    }
    for number in range(5)
]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)


def _parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(TABLE, file)
    return file.getvalue()


def _json_lines() -> bytes:
    return "\n".join(json.dumps(row, default=str) for row in ROWS).encode()


def _csv() -> bytes:
    lines = [",".join(SCHEMA.names), *(",".join(f'"{value}"' for value in row.values()) for row in ROWS)]
    return "\n".join(lines).encode()


KINDS: list[tuple[Format, Callable[[], bytes], str]] = [
    (JsonLines(), _json_lines, "a.jsonl"),
    (JsonLines(), lambda: gzip.compress(_json_lines()), "a.jsonl.gz"),
    (JsonDocument(), lambda: b"[" + _json_lines().replace(b"\n", b",") + b"]", "a.json"),
    (Csv(SCHEMA, ["id"]), _csv, "a.csv"),
    (Parquet(SCHEMA, ["id"]), _parquet, "a.parquet"),
]


def bent(content: bytes, random: Random) -> bytes:
    """The content with some of its bytes changed, cut, doubled or put in."""
    changed = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        start = random.randrange(len(changed) + 1)
        stop = min(len(changed), start + random.choice((0, 1, 1, 4, 50)))
        part = bytes(changed[start:stop])
        changed[start:stop] = random.choice(
            (
                b"",
                part * 2,
                random.randbytes(len(part)),
                random.randbytes(random.randrange(4)),
                random.choice((b"\x00", b'"', b"\xff\xff\xff\xff", b"\n", b"\r", b",", b"{", b"]", b"\xef\xbb\xbf")),
            )
        )
    return bytes(changed)


@pytest.mark.parametrize(("how", "whole", "name"), KINDS, ids=[name for _, _, name in KINDS])
def test_bent_contents_give_rows_or_a_reason(how: Format, whole: Callable[[], bytes], name: str) -> None:
    content = whole()
    assert sum(batch.num_rows for batch in how.rows(io.BytesIO(content), name, allowance())) == 5
    for seed in range(EXAMPLES):
        reason = ""
        try:
            for batch in how.rows(io.BytesIO(bent(content, Random(seed))), name, allowance()):
                batch.validate(full=True)
        except (BadContentError, OverAllowanceError) as error:
            reason = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}") from error
        assert SECRET not in reason, f"seed {seed}"
