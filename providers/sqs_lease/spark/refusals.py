"""Finds the messages of which a table refuses the rows, so that no message stops a batch.

A batch that cannot be staged or committed as a whole is brought into the table in parts: each half on its own, and the
halves of a half that is refused. What remains are single messages. These are rejected, with the reason, if the table
said that it was for their rows; or if rows of other messages were taken meanwhile, and theirs failed twice. Otherwise
it is not for the messages, and the error is raised as it came. So it is, once the others were tried, where a disk was
full: that some found room on it says nothing of the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException

from sqs_lease.spark.batch_file import REASONS
from sqs_lease.spark.errors import RowsRefusedError
from sqs_lease.spark.message_ids import only, without
from sqs_lease.spark.spark_errors import SPARK_ERRORS, kind_of, lacks_space

logger = logging.getLogger(__name__)

LoadPart = Callable[[pa.ChunkedArray], bool]
"""Brings some messages into the table, by their ids; the answer says whether the table took rows of any of them."""

# As a traceback ends, in what Spark hands on from its Python workers.
_OF_A_SERVER: Final = re.compile(r"^\s*sqs_lease\.[\w.]+\.(ObjectStoreError|TableError): ", re.MULTILINE)
# Beside those on the way from the batch to one message: so many messages next to one another may be refused.
_FAILURES_MORE: Final = 3


def may_be_for_rows(error: Exception) -> bool:
    """Whether an error of staging or committing may be for what is in the rows, so that fewer rows may pass."""
    if isinstance(error, RowsRefusedError):
        return True
    # What Spark says of a plan is true of every row, and so is what our own code in its tasks says of a server.
    return (
        isinstance(error, SPARK_ERRORS)
        and not isinstance(error, AnalysisException | Py4JNetworkError)
        and _OF_A_SERVER.search(str(error)) is None
    )


def is_certain(error: Exception) -> bool:
    """Whether an error says that it is for the rows."""
    return isinstance(error, RowsRefusedError) and error.is_certain


def reason_of(error: Exception) -> str:
    """Why a message is rejected of which the rows failed so: no value of a row."""
    if isinstance(error, RowsRefusedError):
        return f"refused by the table: {error.rule}"
    return f"its rows cannot be written ({kind_of(error)})"


@dataclass
class Search:
    """Brings a batch into a table in parts."""

    load: LoadPart
    before: Callable[[], object]
    _rejected: dict[str, Exception] = field(default_factory=dict)
    _suspected: dict[str, Exception] = field(default_factory=dict)
    _took_rows: bool = False
    _failures: int = 0
    _without_space: int = 0

    def run(self, message_ids: pa.ChunkedArray, error: Exception) -> pa.Table:
        """Bring all messages into the table that it takes.

        Returns:
            The others, and why, as :data:`.batch_file.REASONS`.

        Raises:
            Exception: The error that was given, where it is not for single messages; or what ended the search.
        """
        failures = ceil(log2(max(len(message_ids), 2))) + _FAILURES_MORE
        waiting = self._divided(message_ids, error)
        while waiting:
            part = waiting.pop()
            if (refused := self._refusal(part)) is None:
                continue
            if not is_certain(refused) and not self._took_rows and self._failures > failures:
                raise error
            waiting += self._divided(part, refused)
        if self._suspected and not self._took_rows:
            raise error
        for message_id in self._suspected:
            if (again := self._refusal(pa.chunked_array([[message_id]], pa.string()))) is not None:
                if lacks_space(again):
                    raise again
                self._rejected[message_id] = again
        rows = [(message_id, reason_of(why)) for message_id, why in self._rejected.items()]
        return pa.Table.from_arrays([[row[0] for row in rows], [row[1] for row in rows]], schema=REASONS)

    def _refusal(self, part: pa.ChunkedArray) -> Exception | None:
        self.before()
        try:
            if self.load(part):
                self._took_rows = True
        except Exception as error:
            if not may_be_for_rows(error):
                raise
            self._failures += 1
            return error
        return None

    def _divided(self, part: pa.ChunkedArray, error: Exception) -> list[pa.ChunkedArray]:
        """What to try next of a part that was refused; the first of it comes last."""
        if isinstance(error, RowsRefusedError) and error.message_ids:
            named = pa.chunked_array([sorted(error.message_ids)], pa.string())
            if len(here := only(part, named)):
                self._rejected |= dict.fromkeys(here.to_pylist(), error)
                rest = without(part, named)
                return [rest] if len(rest) else []
        if len(part) > 1:
            half = len(part) // 2
            return [part.slice(half), part.slice(0, half)]
        (message_id,) = part.to_pylist()
        self._without_space += lacks_space(error)
        if self._without_space > _FAILURES_MORE:
            raise error
        (self._rejected if is_certain(error) else self._suspected)[message_id] = error
        return []
