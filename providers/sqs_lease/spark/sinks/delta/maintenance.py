"""What a Delta table wants now and then: small files put together, and files removed that it no longer has."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from sqs_lease.spark.errors import SchemaError, TableError
from sqs_lease.spark.places import Place

logger = logging.getLogger(__name__)

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Optimized:
    """What was rewritten.

    Attributes:
        files_removed: How many files were replaced.
        files_added: By how many.
        table_version: The table's version afterwards.
    """

    files_removed: int
    files_added: int
    table_version: int


def optimize(storage: Place, *, z_order_by: Sequence[str], target_file_bytes: int | None) -> Optimized:
    """See :meth:`.sink.DeltaSink.optimize`."""
    for _ in range(_TRIES):
        table = storage.existing()
        _check_order(storage, table, z_order_by)
        try:
            metrics = _rewrite(table, z_order_by, target_file_bytes)
        except CommitFailedError as error:
            if storage.existing().version() == table.version():
                raise storage.unusable("cannot be optimized", error) from error
            logger.info("table %s: rows changed in files that were being rewritten, starting again", storage.uri)
        except (DeltaError, OSError) as error:
            raise storage.unusable("cannot be optimized", error) from error
        else:
            return Optimized(
                files_removed=metrics["numFilesRemoved"],
                files_added=metrics["numFilesAdded"],
                table_version=storage.existing().version(),
            )
    raise TableError(
        f"table {storage.uri} was not optimized: its rows changed {_TRIES} times while that was tried. Do it when "
        "fewer batches come"
    )


def _check_order(storage: Place, table: DeltaTable, z_order_by: Sequence[str]) -> None:
    partitions = table.metadata().partition_columns
    possible = [field.name for field in table.schema().fields if field.name not in partitions]
    for name in z_order_by:
        if name not in possible:
            raise SchemaError(
                f"z_order_by: table {storage.uri} has no column {name} within its partitions; it has "
                f"{', '.join(possible)}"
            )


def _rewrite(table: DeltaTable, z_order_by: Sequence[str], target_file_bytes: int | None) -> dict[str, Any]:
    # delta-rs lets a commit pass that others overtook if they only added files, and refuses it if they removed some
    # that it replaces.
    if z_order_by:
        return dict(table.optimize.z_order(list(z_order_by), target_size=target_file_bytes))
    return dict(table.optimize.compact(target_size=target_file_bytes))


def vacuum(storage: Place, *, older_than: timedelta) -> list[str]:
    """See :meth:`.sink.DeltaSink.vacuum`."""
    hours = -(-older_than // timedelta(hours=1))
    try:
        removed: list[str] = storage.existing().vacuum(retention_hours=hours, dry_run=False, full=True)
    except (DeltaError, OSError) as error:
        raise storage.unusable("cannot be vacuumed", error) from error
    logger.info("table %s: %d files removed that it does not have", storage.uri, len(removed))
    return removed
