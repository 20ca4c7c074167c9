"""Search for the messages whose rows a table refuses, so that one message does not stop its batch.

Most rows that a table would refuse are found before staging, in the pass that parses them (:mod:`.sinks.row_rules`).
Rows that are refused only when they are staged or committed lead to this search, which is the same for all sinks. A
batch without such a row pays nothing for it; a batch with one takes several commits.

The search stores a batch in parts: each half on its own, and then the halves of a half that is refused. Single messages
remain. Such a message is rejected, with the reason, in two cases:

- The table said that the cause is in the row (:class:`.errors.RowsRefusedError` that is certain).
- The table took rows of other messages meanwhile, and the rows of this one failed twice.

Otherwise the cause is not in the messages, and the error is raised as it came: a full disk, or a server that does not
answer, must not send a whole queue to the rejects. An error for lack of space never rejects a message, because a
smaller part may fit on a full disk although nothing is wrong with the rest.

There is a price: a message that is alone in its batch is not rejected for an uncertain error. SQS counts its receives.
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
"""Stores some messages, by their ids; returns whether the table took rows of any of them."""

# The last line of a traceback that Spark passes on from its Python workers.
_OF_A_SERVER: Final = re.compile(r"^\s*sqs_lease\.[\w.]+\.(ObjectStoreError|TableError): ", re.MULTILINE)
# So many failures are tolerated, besides those on the way from the batch to one message, before the search ends.
_FAILURES_MORE: Final = 3


def may_be_for_rows(error: Exception) -> bool:
    """Whether the cause of an error of staging or committing may be in the rows, so that fewer rows may succeed."""
    if isinstance(error, RowsRefusedError):
        return True
    # An error in a plan is the same for every row, and so is an error of our own code in a task about a server.
    return (
        isinstance(error, SPARK_ERRORS)
        and not isinstance(error, AnalysisException | Py4JNetworkError)
        and _OF_A_SERVER.search(str(error)) is None
    )


def is_certain(error: Exception) -> bool:
    """Whether an error says that its cause is in the rows."""
    return isinstance(error, RowsRefusedError) and error.is_certain


def reason_of(error: Exception) -> str:
    """Return the reason for a message whose rows failed with an error, without any value of a row."""
    if isinstance(error, RowsRefusedError):
        return f"refused by the table: {error.rule}"
    return f"its rows cannot be written ({kind_of(error)})"


@dataclass
class Search:
    """A search: it stores a batch in parts."""

    load: LoadPart
    before: Callable[[], object]
    _rejected: dict[str, Exception] = field(default_factory=dict)
    _suspected: dict[str, Exception] = field(default_factory=dict)
    _took_rows: bool = False
    _failures: int = 0
    _without_space: int = 0

    def run(self, message_ids: pa.ChunkedArray, error: Exception) -> pa.Table:
        """Store all messages that the table takes.

        Returns:
            The other messages, and why, as :data:`.batch_file.REASONS`.

        Raises:
            Exception: The given error if its cause is not in single messages; or an error that ended the search.
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
        """Divide a refused part into the parts to try next. The last of them is tried first."""
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
