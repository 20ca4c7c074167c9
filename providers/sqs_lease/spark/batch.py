"""What a batch is called: the name that stands for its messages, and the one of its files."""

from __future__ import annotations

import hashlib
import re

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

_SHOWN_CHARACTERS = 40


def default_id(source: str, message_ids: pa.ChunkedArray, receive_counts: pa.ChunkedArray) -> str:
    """Name a batch after what is in it.

    The same messages in the same order, received as often, for the same source are the same batch: a task that is
    tried again finds what its first try committed. A redelivery has a higher receive count and a corrected schema is
    another source, so that messages which were rejected get their next chance.

    Args:
        source: What decides what becomes of a message: :attr:`.source.Source.identity`.
        message_ids: The messages, each once.
        receive_counts: How often each was received.
    """
    messages = pc.binary_join_element_wise(message_ids, receive_counts.cast(pa.string()), " ")
    as_one_list = pa.ListArray.from_arrays([0, len(messages)], messages.combine_chunks())
    text = pc.binary_join(as_one_list, "\n")[0]
    return hashlib.sha256(b"%s\n%s" % (source.encode(), text.as_buffer().to_pybytes())).hexdigest()[:32]


def directory_name(batch_id: str) -> str:
    """A name for the batch's files: readable, unique, and of characters that every file system and Spark take.

    A batch id may be anything, for example an Airflow run id with its colons and plus signs.
    """
    readable = re.sub(r"[^A-Za-z0-9]+", "-", batch_id).strip("-")[:_SHOWN_CHARACTERS]
    return f"{readable or 'batch'}-{hashlib.sha256(batch_id.encode()).hexdigest()[:16]}"
