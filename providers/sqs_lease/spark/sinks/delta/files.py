"""Staged files for a Delta table: the listing that is written beside them, and the table's log entry for each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake.transaction import AddAction

from sqs_lease.spark.errors import TableError
from sqs_lease.spark.places import Place
from sqs_lease.spark.sinks.staging import StagedFile

FILES: Final = "batches"
"""The directory below the table for the files of all batches: ``batches/<batch>/<try>/``."""

_LISTING: Final = "staged.json"
_ADDED: Final = "added"


def add_action(file: StagedFile) -> AddAction:
    """Make the log entry of a file for a commit that adds it."""
    return AddAction(
        path=file.path,
        size=file.size,
        partition_values=dict(file.partition_values),
        modification_time=file.modified_milliseconds,
        data_change=True,
        stats=json.dumps(file.statistics, ensure_ascii=False),
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of one try of a batch, and how the table must take them.

    Attributes:
        upsert_by: The key columns by which the rows replace older ones; empty if they are added.
        files: The files.
        columns: The columns of the rows, in Spark's JSON; None in a listing of an earlier version.
        partition_by: The columns that the files are partitioned by.
    """

    upsert_by: Sequence[str]
    files: Sequence[StagedFile]
    columns: Mapping[str, Any] | None = None
    partition_by: Sequence[str] = ()

    def write(self, storage: Place, directory: str) -> str:
        """Write the listing beside the files, and return its path relative to the table."""
        path = f"{directory}/{_LISTING}"
        files = storage.file_system()
        if storage.is_local:
            files.create_dir(directory, recursive=True)
        with files.open_output_stream(path) as stream:
            stream.write(msgspec.json.encode(self))
        return path

    @classmethod
    def read(cls, storage: Place, location: str) -> Listing:
        """Read a listing, in this or another process.

        Raises:
            TableError: The file is missing, or is not a listing.
        """
        try:
            with storage.file_system().open_input_file(location) as stream:
                return msgspec.json.decode(stream.read(), type=cls)
        except FileNotFoundError as error:
            raise TableError(
                f"table {storage.uri}: {location} has gone, so an admitted batch cannot be completed. Files below "
                f"{FILES}/ must only be removed by the table's own vacuum; restore it, or start a new table"
            ) from error
        # msgspec's own errors are ValueErrors only from 0.21 on.
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise TableError(
                f"table {storage.uri}: {location} cannot be read ({type(error).__name__}), so an admitted batch "
                "cannot be completed: check that this process may read it"
            ) from error


def directory_of(location: str) -> str:
    """Return the directory of a try from the path of its listing."""
    return location.rpartition("/")[0]


def mark_added(storage: Place, directory: str) -> None:
    """Write a mark that a commit added the files of a try.

    The files then stay for readers of that version, even after the table has rewritten their rows.
    """
    with storage.file_system().open_output_stream(f"{directory}/{_ADDED}") as stream:
        stream.write(b"added\n")


def was_added(storage: Place, directory: str) -> bool:
    """Whether a directory has that mark."""
    is_there: bool = storage.file_system().get_file_info(f"{directory}/{_ADDED}").type == pafs.FileType.File
    return is_there


def tries_beside(storage: Place, location: str) -> list[str]:
    """Return the directories of the other tries of a batch."""
    own = directory_of(location)
    return [
        entry.path
        for entry in storage.entries(own.rpartition("/")[0])
        if entry.type == pafs.FileType.Directory and entry.path != own
    ]


def read_rows(storage: Place, file: StagedFile, schema: pa.Schema, columns: Sequence[str]) -> pa.Table:
    """Read some of the table's columns from a file, with the table's types.

    Partition columns are included; columns that neither the file nor its partition has are left out.
    """
    with storage.file_system().open_input_file(file.path) as source, pq.ParquetFile(source) as parquet:
        found = parquet.read([name for name in columns if name in parquet.schema_arrow.names])
    for name, value in file.partition_values.items():
        found = found.append_column(name, pa.repeat(pa.scalar(value, pa.string()), file.rows))
    fields = [schema.field(name) for name in columns if name in found.column_names]
    return found.select([field.name for field in fields]).cast(pa.schema(fields))
