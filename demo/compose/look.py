"""The outcomes of the messages: the contents of the queues and the rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from demo.compose.queues import QUEUES
from demo.queues import counts

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


def queue_lines(client: SQSClient) -> Iterator[str]:
    """A line for each queue that holds a message, or whose dead-letter queue does."""
    yield f"{'queue':32}{'visible':>10}{'in flight':>11}{'delayed':>9}{'dead letters':>14}"
    for name in QUEUES:
        suffix = ".fifo" if name.endswith(".fifo") else ""
        dead_letters = f"{name.removesuffix(suffix)}-dead-letter{suffix}"
        held, dead = (
            counts(client, client.get_queue_url(QueueName=queue)["QueueUrl"]) for queue in (name, dead_letters)
        )
        if held.total or dead.total:
            yield f"{name:32}{held.visible:>10}{held.in_flight:>11}{held.delayed:>9}{dead.total:>14}"


def table_lines(lake: Path) -> Iterator[str]:
    """A line for each Delta table below a directory: its rows, and how many messages they come from.

    Args:
        lake: The directory; the tables in it are such that `sqs_lease.spark` wrote.
    """
    # Only with the extra [spark] there are tables, and what reads them.
    from deltalake import DeltaTable

    from sqs_lease.spark.columns import MESSAGE_ID

    yield f"{'table':32}{'rows':>10}{'messages':>11}{'twice':>9}"
    for log in sorted(lake.rglob("_delta_log")):
        table = DeltaTable(str(log.parent))
        # The sinks keep tables of their own beside them.
        if MESSAGE_ID not in {column.name for column in table.schema().fields}:
            continue
        rows = table.to_pyarrow_table(columns=[MESSAGE_ID])[MESSAGE_ID]
        messages = len(rows.unique())
        yield f"{log.parent.relative_to(lake)!s:32}{len(rows):>10}{messages:>11}{len(rows) - messages:>9}"
