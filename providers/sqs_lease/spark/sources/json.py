"""JSON messages: one object a body, checked for syntax and against the schema in Spark's tasks: see :mod:`.arrow_json`.

Columns that the user did not name are inferred by Spark, with types that every later body can be read by.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from operator import or_
from typing import Any, Final, Literal, get_args

import pyspark
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark import batch_file
from sqs_lease.spark.arguments import require_names
from sqs_lease.spark.columns import MESSAGE_ID, REASON, SENT_AT, is_taken
from sqs_lease.spark.errors import NothingToInferError, SchemaError
from sqs_lease.spark.json_syntax import NotJsonError, decode_object
from sqs_lease.spark.schemas import (
    DEEPEST,
    arrow_schema,
    can_be_column,
    json_schema,
    notation,
    quoted,
    types_in,
    without_case,
)
from sqs_lease.spark.sources.arrow_json import ArrowJson, JsonRows, as_texts
from sqs_lease.spark.sources.pinned_schema import InferredSchema
from sqs_lease.spark.sources.row_flaws import joined, places
from sqs_lease.spark.sources.source import BodyChecker, KeysOf
from sqs_lease.spark.sources.whole_bodies import TOO_LARGE_VARIANT

logger = logging.getLogger(__name__)

_CORRUPT: Final = "_sqs_lease_corrupt"

NewFields = Literal["ignore", "reject", "add"]
"""Says how to treat a field that is not a column: ignore it, reject its message, or make it a column."""

_CHOICES: Final = get_args(NewFields)

TimestampUnit = Literal["s", "ms", "us"]
"""The unit of numbers that count from 1970 on: seconds, milliseconds or microseconds."""

_UNITS: Final[Mapping[TimestampUnit, int]] = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds


@dataclass(frozen=True)
class JsonSource:
    """One JSON object a message.

    Rejected are bodies that are empty, not JSON by the letter of RFC 8259 (text after the object, a second object,
    single quotes, ``NaN``), that name a field twice in one object, hold a number that no double can, nest deeper than
    200 levels, or are not an object; and objects in which a field that the schema declares ``NOT NULL`` is missing or
    null, or any field has the wrong type; and objects with a value for none of the columns, such as an envelope of SNS.
    Reasons name the places: ``trip.miles``, or ``stops[]`` for whatever is inside of an array or a ``MAP``.

    Beside null, a column takes by its type:

    - numbers of whole types: numbers without a fraction and an exponent;
    - ``DOUBLE`` and ``FLOAT``: numbers; in a ``FLOAT`` one that is beyond its range is infinite;
    - ``DECIMAL``: numbers, and texts of one (``"12.50"``), rounded to the scale, halves away from zero;
    - ``STRING``: any value, one that is not a string as its JSON text without the white space between tokens;
    - ``BINARY``: texts in base64;
    - ``DATE``: ``"2013-01-31"``;
    - ``TIMESTAMP``: a day, or a day and a time, such as ``"2013-01-31T05:30"`` or ``"2013-1-31 05:30:00.25+02:00"``,
      in UTC where no zone is given: ``Z``, ``UTC``, ``GMT``, ``+02``, ``+0200`` and ``+02:00`` are zones, up to 18
      hours. Less than a microsecond is cut off. Or a whole number of seconds since 1970; one beyond the years 1
      to 9999, such as milliseconds, is rejected: name the unit in ``timestamp_units``;
    - ``TIMESTAMP_NTZ``: the same texts without a zone;
    - ``ARRAY``: arrays; ``STRUCT``: objects, of which other fields than its own are ignored; ``MAP<STRING, ...>``:
      objects; ``VARIANT``: any value, the null of JSON included.

    Attributes:
        schema: The fields of the object, as a Spark DDL string (``"id BIGINT NOT NULL, name STRING"``), a
            ``StructType``, or :class:`InferredSchema`. Names are matched in upper and lower case.
        new_fields: Says how to treat a field of the object itself (not of what is nested in it) that is not a column.
            ``"ignore"``, the default: as if it was not there. ``"reject"``: its message is rejected. ``"add"``: it is
            added to the pinned schema and then to the table, with the type that Spark infers from this batch; for a
            field that is null or empty in all messages that waits until one has a value. A message whose new field can
            be no column (a name that not every table takes or that one keeps for itself, such as ``xmin``, or that
            differs from another one in case only, or the 1001st column) is rejected. It needs an
            :class:`InferredSchema`: what was added must be found again by the next batch and by other drivers, and the
            text of a schema cannot grow.
        dedupe_by: Fields of the object that together name what happened, for example ``["order_id", "version"]``: a
            message with the values of an earlier one is a repeat, whatever its message id is, such as after a redrive
            or a second send. It is done, and changes nothing. A message that lacks one of them, or has null there, is
            told by its id. Empty, the default: all messages are told by their ids.
        timestamp_units: ``TIMESTAMP`` column -> the unit of the whole numbers that it is to be read from, since 1970:
            ``"s"``, ``"ms"`` or ``"us"``. Such a column takes nothing but numbers. Empty, the default: texts, and
            numbers of seconds.
        rescued: The name of a further column, ``STRING``, that saves what the others cannot hold: of an object with a
            field that is not a column, or not of its column's type, the text of the whole object, as it came; null for
            all others. Such a message is then stored, with null where a value does not fit, and not rejected; one whose
            ``NOT NULL`` field is missing, null or does not fit still is. None, the default: no such column. With
            ``new_fields="ignore"`` only.
    """

    schema: str | StructType | InferredSchema
    new_fields: NewFields = "ignore"
    dedupe_by: Sequence[str] = ()
    timestamp_units: Mapping[str, TimestampUnit] = dataclasses.field(default_factory=dict)
    rescued: str | None = None

    def __post_init__(self) -> None:
        require_names(self.dedupe_by, "dedupe_by is a list of fields")
        if not isinstance(self.timestamp_units, Mapping):
            raise TypeError("timestamp_units is a mapping, such as {'created_at': 'ms'}")
        for name, unit in self.timestamp_units.items():
            if unit not in _UNITS:
                raise ValueError(f"timestamp_units: {unit!r} for {name} is none of {', '.join(_UNITS)}")
        if self.new_fields not in _CHOICES:
            raise ValueError(f"new_fields must be one of {', '.join(_CHOICES)}, not {self.new_fields!r}")
        if not isinstance(self.rescued, str | None):
            raise TypeError(f"rescued is the name of a column, not {type(self.rescued).__name__}")
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
        json_schema(self.schema)
        return PlainChecker()

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
        return json_rows(named, batch_file.BODY, self._parser(columns), columns, [MESSAGE_ID, SENT_AT])

    def arrow_parser(self, columns: StructType) -> ArrowJson | None:
        """See :class:`.source.ArrowSource`."""
        # A subclass may parse otherwise; and some types only Spark makes of what the tasks read.
        if type(self).parse is not JsonSource.parse or any(_is_only_sparks(kind) for _, kind in types_in(columns)):
            return None
        return self._parser(columns)

    def _parser(self, columns: StructType) -> ArrowJson:
        read = columns if self.rescued is None else StructType(columns.fields[:-1])
        units = {name: _UNITS[unit] for name, unit in self.timestamp_units.items()}
        return ArrowJson.of(read, units=units, closed=self.new_fields == "reject", rescued=self.rescued)


MOST_COLUMNS: Final = 1000
"""Wider than this no table grows by itself: objects with names such as ids would add columns without end."""

MOST_FIELDS_INSIDE: Final = 1000
"""So many fields all columns together have inside of them by themselves, at every depth: each is a column of a file."""


class PlainChecker(BodyChecker):
    """Takes JSON objects, and asks nothing else of them."""

    def __init__(self) -> None:
        super().__init__(decode_object)

    @property
    def is_repeated(self) -> bool:
        """See :class:`.source.RepeatedChecker`."""
        return True


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

    Fields without a type yet are left out: those that are null, empty arrays or empty objects in all bodies. So are
    names that no column should have, of names that differ in case only all but one, and of more than
    :data:`MOST_COLUMNS` fields those that fewest bodies have. A value that is an object with such names inside stays
    whole, as JSON text, and so does what is nested deeper than a table takes; and of values with more than
    :data:`MOST_FIELDS_INSIDE` fields inside of them, all together and with those of the columns ``beside``, the ones
    that have most.
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


def json_rows(frame: DataFrame, text: str, parser: ArrowJson, columns: StructType, carried: Sequence[str]) -> DataFrame:
    """Parse a column of JSON objects, in the tasks.

    Args:
        frame: Rows with the text and all that is carried. A row whose ``REASON``, if it is carried, is not null keeps
            it, and its text may be null.
        text: The name of the column of texts.
        parser: Reads them.
        columns: All columns that the parser makes, by their types.
        carried: Columns that are taken over as they are.

    Returns:
        ``columns``, ``carried``, and ``REASON``.
    """
    given = frame.select(*(quoted(name) for name in dict.fromkeys([text, *carried])))
    taken_over = [StructField(one.name, one.dataType) for one in given.schema.fields if one.name in carried]
    ends = [one for one in taken_over if one.name != REASON]
    made = StructType([*as_texts(columns).fields, *ends, StructField(REASON, StringType())])
    rows = given.mapInArrow(JsonRows(parser, text, arrow_schema(made)), made)
    too_large = [test for one in columns.fields for _, test in places(F.col(quoted(one.name)), one, _is_no_variant)]
    if too_large:
        reason = F.when(joined(or_, too_large), F.lit(TOO_LARGE_VARIANT))
        rows = rows.withColumn(REASON, F.coalesce(F.col(REASON), reason))
    return rows.select(
        *(_typed(F.col(quoted(one.name)), one.dataType).alias(one.name) for one in columns.fields),
        *(quoted(one.name) for one in ends),
        REASON,
    )


def _typed(value: Column, kind: DataType) -> Column:
    """A value that a task made, with the types that only Spark has: VARIANT, and collations."""
    inside = [inner for _, inner in types_in(kind)]
    if not any(isinstance(inner, VariantType) for inner in inside):
        return value.cast(kind) if any(map(_is_only_sparks, inside)) else value
    if isinstance(kind, StructType):
        fields = (_typed(value.getField(one.name), one.dataType).alias(one.name) for one in kind.fields)
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: _typed(one, kind.elementType))
    if isinstance(kind, MapType):
        return F.transform_values(value, lambda _, one: _typed(one, kind.valueType))
    # Not `parse_json`, which fails the batch for one value that is beyond the limits of the type.
    return F.try_parse_json(value)


def _is_only_sparks(kind: DataType) -> bool:
    """Whether a task has no such values: a VARIANT, or a text with a collation."""
    return isinstance(kind, VariantType) or (isinstance(kind, StringType) and kind != StringType())


def _is_no_variant(value: Column, of: StructField) -> Column | None:
    if not isinstance(of.dataType, VariantType):
        return None
    return value.isNotNull() & F.try_parse_json(value).isNull()
