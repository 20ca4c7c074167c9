"""A driver needs as much memory for many messages as for some: what it keeps of each lies in files.

It is Arrow's memory that is looked at: what the process holds itself, and cannot be taken back as a file's pages can.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

FEW, MANY = 50_000, 200_000
# The driver has some 60 bytes for each message: its id, two numbers, and its outcome. A third to a half
# of that is in memory here, by how far Arrow's threads read ahead. A driver that keeps all of them takes 260 each.
BYTES_OF_A_MESSAGE = 60

# Limits as for batches of millions.
DRIVER = f"""
import sys
from pathlib import Path

import pyarrow as pa

from sqs_lease.batch_files.manifest import write_manifest
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark import DeltaSink, JsonSource, ingest, ledger, local_session, message_ids

message_ids.AT_ONCE = message_ids._IN_MEMORY = ledger._ROW_GROUP_ENTRIES = 5_000
directory = Path(sys.argv[1])
with local_session(cores=1) as spark:
    for count in ({FEW}, {MANY}):
        manifest = directory / f"{{count}}.parquet"
        messages = (
            Message(Receipt(f"{{count:018}}{{number:018}}", ""), '{{"id": 1}}', {{"SentTimestamp": "1700000000000"}})
            for number in range(count)
        )
        write_manifest(manifest, batch_id="b", queue_url="q", messages=messages)
        result = ingest(
            spark,
            manifest,
            source=JsonSource("id BIGINT"),
            sink=DeltaSink(directory / "table"),
            workspace=directory / "workspace",
        )
        print(result.ingested, pa.default_memory_pool().max_memory())
"""


def test_five_times_the_messages_need_no_more_memory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=True
    )

    (few, of_few), (many, of_many) = (map(int, line.split()) for line in done.stdout.splitlines())
    assert (few, many) == (FEW, MANY)
    assert of_many - of_few < (MANY - FEW) * BYTES_OF_A_MESSAGE
