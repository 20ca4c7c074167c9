"""The messages of a table of rejects, to be ingested once more after what rejected them was put right.

The table that refused a message knows its id, and takes it for done. So a rejected message comes back under an id of
its own, which its row in the table of rejects always gives it: ``<id>#2``, and ``<id>#3`` for a row that was rejected
as ``<id>#2``. However often a table of rejects is read, each of its rows is therefore ingested once, for as long as
the table remembers messages.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark.columns import MESSAGE_ID, REJECT, SENT_AT
from sqs_lease.spark.sinks.sink import REMEMBERED

logger = logging.getLogger(__name__)

_BODY: Final = REJECT.names[0]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AGAIN: Final = re.compile(r"(?s)(.+)#([0-9]{1,9})")


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose table can be read without Spark."""

    def stored_rows(self, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Read all rows of the table.

        Args:
            columns: The columns to read; timestamps have a zone.

        Raises:
            TableError: There is no such table, or it cannot be read.
        """


Rejects: TypeAlias = ReadableSink | DataFrame
"""A table of rejects: the sink that was ``rejects=`` of :func:`.ingestion.ingest`, or its rows, or some of them."""


def _now() -> datetime:
    return datetime.now(UTC)


def rejected_messages(
    rejects: Rejects, *, include_older: bool = False, clock: Callable[[], datetime] = _now
) -> Iterator[Message]:
    """Read rejected messages, for ``ingest`` with a source, or into a table, that takes them now.

    The table into which they are ingested takes each row once, also if this is done again, and whether or not the first
    try came to its end. Messages that are still not records are rejected again, under their new id.

    A message has its body and the time at which it was sent, in milliseconds; a table of rejects does not have its
    attributes. In the table its ``_message_id`` is that of the reject with ``#2`` at the end, with ``#3`` for one
    that was rejected a second time, and so on.

    Args:
        rejects: ``DeltaSink`` or ``PostgresSink`` as it was given to ``ingest(rejects=...)``; for other tables, or to
            choose among the rows, a DataFrame with the columns ``body``, ``_message_id`` and ``_sent_at``.
        include_older: Tables remember messages for 29 days, so messages that were sent longer ago, or at an unknown
            time, are left out, with a warning that counts them: a second call would bring them in twice. True takes
            them as well; call it once, and remove the rows from the table of rejects then.
        clock: Gives the time now, with a zone.

    Yields:
        The messages, read as they are taken.

    Raises:
        TableError: The table cannot be read.
        TypeError: ``rejects`` is neither such a sink nor a DataFrame.
    """
    oldest = clock() - REMEMBERED
    left_out = 0
    for row in _rows(rejects):
        sent_at: datetime | None = row[SENT_AT]
        if not include_older and (sent_at is None or sent_at <= oldest):
            left_out += 1
            continue
        times = {} if sent_at is None else {"SentTimestamp": str((sent_at - _EPOCH) // timedelta(milliseconds=1))}
        yield Message(Receipt(_again(row[MESSAGE_ID]), ""), row[_BODY], times)
    if left_out:
        logger.warning(
            "%d rejected messages are left out: they were sent more than %d days ago, and no table would notice if "
            "they came twice. include_older=True takes them, once",
            left_out,
            REMEMBERED.days,
        )


def _rows(rejects: Rejects) -> Iterator[Mapping[str, Any]]:
    if isinstance(rejects, DataFrame):
        # As a number: PySpark gives times without their zone.
        sent_at = F.unix_micros(F.col(SENT_AT)).alias(SENT_AT)
        for body, message_id, microseconds in rejects.select(_BODY, MESSAGE_ID, sent_at).toLocalIterator():
            at = None if microseconds is None else _EPOCH + timedelta(microseconds=microseconds)
            yield {_BODY: body, MESSAGE_ID: message_id, SENT_AT: at}
    elif isinstance(rejects, ReadableSink):
        yield from rejects.stored_rows((_BODY, MESSAGE_ID, SENT_AT))
    else:
        raise TypeError(
            f"rejects must be a DeltaSink, a PostgresSink or a DataFrame, not {type(rejects).__name__}: read the table "
            "with Spark, and give its rows"
        )


def _again(message_id: str) -> str:
    repeated = _AGAIN.fullmatch(message_id)
    return f"{message_id}#2" if repeated is None else f"{repeated[1]}#{int(repeated[2]) + 1}"
