"""A driver of the walking skeleton: takes the messages that it is told to take on standard input, and ingests them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

from sqs_lease import Growing, lease
from sqs_lease.blocking import LeasedBatch
from sqs_lease.spark import DeltaSink, JsonSource, ingest, local_session
from tests.spark.driver import AFTER_THE_ADMISSION, DeadlySink

SCHEMA = "id BIGINT NOT NULL, name STRING"
LIMIT_SECONDS = 600.0


@contextmanager
def leased(queue: str, messages: int, visibility_seconds: float) -> Iterator[list[LeasedBatch]]:
    """Hold so many messages: those that are not visible yet are waited for, while the others are held."""
    # A killed process' messages are visible again so many seconds later, however long it had worked.
    policy = Growing(visibility=visibility_seconds, growth=0)
    ends_at = monotonic() + LIMIT_SECONDS
    with ExitStack() as held:
        batches: list[LeasedBatch] = []
        while missing := messages - sum(map(len, batches)):
            if monotonic() > ends_at:
                raise TimeoutError(f"{missing} of {messages} messages of {queue} did not come in {LIMIT_SECONDS:.0f} s")
            batches.append(held.enter_context(lease(queue, max_messages=missing, wait=1, policy=policy)))
        yield batches


def say(**what: Any) -> None:
    # The mark tells the answers from what Spark prints.
    sys.stdout.write(f"@{json.dumps(what)}\n")
    sys.stdout.flush()


def main() -> None:
    with local_session(cores=1) as spark:
        order = json.loads(sys.stdin.readline())
        root = Path(order["root"])
        table = root / "table"
        with leased(order["queue"], order["messages"], order["visibility_seconds"]) as batches:
            messages = [message for batch in batches for message in batch]
            say(receive_counts={message.message_id: message.receive_count for message in messages})
            result = ingest(
                spark,
                messages,
                source=JsonSource(SCHEMA),
                sink=DeadlySink(table, AFTER_THE_ADMISSION) if order["dies"] else DeltaSink(table),
                workspace=root / "batches",
            )
            failures = result.failures()
            for batch in batches:
                ids = {message.message_id for message in batch}
                batch.fail_each({message_id: failures[message_id] for message_id in failures.keys() & ids})
        say(**asdict(result))


if __name__ == "__main__":
    main()
