"""What a ledger is made of: where it lies, the columns of its files, and what its log says of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.fs as pafs  # type: ignore[import-untyped]
from deltalake.fs import DeltaStorageHandler

from sqs_lease.spark.errors import TableError

DAY: Final = "admitted_on"
"""The column by which a ledger is partitioned: the day of the admission, in UTC."""

FILE: Final = pa.schema(
    [
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("sent_at", pa.timestamp("us", tz="UTC")),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("batch_id", pa.string(), nullable=False),
        pa.field("number", pa.int64(), nullable=False),
        pa.field("location", pa.string()),
    ]
)
"""The columns of a file: what a sink keeps of each message of a batch, and what is the same for all of them."""


@dataclass(frozen=True, slots=True)
class LedgerPlace:
    """Where a ledger lies.

    Attributes:
        address: An absolute path, or an address as deltalake takes it.
        storage_options: How deltalake is to reach an address.
    """

    address: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: str | Path, storage_options: Mapping[str, str] | None) -> LedgerPlace:
        """Make a path absolute."""
        address = str(path).rstrip("/") if "://" in str(path) else str(Path(path).absolute())
        return cls(address, storage_options)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory."""
        return "://" not in self.address

    @property
    def options(self) -> dict[str, str] | None:
        """The storage options as deltalake takes them."""
        return None if self.storage_options is None else dict(self.storage_options)

    def filesystem(self) -> pafs.FileSystem:
        """The place as a file system."""
        if self.is_local:
            return pafs.SubTreeFileSystem(self.address, pafs.LocalFileSystem())
        return pafs.PyFileSystem(DeltaStorageHandler(self.address, self.options))

    def unusable(self, what: str, error: Exception) -> TableError:
        """The error to raise over another one."""
        return TableError(
            f"the ledger {self.address} {what}: {error}. Check that this process may read and write there, and that "
            "the disk is not full"
        )


@dataclass(frozen=True, slots=True)
class Admitted:
    """One admission.

    Attributes:
        number: Its number; the ledger's first is 1.
        batch_id: The batch.
        location: Where its rows were staged; None where it had none.
    """

    number: int
    batch_id: str
    location: str | None


def rows_of(admitted: Admitted, entries: pa.Table) -> pa.Table:
    """The content of the file of an admission.

    Args:
        admitted: The admission.
        entries: Its messages, as :data:`.sink.ENTRIES`.
    """
    count = entries.num_rows
    constant = {
        "batch_id": pa.repeat(admitted.batch_id, count),
        "number": pa.repeat(admitted.number, count),
        "location": pa.repeat(pa.scalar(admitted.location, pa.string()), count),
    }
    return (
        pa.table({**{name: entries[name] for name in entries.schema.names}, **constant}).select(FILE.names).cast(FILE)
    )


def statistics_of(admitted: Admitted, entries: pa.Table) -> dict[str, Any]:
    """What the log is to say of that file, so that most look-ups need not open it."""
    constant = {"number": admitted.number, "batch_id": admitted.batch_id}
    nulls = {"number": 0, "batch_id": 0, "location": 0, "sent_at": entries["sent_at"].null_count}
    if admitted.location is None:
        nulls["location"] = entries.num_rows
    else:
        constant["location"] = admitted.location
    lowest, highest = dict(constant), dict(constant)
    times = pc.min_max(entries["sent_at"])
    if times["min"].is_valid:
        lowest["sent_at"], highest["sent_at"] = (
            times[end].as_py().isoformat(timespec="microseconds").replace("+00:00", "Z") for end in ("min", "max")
        )
    return {"numRecords": entries.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
