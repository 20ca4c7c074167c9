"""Sources: a source says which bodies are records, and turns a batch's messages into rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sqs_lease.ingestion.result import CleanUp
from sqs_lease.spark.arguments import require_methods
from sqs_lease.spark.json_syntax import NotJsonError


class Checker(Protocol):
    """Looks at the bodies of one batch in the driver, before Spark sees them."""

    def reasons(self, bodies: Sequence[str]) -> Sequence[str | None]:
        """Say of each body why it cannot be a record: what Spark would not notice. It is called for groups of bodies.

        Returns:
            For each body the reason, without anything of what the body says; None for one that Spark is to parse.
        """


@runtime_checkable
class RepeatedChecker(Checker, Protocol):
    """A checker that refuses no body which :meth:`Source.parse` would take.

    It is called only for what is inside of other bodies, where its reasons say in which one; so the driver reads no
    body of a source that has such a checker itself.
    """

    @property
    def is_repeated(self) -> bool:
        """True."""


CheckerT = TypeVar("CheckerT", bound=Checker)


class NotANotificationError(ValueError):
    """The body is not a notification; the error's text says why, without a word of the body."""


UNREADABLE: Final = (NotJsonError, NotANotificationError)
"""Errors of bodies that are not messages of a source; their texts are reasons."""


class BodyChecker:
    """Takes the bodies that can be read, unless the value is judged not to be a record.

    ``read`` raises one of :data:`UNREADABLE` where a body cannot be read; ``judge`` gives the reason.
    """

    def __init__(self, read: Callable[[str], Any], judge: Callable[[Any], str | None] = lambda _: None) -> None:
        self._read = read
        self._judge = judge

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`Checker`."""
        return [self._reason(body) for body in bodies]

    def _reason(self, body: str) -> str | None:
        try:
            return self._judge(self._read(body))
        except UNREADABLE as error:
            return str(error)


class PartsChecker(Generic[CheckerT]):
    """Has what is inside of bodies looked at by ``inner``.

    ``parts_of`` takes a body apart: it gives what the reasons of a part begin with, and the part; or raises one of
    :data:`UNREADABLE`.
    """

    def __init__(self, inner: CheckerT, parts_of: Callable[[str], Sequence[tuple[str, str]]]) -> None:
        self.inner = inner
        self._parts_of = parts_of

    def reasons(self, bodies: Sequence[str]) -> list[str | None]:
        """See :class:`Checker`."""
        return [self._reason(body) for body in bodies]

    def _reason(self, body: str) -> str | None:
        try:
            parts = self._parts_of(body)
        except UNREADABLE as error:
            return str(error)
        reasons = self.inner.reasons([part for _, part in parts])
        named = zip(parts, reasons, strict=True)
        return next((f"{where}{reason}" for (where, _), reason in named if reason is not None), None)


class FixedSource:
    """Base of sources with columns that never change."""

    @property
    def widens(self) -> bool:
        """Never."""
        return False


class ArrowParser(Protocol):
    """Makes records of bodies in a task of Spark's, as Arrow has them. It is pickled to the tasks."""

    def __call__(self, bodies: pa.Array) -> tuple[pa.Table, pa.Array]:
        """Make records of bodies just as :meth:`Source.parse` plans it.

        Returns:
            The columns of a record, one row for each body that is one, in their order; and of each body why it is
            rejected, null for those with a record.
        """


KeysOf: TypeAlias = Callable[[Sequence[str]], Sequence[str | None]]
"""Names the content of bodies; None for a body that only its message id tells from others."""


@runtime_checkable
class KeyedSource(Protocol):
    """A source that can tell of two messages with different ids that they say the same: the second is a repeat."""

    @property
    def keys(self) -> KeysOf | None:
        """The function that names bodies, called in the driver; None if the message ids are to tell messages apart."""


IS_STORED: Final = "_sqs_lease_is_stored"
"""Of a message that is to be cleaned up: whether the table has its records, or it has nothing to store."""

CleanerOf: TypeAlias = Callable[[DataFrame], CleanUp]
"""Cleans up the objects that messages were read from. It gets the columns of :mod:`sqs_lease.spark.batch_file` and
:data:`IS_STORED`, and leaves alone all objects of messages that are not stored. It can be called again."""


@runtime_checkable
class CleaningSource(Protocol):
    """A source that can clean up the objects that its messages were read from, once their records are stored."""

    @property
    def cleaner(self) -> CleanerOf | None:
        """The function that cleans up, called in the driver after a batch's commit; None to leave everything."""


class Source(Protocol[CheckerT]):
    """Reads one kind of message. Ingestion calls the methods in the order they stand here."""

    @property
    def identity(self) -> str:
        """Everything about the source that decides the outcome of a message.

        It is a part of a batch's default name, so that messages which were rejected get their next chance when the
        source is corrected.
        """

    @property
    def widens(self) -> bool:
        """Whether columns that the table lacks are to be added to it."""

    def checker(self) -> CheckerT:
        """Begin to look at a batch."""

    def columns(self, messages: DataFrame, checker: CheckerT) -> StructType:
        """The columns of a record.

        Args:
            messages: The messages that were not rejected, as for :meth:`parse`.
            checker: The checker that looked at all bodies of the batch.

        Raises:
            SchemaError: The source was given a schema that cannot be used, or none can be found.
        """

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """Plan the parsing of one batch in one pass; nothing runs yet.

        Args:
            messages: One row a message that was not rejected: the columns of :mod:`sqs_lease.spark.batch_file`.
            columns: The columns that :meth:`columns` returned.

        Returns:
            ``columns``, then ``MESSAGE_ID``, ``SENT_AT`` and ``REASON`` of :mod:`sqs_lease.spark.columns`. A message
            gives one row for each of its records (``REASON`` is null); or one row whose ``REASON`` says why it is
            rejected; or, where it has nothing to store and is done, one whose ``REASON`` is ``NOTHING_TO_STORE``. Never
            none. A message with a reject among its rows is rejected as a whole, whatever its other rows say; and one
            with records has these, whatever else of it has nothing to store.
        """


@runtime_checkable
class ArrowSource(Protocol):
    """A source of which tasks can read the messages themselves, where the table takes their rows: it is quicker."""

    def arrow_parser(self, columns: StructType) -> ArrowParser | None:
        """Return the parser with which tasks read them.

        Args:
            columns: The columns that :meth:`Source.columns` returned.

        Returns:
            The parser; None where only Spark can read these columns.
        """


@dataclass(frozen=True)
class AroundSource(Generic[CheckerT]):
    """Base of sources that prepare messages for another one."""

    source: Source[CheckerT]

    def __post_init__(self) -> None:
        require_methods(self.source, f"source= of {type(self).__name__}", "source", "checker", "columns", "parse")

    @property
    def widens(self) -> bool:
        """Whether the other source does."""
        return self.source.widens

    @property
    def cleaner(self) -> CleanerOf | None:
        """See :class:`CleaningSource`: that of the other source."""
        clean_up = self.source.cleaner if isinstance(self.source, CleaningSource) else None
        return None if clean_up is None else lambda messages: clean_up(self.prepared(messages))

    def prepared(self, messages: DataFrame) -> DataFrame:
        """The messages as the other source gets them; further columns stay."""
        return messages
