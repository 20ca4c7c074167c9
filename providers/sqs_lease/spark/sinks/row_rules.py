"""What a table that Spark writes asks of its rows, looked at before they are staged: constraints, names of directories.

Once a batch is admitted, all its rows have to go in. So each row is looked at beforehand, in the pass that parses it,
and one that the table would refuse rejects its message.
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
"""What the reason calls it, and the test: a row for which it is false or null is refused."""

# Of a file's name, on nearly every file system.
_NAME_BYTES: Final = 255
# Of one character in there, at most: four bytes, each as % and two digits.
_CHARACTER_BYTES: Final = 12
# What Spark writes as % and two digits in the name of a partition's directory.
_ESCAPED: Final = r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]"""


@dataclass(frozen=True, slots=True)
class RowRequirements:
    """Requirements of a table for its rows, as they are at one moment.

    Attributes:
        columns: Its columns.
        tests: The name of each rule, as a reason has it, and its test in SQL.
        directories: The columns whose values name directories.
        file_schema: How a file of rows is to be written so that the table can have it as it is; None, the default, as
            the columns say.
    """

    columns: StructType = field(default_factory=StructType)
    tests: Mapping[str, str] = field(default_factory=dict)
    directories: Sequence[str] = ()
    file_schema: pa.Schema | None = None


def judged(rows: DataFrame, reason: str, stored: StructType, rules: Sequence[Rule]) -> DataFrame:
    """Name the rule that a row breaks in its reason, where it has none yet; what it lacks of the table's is null."""
    if not rules:
        return rows
    given = rows.columns
    lacking = {field.name: F.lit(None).cast(field.dataType) for field in stored.fields if field.name not in given}
    broken = [F.when(~F.coalesce(test, F.lit(False)), F.lit(f"refused by the table: {name}")) for name, test in rules]
    judged_rows = rows.withColumns(lacking) if lacking else rows
    return judged_rows.withColumn(reason, F.coalesce(F.col(reason), *broken)).select(*map(quoted, given))


def is_object_store(location: str) -> bool:
    """Whether directories are only parts of a key there."""
    return location.startswith(("s3:", "s3a:", "s3n:", "gs:", "abfs:", "abfss:", "wasbs:"))


def delta_directories(columns: StructType, partition_by: Sequence[str]) -> Iterator[Rule]:
    """That the texts by which a Delta table is partitioned can be names of directories, and come back."""
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
    """That columns of texts by which a Delta table is partitioned, and which must not be null, have no empty text."""
    for name in names:
        yield f"the partition value of {name} is empty, which is a null there", F.col(quoted(name)) != ""


def merge_directories(names: Sequence[str]) -> Iterator[Rule]:
    """That the texts by which a Delta table is partitioned can be names of directories: a merge makes some."""
    for name in names:
        text = F.col(quoted(name))
        # It writes all but letters, digits and -._~ as % and two digits.
        escaped = F.regexp_replace(F.url_encode(text), "[+*]", "%00")
        yield _too_long(name), text.isNull() | (F.octet_length(escaped) <= _longest(name))


def iceberg_directories(columns: StructType, partition_by: Sequence[str]) -> Iterator[Rule]:
    """That the texts by which an Iceberg table is partitioned can be names of directories."""
    for name, text, longest in _texts(columns, partition_by):
        yield _too_long(name), text.isNull() | (F.octet_length(F.url_encode(text)) <= longest)


def too_long_for_iceberg(name: str, text: str, width: int | None) -> Mapping[str, str]:
    """The same for a partition that is no column under its own name, as :attr:`RowRequirements.tests` has it.

    Args:
        name: What directories are named by.
        text: The text, as SQL has it.
        width: How many of its characters count; all of them where it is None.

    Returns:
        The rule; nothing where no text is too long.
    """
    if width is not None and _CHARACTER_BYTES * width <= _longest(name):
        return {}
    value = text if width is None else f"substring({text}, 1, {width})"
    return {_too_long(name): f"{text} IS NULL OR octet_length(url_encode({value})) <= {_longest(name)}"}


def _texts(columns: StructType, partition_by: Sequence[str]) -> Iterator[tuple[str, Column, int]]:
    """The columns of texts among those: name, value, and how many bytes of it the name of a directory takes."""
    for name in partition_by:
        if name in columns.names and isinstance(columns[name].dataType, StringType):
            yield name, F.col(quoted(name)), _longest(name)


def is_directory(name: str, text: str) -> bool:
    """Whether deltalake can name a directory by the text in a column, and read it back."""
    return text != NULL_DIRECTORY and len(quote(text, safe="")) <= _longest(name)


def _longest(name: str) -> int:
    return _NAME_BYTES - len(f"{quote(name, safe='')}=")


def _too_long(name: str) -> str:
    return f"the partition value of {name} is too long for a directory"


@dataclass(frozen=True, slots=True)
class EmptyTexts:
    """Finds in a task the rows of which Spark has to say that :func:`not_empty` refuses them."""

    names: Sequence[str]

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Say of each row whether it is one."""
        return _any_of(rows, (pc.equal(rows[name], text_scalar("")) for name in self.names))


@dataclass(frozen=True, slots=True)
class DoubtfulDirectories:
    """Finds in a task the rows of which only Spark can say whether their texts can be names of directories.

    Attributes:
        names: The columns of texts by which a table is partitioned.
    """

    names: Sequence[str]

    @classmethod
    def of(cls, columns: StructType, partition_by: Sequence[str]) -> DoubtfulDirectories:
        """For rows of these columns in a table that is partitioned by those."""
        texts = {field.name for field in columns.fields if isinstance(field.dataType, StringType)}
        return cls([name for name in partition_by if name in texts])

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Say of each row whether it is one."""
        return _any_of(rows, (self._doubtful(name, rows[name]) for name in self.names))

    def _doubtful(self, name: str, texts: pa.ChunkedArray) -> pa.ChunkedArray:
        # No byte is written as more than three characters.
        longest = _longest(name) // 3
        long = pc.greater(pc.binary_length(texts), int_scalar(longest))
        special = pc.or_(pc.match_substring(texts, "\0"), pc.equal(texts, text_scalar(NULL_DIRECTORY)))
        special = pc.or_(special, pc.equal(texts, text_scalar("")))
        return pc.fill_null(pc.or_(long, special), bool_scalar(False))


def _any_of(rows: pa.Table, found: Iterator[pa.ChunkedArray]) -> pa.ChunkedArray:
    nobody = pa.chunked_array([pa.repeat(bool_scalar(False), rows.num_rows)])
    return reduce(pc.or_, (pc.fill_null(one, bool_scalar(False)) for one in found), nobody)
