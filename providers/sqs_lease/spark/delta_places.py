"""Access through deltalake to a place: Delta tables, and the object store of S3."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from sqs_lease.spark.errors import TableError
from sqs_lease.spark.places import OURS, Place

logger = logging.getLogger(__name__)

_LOG: Final = "_delta_log"


def load_table(place: Place) -> DeltaTable | None:
    """Load the Delta table at a place, at its newest version; None if there is no table.

    Raises:
        TableError: The table cannot be read.
    """
    if place.is_local and Path(place.uri).is_file():
        raise TableError(f"{place.uri} is a file: give the path of a directory for the table")
    try:
        return DeltaTable(place.uri, storage_options=dict(place.options) or None)
    except TableNotFoundError:
        return None
    except (DeltaError, OSError) as error:
        raise place.unusable("cannot be read", error) from error


def existing_table(place: Place, *, was_there: bool = False) -> DeltaTable:
    """Load the Delta table at a place, at its newest version.

    Raises:
        TableError: There is no table, or it cannot be read. ``was_there`` only changes the text.
    """
    table = load_table(place)
    if table is None and was_there:
        raise TableError(f"{place} is gone: it was removed while it was used")
    if table is None:
        raise TableError(f"there is no {place.what.removeprefix('the ')} at {place.uri}")
    return table


def create_table(
    place: Place, schema: Schema, *, partition_by: Sequence[str], configuration: Mapping[str, str | None] | None = None
) -> None:
    """Create a Delta table, unless another process creates it at this moment.

    Raises:
        TableError: The table cannot be created.
    """
    try:
        DeltaTable.create(
            place.uri,
            schema,
            mode="ignore",
            partition_by=list(partition_by),
            configuration=configuration,
            storage_options=dict(place.options) or None,
            # With retries, two processes that create it at once would both succeed, the second on top of the first.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except CommitFailedError:
        logger.info("%s was created by another process at this moment", place)
    except (DeltaError, OSError) as error:
        raise place.unusable("cannot be created", error) from error


def require_empty(place: Place) -> None:
    """Refuse to create a table beside other files.

    Raises:
        TableError: There are files, or the place cannot be listed.
    """
    try:
        found = place.entries("")
    except (DeltaError, OSError) as error:
        raise place.unusable("cannot be listed", error) from error
    # Another driver may be creating the table at this moment, or have created it a moment ago.
    if any(entry.base_name not in {_LOG, OURS} for entry in found) and load_table(place) is None:
        raise TableError(
            f"{place.uri} has files in it, but is not a Delta table: give the path of a table, or of a "
            "directory that is empty or does not exist"
        )


class ObjectStore(DeltaStorageHandler):
    """The object store as delta-rs sees it: the same options, credentials and errors."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> Any:
        """Open a stream for one file, to which Arrow can write."""
        return pa.PythonFile(_ByteStream(self._handler.open_output_stream(path, metadata)), mode="w")


class _ByteStream:
    """Stream that converts to bytes: Arrow writes large pieces as buffers, which delta-rs's streams do not take."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, data: Any) -> int:
        return int(self._stream.write(bytes(data)))
