"""A process that is killed after its batch was admitted, before the table has it; told on standard input which."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import NoReturn
from unittest.mock import patch

import pyarrow as pa  # type: ignore[import-untyped]

from sqs_lease.spark.ledger import Ledger
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.delta.sink import OpenDelta
from sqs_lease.spark.sinks.sink import Admission, Staged
from sqs_lease.spark.sinks.write_ahead import WriteAheadTable
from sqs_lease.testing.sink_subject import asked, entries


def die(*_: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def main() -> None:
    order = json.load(sys.stdin)
    storage = Place(order["uri"], order["options"])
    message_ids = order["message_ids"]
    ledger = Ledger(f"{storage.uri}/_sqs_lease/ledger", storage.options or None)
    table = WriteAheadTable(OpenDelta(storage), ledger.open())
    staged = Staged(order["location"], pa.chunked_array([message_ids]))
    with patch.object(OpenDelta, "_commit", die):
        table.commit(table.look_up(asked(*message_ids)), Admission("batch", entries(message_ids), staged))


if __name__ == "__main__":
    main()
