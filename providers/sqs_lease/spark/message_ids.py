"""Sets of message ids, as columns: what is among others, and what is not; and tables of what is said of them.

A batch may have millions of messages, and the driver needs no more memory for them than for some: long columns lie in
files that are mapped into memory, which the system takes back where it needs it, and are worked on a part at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from itertools import chain, pairwise
from mmap import ACCESS_READ, mmap
from tempfile import TemporaryFile
from typing import IO, Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from sqs_lease.spark.errors import WorkspaceError

NO_IDS: Final = pa.chunked_array([], pa.string())
"""No messages."""
AT_ONCE: Final = 250_000
"""So many messages are worked on together. A table of their ids, by hash, fits a processor's cache better than more."""

# Rows of tables that stay in memory, some 10 MB.
_IN_MEMORY: Final = 100_000
# Ids that are looked at of each part, where the parts are cut.
_SAMPLED: Final = 250
# Rows that the one chunk has of which a column of one value is made.
_CONSTANT: Final = 50_000


def mapped(parts: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Put a table together, of which no more than a part is in memory: the rest lies in a file without a name.

    Args:
        parts: Tables of these columns, each taken when those before it are written.
        schema: The columns.

    Raises:
        WorkspaceError: The file cannot be written, below ``TMPDIR``.
    """
    coming = iter(parts)
    first, rows = [schema.empty_table()], 0
    for part in coming:
        first.append(part)
        rows += part.num_rows
        if rows > _IN_MEMORY:
            break
    else:
        return pa.concat_tables(first)
    with _file() as file:
        with _writing():
            writer = pa.ipc.new_file(file, schema)
        for part in chain(first, coming):
            with _writing():
                writer.write_table(part)
        with _writing():
            writer.close()
            file.flush()
            return pa.ipc.open_file(pa.py_buffer(mmap(file.fileno(), 0, access=ACCESS_READ))).read_all()


@contextmanager
def _file() -> Iterator[IO[bytes]]:
    """A file that never has a name: nobody can remove it, and a process that is killed leaves none."""
    with _writing():
        file = TemporaryFile()  # noqa: SIM115 - what closes it is below
    try:
        yield file
    finally:
        # What could not be written is tried again then, which says less than the error that there was.
        with suppress(OSError):
            file.close()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            "what the driver notes of the batch's messages cannot be written to a temporary file "
            f"({error.strerror or error}): is the disk full? TMPDIR says in which directory it is"
        ) from error


def slices(messages: Any) -> Iterator[Any]:
    """Ids, or a table, a part at a time."""
    yield from (messages.slice(start, AT_ONCE) for start in range(0, len(messages), AT_ONCE))


def together(*parts: pa.ChunkedArray) -> pa.ChunkedArray:
    """The ids of all parts, in their order."""
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], pa.string())


def is_among(message_ids: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which of some messages are among others."""
    if not len(message_ids) or not len(others):
        return pa.chunked_array([pa.repeat(False, len(message_ids))])
    # As in a batch that came again, which is compared with what a table knows: seen in a tenth of the time.
    if message_ids.equals(others):
        return pa.chunked_array([pa.repeat(True, len(message_ids))])
    return reduce(pc.or_, (pc.is_in(message_ids, part.combine_chunks()) for part in slices(others)))


def positions(message_ids: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where each message stands among others, of which there are some, each once; null for what does not."""
    found = (pc.index_in(message_ids, part.combine_chunks()) for part in slices(others))
    return reduce(pc.coalesce, (pc.add(part, number * AT_ONCE) for number, part in enumerate(found)))


def repeated_ids(message_ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Those of them that stand there more than once, each once."""
    found: list[pa.Array] = []
    for number, part in enumerate(slices(message_ids), 1):
        counted = pc.value_counts(part)
        found.append(counted.field("values").filter(pc.greater(counted.field("counts"), 1)))
        later = message_ids.slice(number * AT_ONCE)
        found += later.filter(pc.is_in(later, part.combine_chunks())).chunks
    return pa.chunked_array([pc.unique(pa.chunked_array(found, pa.string()))], pa.string())


def only(messages: Any, others: pa.ChunkedArray) -> Any:
    """Those messages that are among others; as ids, or as a table with the column ``message_id``."""
    is_wanted = is_among(_ids(messages), others)
    # Mostly it is all of them, which need no copy.
    return messages if pc.all(is_wanted).as_py() else filtered(messages, is_wanted)


def without(messages: Any, others: pa.ChunkedArray) -> Any:
    """Those messages that are not among others; as for :func:`only`."""
    return filtered(messages, pc.invert(is_among(_ids(messages), others)))


def filtered(messages: Any, is_wanted: pa.ChunkedArray) -> Any:
    """Those messages of which it is true; as for :func:`only`."""
    table = messages if isinstance(messages, pa.Table) else pa.table({"message_id": messages})
    found = mapped(map(pa.Table.filter, slices(table), slices(is_wanted)), table.schema)
    return found if messages is table else found["message_id"]


def in_order(messages: pa.Table) -> Iterator[pa.Table]:
    """All messages by their ids, in the order of their bytes, a part at a time."""
    message_ids = messages["message_id"]
    # Some of them say between which ids there are about as many as one part may have.
    sample = sorted(message_ids[at].as_py() for at in range(0, len(messages), max(1, AT_ONCE // _SAMPLED)))
    for low, high in pairwise(["", *sample[_SAMPLED::_SAMPLED], None]):
        is_here = pc.greater_equal(message_ids, low)
        if high is not None:
            is_here = pc.and_(is_here, pc.less(message_ids, high))
        part = messages.filter(is_here)
        yield part.take(pc.sort_indices(part["message_id"]))


def message_table(schema: pa.Schema, message_ids: Any, **given: Any) -> pa.Table:
    """Make a table with one row a message.

    Args:
        schema: The columns, with ``message_id`` among them.
        message_ids: The messages.
        given: The values of other columns, each as an array, or the one value of all rows. What is not given is null.
    """
    given["message_id"] = message_ids
    columns = [
        value
        if isinstance(value := given.get(field.name), pa.Array | pa.ChunkedArray)
        else constant(value, field.type, len(message_ids))
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def constant(value: Any, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """A column of one value, whose chunks are all the same memory."""
    chunk = pa.repeat(pa.scalar(value, kind), min(rows, _CONSTANT))
    return pa.chunked_array([chunk.slice(0, rows - start) for start in range(0, rows, _CONSTANT)], kind)


def _ids(messages: Any) -> pa.ChunkedArray:
    return messages["message_id"] if isinstance(messages, pa.Table) else messages
