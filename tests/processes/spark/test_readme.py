"""The ingestion of the README does what the text around it says, on a real Spark."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_examples import readme_code

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]


def test_the_ingestion_stores_orders_and_names_what_it_rejects(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    good = {"MessageId": "m1", "Body": '{"order_id": 7, "customer": "Ada", "total": 9.5}'}
    bad = {"MessageId": "m2", "Body": '{"order_id": 8}'}
    call = f"print(load([{good!r}, {bad!r}], {str(tmp_path)!r}))"
    # In a process of its own, as it starts a Spark session and a process can have only one.
    script = f"{readme_code('ingest(')}\n{call}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=800)
    (failure,) = ast.literal_eval(ended.stdout.splitlines()[-1])["batchItemFailures"]
    assert failure["itemIdentifier"] == "m2"
    assert "customer" in failure["reason"]
    assert DeltaTable(tmp_path / "orders").to_pyarrow_table().column("order_id").to_pylist() == [7]
