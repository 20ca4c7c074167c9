"""Which applications a table is known to have taken, beside what the table itself remembers of them.

A table may forget: Delta drops the numbers of applications at its next checkpoint when
``delta.setTransactionRetentionDuration`` has passed. A batch that is told to it again then would be there twice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs  # type: ignore[import-untyped]

from sqs_lease.spark.sinks.write_ahead import Application


@dataclass(frozen=True, slots=True)
class AppliedMarks:
    """Files named ``<ledger>-<number>``, of which the newest of each ledger counts.

    Attributes:
        files: The ``pyarrow.fs.FileSystem`` of the table.
        directory: Where they are, relative to it. Nothing else is in there.
    """

    files: Any
    directory: str

    def has(self, application: Application) -> bool:
        """Whether an application was taken, or a later one, which is admitted only after it.

        Raises:
            OSError: The directory cannot be listed.
        """
        return any(name >= _name(application) for name in self._names(application.ledger_id))

    def add(self, application: Application) -> None:
        """Write down that the table has an application; the marks before it may go.

        Raises:
            OSError: The file cannot be written.
        """
        if not isinstance(self.files, pafs.PyFileSystem):  # an object store has no directories
            self.files.create_dir(self.directory, recursive=True)
        with self.files.open_output_stream(f"{self.directory}/{_name(application)}") as stream:
            stream.write(b"applied\n")
        for name in self._names(application.ledger_id):
            if name < _name(application):
                with suppress(OSError):  # another process removed it at this moment; a mark too many does no harm
                    self.files.delete_file(f"{self.directory}/{name}")

    def _names(self, ledger_id: str) -> list[str]:
        try:
            found = self.files.get_file_info(pafs.FileSelector(self.directory, allow_not_found=True))
        except FileNotFoundError:
            return []
        return [file.base_name for file in found if file.base_name.startswith(f"{ledger_id}-")]


def _name(application: Application) -> str:
    return f"{application.ledger_id}-{application.number:012d}"
