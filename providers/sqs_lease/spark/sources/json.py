"""JSON messages: one object a body, checked for syntax and against the schema on Spark.

Columns that nobody named are inferred with types that every later body can be read by. Records are made by one
``from_json`` a text: what does not fit the schema gets a reason.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import reduce
from operator import and_, or_
from typing import Any, Final, Literal, TypeAlias, get_args

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from sqs_lease.batch_files.json_syntax import NotJsonError, decode_object
from sqs_lease.spark import batch_file
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT, STRANGE_TIME, is_taken
from sqs_lease.spark.errors import NothingToInferError, SchemaError
from sqs_lease.spark.schemas import (
    DEEPEST,
    can_be_column,
    json_schema,
    notation,
    quoted,
    relaxed,
    types_in,
    without_case,
)
from sqs_lease.spark.sources.arrow_json import ArrowJson
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.source import BodyChecker, KeysOf

logger = logging.getLogger(__name__)

_CORRUPT: Final = "_sqs_lease_corrupt"
_RECORD: Final = "_sqs_lease_record"
_TEXT: Final = "_sqs_lease_text"

JSON_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    # Otherwise "NaN" and "Infinity" in quotes are numbers.
    "allowNonNumericNumbers": "false",
    # Otherwise the date "2013-01-02 or so" is one.
    "dateFormat": "yyyy-MM-dd",
    # Otherwise the date "20130102" is the 20 130 102nd day since 1970.
    "enableDateTimeParsingFallback": "false",
    # A timestamp without a zone means the same whichever session parses it.
    "timeZone": "UTC",
}


NewFields = Literal["ignore", "reject", "add"]
"""What becomes of a field that is no column: it is ignored, its message is rejected, or it becomes a column."""

_CHOICES: Final = get_args(NewFields)

TimestampUnit = Literal["s", "ms", "us"]
"""What a number counts since 1970: seconds, milliseconds or microseconds."""

_UNITS: Final[Mapping[TimestampUnit, int]] = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds


@dataclass(frozen=True)
class JsonSource:
    """One JSON object a message.

    Rejected are bodies that are empty, not JSON by the letter of RFC 8259 (text after the object, a second object,
    single quotes, ``NaN``), that name a field twice in one object, hold a number that no double can, nest deeper than
    200 levels, or are no object; and objects in which a field that the schema declares ``NOT NULL`` is missing or null,
    or any field has the wrong type; and objects with a value for none of the columns, such as an envelope of SNS.

    A ``DATE`` is written ``2013-01-31``; a timestamp without a zone is in UTC. A number in a ``TIMESTAMP`` column is
    seconds since 1970; one beyond the years 1 to 9999, such as milliseconds, is rejected: name the unit in
    ``timestamp_units``. A ``STRING`` column takes any value, as its JSON text; a ``DECIMAL`` one rounds to its scale,
    and in a ``FLOAT`` one a number beyond its range is infinite.

    Attributes:
        schema: The fields of the object, as a Spark DDL string (``"id BIGINT NOT NULL, name STRING"``), a
            ``StructType``, or :class:`InferredSchema`. Names are matched in upper and lower case.
        new_fields: What becomes of a field of the object itself (not of what is nested in it) that is no column.
            ``"ignore"``, the default: nothing. ``"reject"``: its message is rejected; with an inferred schema this
            costs a second look at each body on Spark, where the pinned schema is known for certain. ``"add"``: it
            becomes a column, in the pinned schema and then in the table, with the type that Spark infers from this
            batch; for a field that is null or empty in all messages that waits until one has a value. A message whose
            new field can be no column (a name that not every table takes or that one keeps for itself, such as
            ``xmin``, or that differs from another one in case only, or the 1001st column) is rejected. It needs an
            :class:`InferredSchema`: what was added must be found again by the next batch and by other drivers, and
            the text of a schema cannot grow.
        dedupe_by: Fields of the object that together name what happened, for example ``["order_id", "version"]``: a
            message with the values of an earlier one is a repeat, whatever its message id is, such as after a redrive
            or a second send. It is done, and changes nothing. A message that lacks one of them, or has null there, is
            told by its id. Empty, the default: all messages are told by their ids.
        timestamp_units: ``TIMESTAMP`` column -> the unit of the whole numbers that it is to be read from, since 1970:
            ``"s"``, ``"ms"`` or ``"us"``. Such a column takes nothing but numbers. Empty, the default: texts, and
            numbers of seconds.
        rescued: The name of a further column, ``STRING``, that saves what the others cannot hold: of an object with a
            field that is no column, or not of its column's type, the text of the whole object, as it came; null for
            all others. Such a message is then stored, with null where a value does not fit, and not rejected; one that
            lacks a ``NOT NULL`` field still is. None, the default: no such column. With ``new_fields="ignore"`` only.
    """

    schema: str | StructType | InferredSchema
    new_fields: NewFields = "ignore"
    dedupe_by: Sequence[str] = ()
    timestamp_units: Mapping[str, TimestampUnit] = dataclasses.field(default_factory=dict)
    rescued: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.dedupe_by, str):
            raise TypeError("dedupe_by is a list of fields: put brackets around the one")
        for name, unit in self.timestamp_units.items():
            if unit not in _UNITS:
                raise ValueError(f"timestamp_units: {unit!r} for {name} is none of {', '.join(_UNITS)}")
        if self.new_fields not in _CHOICES:
            raise ValueError(f"new_fields must be one of {', '.join(_CHOICES)}, not {self.new_fields!r}")
        if self.rescued is not None and self.new_fields != "ignore":
            raise ValueError(f'rescued says what becomes of new fields: leave out new_fields="{self.new_fields}"')
        if self.new_fields == "add" and not isinstance(self.schema, InferredSchema):
            raise SchemaError(
                'new_fields="add" needs schema=InferredSchema(path), so that later batches find the columns that were '
                "added; to give some columns, write the schema's JSON (StructType.json()) to that path first"
            )

    @property
    def identity(self) -> str:
        """The schema, or where it is pinned, and what becomes of new fields."""
        what = self.schema.file if isinstance(self.schema, InferredSchema) else notation(self.schema)
        repeats = f"; by {json.dumps(list(self.dedupe_by))}" if self.dedupe_by else ""
        units = f"; {json.dumps(dict(self.timestamp_units), sort_keys=True)}" if self.timestamp_units else ""
        rescued = f"; rescued {self.rescued}" if self.rescued is not None else ""
        return f"json; {self.new_fields}; {what}{repeats}{units}{rescued}"

    @property
    def keys(self) -> KeysOf | None:
        """See :class:`.source.KeyedSource`: the values of :attr:`dedupe_by`."""
        return (lambda bodies: [_key(body, self.dedupe_by) for body in bodies]) if self.dedupe_by else None

    @property
    def widens(self) -> bool:
        """Whether new fields become columns."""
        return self.new_fields == "add"

    def checker(self) -> BodyChecker:
        """See :class:`.source.Source`. The schema is checked here, before anything is written."""
        if isinstance(self.schema, InferredSchema):
            pinned = self.schema.load()
            if pinned is not None:
                json_schema(pinned)
            if self.new_fields == "add":
                return OpenChecker(pinned.names if pinned else ())
            # Spark infers from whatever it can read, so it must not see any other body.
            return BodyChecker(decode_object) if pinned is None else PlainChecker()
        columns = json_schema(self.schema)
        return ClosedChecker(columns.names) if self.new_fields == "reject" else PlainChecker()

    def columns(self, messages: DataFrame, checker: BodyChecker) -> StructType:
        """The schema as it is given or pinned; inferred and pinned where it is not yet, and widened by new fields.

        Raises:
            SchemaError: See :class:`.source.Source`; or it has a column of the name of :attr:`rescued`, or none of the
                type ``TIMESTAMP`` that :attr:`timestamp_units` names.
        """
        found = self._fields(messages, checker)
        for name in self.timestamp_units:
            if name not in found.names or not isinstance(found[name].dataType, TimestampType):
                raise SchemaError(f"timestamp_units: the schema has no column {name} of the type TIMESTAMP")
        if self.rescued is None:
            return found
        if without_case(self.rescued) in map(without_case, found.names):
            raise SchemaError(f"rescued: the schema has a column {self.rescued} already: choose another name")
        return StructType([*found.fields, StructField(self.rescued, StringType())])

    def _fields(self, messages: DataFrame, checker: BodyChecker) -> StructType:
        if not isinstance(self.schema, InferredSchema):
            return json_schema(self.schema)
        pinned = self.schema.load()
        if pinned is None:
            # Not those of which the checker saw no value: Spark has a type for some of them, and another one may have
            # that name in other letters.
            fields = inferred_fields(messages, checker.new_fields if isinstance(checker, OpenChecker) else None)
            if not fields:
                raise NothingToInferError(
                    f"no schema is pinned in {self.schema.file} yet, and no message of this batch has a field from "
                    "which one could be inferred: ingest a batch with records, or write a schema there"
                )
            pinned = self.schema.pin(StructType(fields))
        if isinstance(checker, OpenChecker) and (new := checker.new_fields - set(pinned.names)):
            pinned = self.schema.widen(inferred_fields(messages, new, pinned))
        return json_schema(pinned)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        named = messages.withColumnsRenamed({batch_file.MESSAGE_ID: MESSAGE_ID, batch_file.SENT_AT: SENT_AT})
        return json_rows(
            named,
            batch_file.BODY,
            columns,
            [MESSAGE_ID, SENT_AT],
            closed=self._is_closed_on_spark,
            units=self.timestamp_units,
            rescued=self.rescued,
        )

    def arrow_parser(self, columns: StructType) -> ArrowJson | None:
        """See :class:`.source.ArrowSource`."""
        if self._is_closed_on_spark or self.timestamp_units or self.rescued or type(self).parse is not JsonSource.parse:
            # A subclass may parse otherwise.
            return None
        return ArrowJson.of(columns)

    @property
    def _is_closed_on_spark(self) -> bool:
        """Whether new fields are to be found there. Of a given schema, the driver knows the fields."""
        return self.new_fields == "reject" and isinstance(self.schema, InferredSchema)


MOST_COLUMNS: Final = 1000
"""Wider than this no table grows by itself: objects with names such as ids would add columns without end."""

MOST_FIELDS_INSIDE: Final = 1000
"""So many fields all columns together have inside of them by themselves, at every depth: each is a column of a file."""

# How many unknown fields a reason names, and how much of each name.
_SHOWN_FIELDS: Final = 3
_SHOWN_CHARACTERS: Final = 63
_UNKNOWN_FIELD: Final = "not in the schema: "

NO_VALUE: Final = "none of the schema's fields has a value"
"""The reason for an object that is another kind of message, such as an envelope, where no column is required."""


_MISSING: Final = "required, but missing or null: "
_UNFIT: Final = "not of the type in the schema"

# Mostly these are milliseconds in a TIMESTAMP column, which Spark takes for a year such as 55840.
_OF_JSON: Final = "; numbers are seconds since 1970, or timestamp_units"

_YEAR_1: Final = -62_135_596_800_000_000
_YEAR_9999: Final = 253_402_300_799_999_999  # microseconds since 1970
_LIMITS: Final[Mapping[type[DataType], tuple[str, str]]] = {
    DateType: ("0001-01-01", "9999-12-31"),
    TimestampNTZType: ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"),
    TimestampType: ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"),
}

_HOURS: Final = r"[^\w\"]*+(T\d|\d{1,2}:)"

TIME_OF_DAY: Final = r"^[\x00-\x20\x7F]*[+-]?(T\d|\d{1,2}:)"
"""A text that names a time and no day; Spark leaves out spaces and control characters before it."""

# Within JSON, where characters may be escaped: few texts have it by chance. No group may repeat: Java's stack grows
# with each time that one does, and one long text would end the executor.
_MAY_HAVE_TIME_OF_DAY: Final = rf'"{_HOURS}|\\\w{_HOURS}|\\u00'

Flaw: TypeAlias = Callable[[Column, StructField], Column | None]
"""Tests a value of a field; None where values of its type cannot have the flaw."""


class PlainChecker(BodyChecker):
    """Takes JSON objects, and asks nothing else of them."""

    def __init__(self) -> None:
        super().__init__(decode_object)

    @property
    def wants_json(self) -> bool:
        """See :class:`.source.SyntaxChecker`."""
        return True


class ClosedChecker(BodyChecker):
    """Refuses fields that are no columns."""

    def __init__(self, columns: Collection[str]) -> None:
        super().__init__(decode_object, self._reason_of)
        self._columns = frozenset(columns)

    def _reason_of(self, record: Mapping[str, Any]) -> str | None:
        if record.keys() <= self._columns:
            return None
        unknown = [name[:_SHOWN_CHARACTERS] for name in record if name not in self._columns]
        return f"{_UNKNOWN_FIELD}{', '.join(unknown[:_SHOWN_FIELDS])}"


class OpenChecker(BodyChecker):
    """Collects fields that are no columns yet, and refuses those that cannot become one."""

    def __init__(self, columns: Collection[str]) -> None:
        super().__init__(decode_object, self._reason_of)
        self._known = {without_case(name): name for name in columns}
        self._names = set(columns)
        self.new_fields: set[str] = set()

    def _reason_of(self, record: Mapping[str, Any]) -> str | None:
        if record.keys() <= self._names:
            return None
        new = [name for name, value in record.items() if name not in self._names and _has_value(value)]
        taken = dict(self._known)
        for name in new:
            if not can_be_inferred(name):
                return "a field that is not in the schema has a name that no column can have"
            if (other := taken.setdefault(without_case(name), name)) != name:
                return f"the field {name} differs from the column {other} in upper and lower case only"
        if len(taken) > MOST_COLUMNS:
            return f"its new fields would make the table wider than {MOST_COLUMNS} columns"
        self._known = taken
        self._names.update(new)
        self.new_fields.update(new)
        return None


_ALL_DIGITS: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _key(body: str, fields: Sequence[str]) -> str | None:
    try:
        record = decode_object(body, exactly=True)
    except NotJsonError:
        return None
    values = [record.get(name) for name in fields]
    if any(value is None for value in values):
        return None
    text = json.dumps([*fields, values], sort_keys=True, default=_number)
    return f"json:{hashlib.sha256(text.encode()).hexdigest()}"


def _number(value: Decimal) -> str:
    """A number with a fraction or an exponent, as a text that no JSON has; the same however many zeros it ends with."""
    return f"\ud800{_ALL_DIGITS.normalize(value)}"


def _has_value(value: Any) -> bool:
    """Whether there is anything that Spark could infer a type from."""
    if isinstance(value, dict):
        return any(map(_has_value, value.values()))
    if isinstance(value, list):
        return any(map(_has_value, value))
    return value is not None


def inferred_fields(
    messages: DataFrame, only: Collection[str] | None = None, beside: StructType | None = None
) -> list[StructField]:
    """Let Spark infer the fields of the messages' bodies, or only some of them; all may be null.

    What has no type yet is left out: fields that are null, empty arrays or empty objects in all bodies. So are names
    that no column should have, of names that differ in case only all but one, and of more than :data:`MOST_COLUMNS`
    fields those that fewest bodies have. A value that is an object with such names inside stays whole, as JSON text,
    and so does what is nested deeper than a table takes; and of values with more than :data:`MOST_FIELDS_INSIDE` fields
    inside of them, all together and with those of the columns ``beside``, the ones that have most.
    """
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
        raise SchemaError(
            f"a schema is inferred by PySpark 4.2 or newer, and this is {pyspark.__version__}: name the fields in the "
            "schema, or write them to the pinned schema's file before the first batch"
        )
    if only is not None:
        if not only:
            return []
        wanted = F.array(*map(F.lit, sorted(only)))
        messages = messages.where(F.arrays_overlap(F.json_object_keys(batch_file.BODY), wanted))
    reader = messages.sparkSession.read.options(
        dropFieldIfAllNull="true", columnNameOfCorruptRecord=_CORRUPT, mode="PERMISSIVE", samplingRatio="1.0"
    )
    found: dict[str, StructField] = {}
    for field in reader.json(messages.select(batch_file.BODY)).schema.fields:
        if field.name == _CORRUPT or not can_be_inferred(field.name) or (only is not None and field.name not in only):
            continue
        found.setdefault(without_case(field.name), StructField(field.name, _storable(field.dataType)))
    taken = _fields_inside(*(field.dataType for field in beside.fields)) if beside is not None else 0
    fields = _of_few_inside(list(found.values()), MOST_FIELDS_INSIDE - taken)
    return fields if len(fields) <= MOST_COLUMNS else _most_common(messages, fields)


def _of_few_inside(fields: Sequence[StructField], room: int) -> list[StructField]:
    """The same fields, of which those with most fields inside are JSON text where there is no room for all."""
    whole = set()
    for field in sorted(fields, key=lambda field: _fields_inside(field.dataType)):
        room -= _fields_inside(field.dataType)
        if room < 0:
            whole.add(field.name)
    return [StructField(field.name, StringType()) if field.name in whole else field for field in fields]


def _fields_inside(*kinds: DataType) -> int:
    """How many fields the objects have that are in values of these types, at every depth."""
    return sum(len(one.names) for kind in kinds for _, one in types_in(kind) if isinstance(one, StructType))


def _most_common(messages: DataFrame, fields: Sequence[StructField]) -> list[StructField]:
    """As many fields as a table gets by itself, those that most bodies have, in their order."""
    names = messages.select(F.explode(F.json_object_keys(batch_file.BODY)).alias("name"))
    counts = names.where(F.col("name").isin([field.name for field in fields])).groupBy("name").count()
    chosen = {row.name for row in counts.orderBy(F.desc("count"), "name").limit(MOST_COLUMNS).collect()}
    logger.warning(
        "the messages have %d different fields, of which the %d that most of them have become columns: where names of "
        "fields are values such as ids, give a schema in which the object around them is a MAP",
        len(fields),
        MOST_COLUMNS,
    )
    return [field for field in fields if field.name in chosen]


def can_be_inferred(name: str) -> bool:
    """Whether a field of this name may become a column by itself."""
    return can_be_column(name) and not is_taken(name)


def _storable(kind: DataType, room: int = DEEPEST - 1) -> DataType:
    """A type that tables take, in which no more types than there is room for are inside of each other."""
    if not room and isinstance(kind, StructType | ArrayType):
        return StringType()
    if isinstance(kind, StructType):
        names = {without_case(name) for name in kind.names if can_be_column(name)}
        if len(names) < len(kind.names):
            return StringType()
        return StructType([StructField(field.name, _storable(field.dataType, room - 1)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_storable(kind.elementType, room - 1))
    return kind


def json_rows(
    frame: DataFrame,
    text: str,
    columns: StructType,
    carried: Sequence[str],
    *,
    closed: bool = False,
    units: Mapping[str, TimestampUnit] | None = None,
    rescued: str | None = None,
) -> DataFrame:
    """Parse a column of JSON objects that were checked for syntax before.

    Args:
        frame: Rows with the text and all that is carried. A row whose ``REASON``, if it is carried, is not null keeps
            it, and its text may be null.
        text: The name of the column of texts.
        columns: The columns of a record.
        carried: Columns that are taken over as they are.
        closed: Whether an object with a field that is no column is rejected. It costs a second look at the text.
        units: ``TIMESTAMP`` columns that are read from numbers, with their units.
        rescued: The last of the columns, where it is to save the texts of objects that do not fit the others.

    Returns:
        ``columns``, ``carried``, and ``REASON``.
    """
    units = units or {}
    fields = columns.fields if rescued is None else columns.fields[:-1]
    read = [StructField(one.name, LongType(), one.nullable) if one.name in units else one for one in fields]
    schema = StructType([*read, StructField(_CORRUPT, StringType())])
    saved = [] if rescued is None else [_saved(StructType(fields), units).alias(rescued)]
    reason = _reason(StructType(fields), units, closed=closed, saves=rescued is not None)
    if REASON in carried:
        reason = F.coalesce(F.col(REASON), reason)
    return frame.select(
        *carried,
        F.col(text).alias(_TEXT),
        F.from_json(text, schema, JSON_OPTIONS).alias(_RECORD),
    ).select(
        *(_readable(field, units).alias(field.name) for field in fields),
        *saved,
        *(name for name in carried if name != REASON),
        reason.alias(REASON),
    )


def _of_record(name: str) -> Column:
    return F.col(_RECORD).getField(name)


def _saved(columns: StructType, units: Mapping[str, TimestampUnit]) -> Column:
    """The text of an object that does not fit its columns; null for one that does."""
    misread = [test for field in columns.fields for test in _misread_times(field, units)]
    unfit = [_of_record(_CORRUPT).isNotNull(), F.size(_unknown_fields(columns)) > 0, *misread]
    return F.when(joined(or_, unfit), F.col(_TEXT))


def _unknown_fields(columns: StructType) -> Column:
    return F.array_except(F.json_object_keys(_TEXT), F.array(*map(F.lit, columns.names)))


def _readable(field: StructField, units: Mapping[str, TimestampUnit]) -> Column:
    """A column's value; null where Python could not read it, which rejects its row."""
    value = _of_record(field.name)
    if field.name in units:
        value = F.timestamp_micros(value * _UNITS[units[field.name]])
    misread = _misread_times(field, units)
    return F.when(~F.coalesce(joined(or_, misread), F.lit(False)), value) if misread else value


def joined(operator: Callable[[Column, Column], Column], tests: Sequence[Column]) -> Column:
    """Join conditions, at least one, by ``and_`` or ``or_``.

    Spark goes down an expression by calls of functions, and a chain of a thousand is too deep for its stack. So they
    are joined in pairs, these in pairs again, and so on.
    """
    while len(tests) > 1:
        tests = [reduce(operator, tests[start : start + 2]) for start in range(0, len(tests), 2)]
    return tests[0]


def flaw(columns: StructType) -> Column:
    """Say which required places of a row's columns are null, or which times are :data:`STRANGE_TIME`; null for none.

    Spark itself treats every field as nullable when it parses.
    """
    fields = [(F.col(quoted(field.name)), field) for field in columns.fields]
    gaps = [gap for value, field in fields for gap in places(value, field, _is_gap)]
    times = [time for value, field in fields for time in places(value, field, beyond)]
    return F.coalesce(_named(_MISSING, gaps), _named(f"{STRANGE_TIME}: ", times))


def beyond(value: Column, of: StructField) -> Column | None:
    """Whether a time or a date lies beyond the years that others read; None for values of other types."""
    limits = _LIMITS.get(type(of.dataType))
    return None if limits is None else ~value.between(*(F.lit(limit).cast(of.dataType) for limit in limits))


def _is_gap(value: Column, of: StructField) -> Column | None:
    return None if of.nullable else value.isNull()


def _reason(columns: StructType, units: Mapping[str, TimestampUnit], *, closed: bool, saves: bool) -> Column:
    # Spark gives no record for a null text, and then no corrupt one either.
    reason = F.when(F.col(_RECORD).isNull(), F.lit("no record could be parsed"))
    gaps = [gap for field in columns.fields for gap in places(_of_record(field.name), field, _is_gap)]
    missing = _named(_MISSING, gaps)
    if saves:
        # What is missing where the rest is saved: an object with nothing in it that is a record, too.
        return reason.otherwise(missing)
    reason = reason.when(_of_record(_CORRUPT).isNotNull(), _type_reason(columns))
    if all(field.nullable for field in columns.fields):
        # Where a column is required, that is said of an object without values.
        has_none = joined(and_, [_of_record(name).isNull() for name in columns.names])
        reason = reason.when(has_none, F.lit(NO_VALUE))
    times = [time for field in columns.fields for time in _strange_times(field, units)]
    of_day = [time for field in columns.fields for time in _times_of_day(field, units)]
    reason = reason.otherwise(
        F.coalesce(missing, _named(f"{STRANGE_TIME}{_OF_JSON}: ", times), _named(f"{_UNFIT}: ", of_day))
    )
    if not closed:
        return reason
    unknown = _unknown_fields(columns)
    named = F.transform(F.slice(unknown, 1, _SHOWN_FIELDS), lambda name: F.substring(name, 1, _SHOWN_CHARACTERS))
    return F.coalesce(reason, F.when(F.size(unknown) > 0, F.concat(F.lit(_UNKNOWN_FIELD), F.array_join(named, ", "))))


def _named(reason: str, found: Sequence[tuple[str, Column]]) -> Column:
    if not found:
        return F.lit(None).cast("string")
    named = F.concat_ws(", ", *(F.when(test, F.lit(path)) for path, test in found))
    # Nearly every row has none: seeing that must cost next to nothing.
    return F.when(joined(or_, [test for _, test in found]), F.concat(F.lit(reason), named))


def _type_reason(columns: StructType) -> Column:
    """Name the fields that the text has and the record has not: their values did not fit the type."""
    absent = F.array_compact(F.array(*(F.when(_of_record(name).isNull(), F.lit(name)) for name in columns.names)))
    given = F.map_filter(F.from_json(_TEXT, "MAP<STRING, STRING>"), lambda _, value: value.isNotNull())
    unfit = F.array_intersect(absent, F.map_keys(given))
    return (
        # The limits of Spark's JSON parser, jackson-core's StreamReadConstraints.
        F.when(unfit.isNull(), F.lit("has a name of more than 50 000 characters, or a number of more than 1000"))
        .when(F.size(unfit) > 0, F.concat(F.lit(f"{_UNFIT}: "), F.array_join(unfit, ", ")))
        .otherwise(F.lit("a nested value is not of the type in the schema"))
    )


def _misread_times(field: StructField, units: Mapping[str, TimestampUnit]) -> list[Column]:
    return [test for _, test in (*_strange_times(field, units), *_times_of_day(field, units))]


def _strange_times(field: StructField, units: Mapping[str, TimestampUnit]) -> Iterator[tuple[str, Column]]:
    """Where in a column a time may lie beyond the years that others read: see :func:`places`."""
    value = _of_record(field.name)
    if field.name in units:
        microseconds = _UNITS[units[field.name]]
        yield field.name, ~value.between(-(-_YEAR_1 // microseconds), _YEAR_9999 // microseconds)
    else:
        yield from places(value, field, beyond)


def _times_of_day(field: StructField, units: Mapping[str, TimestampUnit]) -> Iterator[tuple[str, Column]]:
    """The places where a text for a ``TIMESTAMP`` names a time and no day, for which Spark takes the day it looks on.

    What was written there is looked at only where the text of the object may have such a place.
    """
    if field.name in units:
        return
    texts = StructType([StructField(field.name, _times_as_texts(field.dataType))])
    written = F.from_json(_TEXT, texts, JSON_OPTIONS).getField(field.name)
    for path, test in places(written, field, _is_time_of_day):
        yield path, F.when(F.col(_TEXT).rlike(_MAY_HAVE_TIME_OF_DAY), test).otherwise(F.lit(False))


def _times_as_texts(kind: DataType) -> DataType:
    """A type in which times are texts."""
    return relaxed(kind, lambda one: StringType() if isinstance(one, TimestampType) else one)


def _is_time_of_day(written: Column, of: StructField) -> Column | None:
    return written.rlike(TIME_OF_DAY) if isinstance(of.dataType, TimestampType) else None


def places(value: Column, field: StructField, flaw: Flaw, path: str | None = None) -> Iterator[tuple[str, Column]]:
    """Where in a column, or inside of its value, there may be a flaw: each place by its path, and the test."""
    path, kind = path or field.name, field.dataType
    if (test := flaw(value, field)) is not None:
        yield path, test
    if isinstance(kind, StructType):
        for inner in kind.fields:
            for below, test in places(value.getField(inner.name), inner, flaw, f"{path}.{inner.name}"):
                yield below, value.isNotNull() & test
        return
    if isinstance(kind, ArrayType):
        element = StructField("element", kind.elementType, kind.containsNull)
    elif isinstance(kind, MapType):
        value, element = F.map_values(value), StructField("element", kind.valueType, kind.valueContainsNull)
    else:
        return
    if any(places(value, element, flaw)):
        yield f"{path}[]", F.exists(value, lambda one: joined(or_, [test for _, test in places(one, element, flaw)]))
