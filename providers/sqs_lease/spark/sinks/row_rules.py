"""Rules of a table that Spark writes, checked before rows are staged: constraints, and names of directories.

When the ledger has admitted a batch, the table has to take all its rows: one row that it refuses would stop this batch
and every later one. So each row is checked before that, in the pass that parses it, and a row that the table would
refuse rejects its message, with the name of the rule. That takes no second pass over the messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Final
from urllib.parse import quote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StringType, StructType

from sqs_lease.spark.arrow_values import bool_scalar, int_scalar, text_scalar
from sqs_lease.spark.columns import NULL_DIRECTORY
from sqs_lease.spark.schemas import quoted

Rule = tuple[str, Column]
"""The name of a rule in a reason, and the test: a row with false or null is refused."""

# The longest name of a file on nearly every file system.
_NAME_BYTES: Final = 255
# The most bytes for one character in such a name: four bytes, each written as % and two digits.
_CHARACTER_BYTES: Final = 12
# The characters that Spark writes as % and two digits in the name of a partition's directory.
_ESCAPED: Final = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""


@dataclass(frozen=True, slots=True)
class RowRequirements:
    """Requirements of a table for its rows, as they are at one moment.

    Attributes:
        columns: The columns of the table.
        tests: The name of each rule, as a reason has it, and its test in SQL.
        directories: The columns whose values name directories.
        file_schema: The schema of a file that the table can take as it is; None, the default, for that of the columns.
    """

    columns: StructType = field(default_factory=StructType)
    tests: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()
    file_schema: pa.Schema | None = None


def judged(rows: DataFrame, reason: str, stored: StructType, rules: Sequence[Rule]) -> DataFrame:
    """Fill in the reason of rows that break a rule and have no reason yet; columns that they lack count as null."""
    if not rules:
        return rows
    given = rows.columns
    lacking = {field.name: F.lit(None).cast(field.dataType) for field in stored.fields if field.name not in given}
    broken = [F.when(~F.coalesce(test, F.lit(False)), F.lit(f"refused by the table: {name}")) for name, test in rules]
    judged_rows = rows.withColumns(lacking) if lacking else rows
    return judged_rows.withColumn(reason, F.coalesce(F.col(reason), *broken)).select(*map(quoted, given))


def is_object_store(location: str) -> bool:
    """Whether a location is in an object store, where directories are only parts of a key."""
    return location.startswith(("s3:", "s3a:", "s3n:", "gs:", "abfs:", "abfss:", "wasbs:"))


def delta_directories(columns: StructType, partition_by: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules that partition values of a Delta table can be names of directories, and be read back."""
    for name, text, longest in _texts(columns, partition_by):
        escaped = F.regexp_replace(text, _ESCAPED, "%00")
        yield (
            f"the partition value of {name} has the character NUL, is {NULL_DIRECTORY}, or too long for a directory",
            text.isNull()
            | (~F.contains(text, F.lit("\0")) & (text != NULL_DIRECTORY) & (F.octet_length(escaped) <= longest)),
        )
        if not columns[name].nullable:
            yield from not_empty([name])


def not_empty(names: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules that NOT NULL partition columns have no empty string, which Delta reads as null."""
    for name in names:
        yield f"the partition value of {name} is empty, which is a null there", F.col(quoted(name)) != ""


def merge_directories(names: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules that partition values of a Delta table can be names of directories, which a merge makes."""
    for name in names:
        text = F.col(quoted(name))
        # A merge escapes all characters except letters, digits and -._~ as % and two digits.
        escaped = F.regexp_replace(F.url_encode(text), "[+*]", "%00")
        yield _too_long(name), text.isNull() | (F.octet_length(escaped) <= _longest(name))


def iceberg_directories(columns: StructType, partition_by: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules that partition values of an Iceberg table can be names of directories."""
    for name, text, longest in _texts(columns, partition_by):
        yield _too_long(name), text.isNull() | (F.octet_length(F.url_encode(text)) <= longest)


def too_long_for_iceberg(name: str, text: str, width: int | None) -> Mapping[str, str]:
    """Make the same rule for a partition that has another name than its column, for :attr:`RowRequirements.tests`.

    Args:
        name: The name of the partition, which directories begin with.
        text: The string, in SQL.
        width: The number of characters that count; all of them if it is None.

    Returns:
        The rule; empty if no string can be too long.
    """
    if width is not None and _CHARACTER_BYTES * width <= _longest(name):
        return {}
    value = text if width is None else f"substring({text}, 1, {width})"
    return {_too_long(name): f"{text} IS NULL OR octet_length(url_encode({value})) <= {_longest(name)}"}


def _texts(columns: StructType, partition_by: Sequence[str]) -> Iterator[tuple[str, Column, int]]:
    """Yield the string columns among those: name, value, and the most bytes of it in the name of a directory."""
    for name in partition_by:
        if name in columns.names and isinstance(columns[name].dataType, StringType):
            yield name, F.col(quoted(name)), _longest(name)


def is_directory(name: str, text: str) -> bool:
    """Whether deltalake can name a directory by a string in a column, and read it back."""
    return text != NULL_DIRECTORY and len(quote(text, safe="")) <= _longest(name)


def _longest(name: str) -> int:
    return _NAME_BYTES - len(f"{quote(name, safe='')}=")


def _too_long(name: str) -> str:
    return f"the partition value of {name} is too long for a directory"


@dataclass(frozen=True, slots=True)
class EmptyTexts:
    """Test in a task for rows that :func:`not_empty` refuses; Spark then gives the reason."""

    names: Sequence[str]

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Return for each row whether the rule refuses it."""
        return _any_of(rows, (pc.equal(rows[name], text_scalar("")) for name in self.names))


@dataclass(frozen=True, slots=True)
class DoubtfulDirectories:
    """Test in a task for rows with strings that may not be names of directories; only Spark can decide about them.

    Attributes:
        names: The string columns by which a table is partitioned.
    """

    names: Sequence[str]

    @classmethod
    def of(cls, columns: StructType, partition_by: Sequence[str]) -> DoubtfulDirectories:
        """Make the test for rows of these columns in a table that is partitioned by ``partition_by``."""
        texts = {field.name for field in columns.fields if isinstance(field.dataType, StringType)}
        return cls([name for name in partition_by if name in texts])

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Return for each row whether it is doubtful."""
        return _any_of(rows, (self._doubtful(name, rows[name]) for name in self.names))

    def _doubtful(self, name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        # A byte takes at most three characters.
        longest = _longest(name) // 3
        long = pc.greater(pc.binary_length(texts), int_scalar(longest))
        special = pc.or_(pc.match_substring(texts, "\0"), pc.equal(texts, text_scalar(NULL_DIRECTORY)))
        special = pc.or_(special, pc.equal(texts, text_scalar("")))
        return pc.fill_null(pc.or_(long, special), bool_scalar(False))


def _any_of(rows: pa.Table, found: Iterator[pa.ChunkedArray]) -> pa.ChunkedArray:
    no_row = pa.chunked_array([pa.repeat(bool_scalar(False), rows.num_rows)])
    return reduce(pc.or_, (pc.fill_null(one, bool_scalar(False)) for one in found), no_row)
