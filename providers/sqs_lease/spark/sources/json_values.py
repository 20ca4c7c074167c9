"""Reads JSON objects one at a time, by the type of each column, and says what does not fit.

Arrow's reader takes many texts at once, and only values in its own notations. All that it refuses comes here: values
that a column takes in another notation, and objects that are rejected, with the places of all flaws. The result is a
JSON text again, in the one notation that Arrow's reader takes for each type, so both ways end in the same reader:

====================  =========================================================
type                  in the text
====================  =========================================================
DATE                  days since 1970
TIMESTAMP(_NTZ)       microseconds since 1970
DECIMAL               a number, rounded to the scale
STRING                a string; any other value as its JSON text
BINARY                a string in base64
MAP                   an array of objects with a ``key`` and a ``value``
VARIANT               a string: the JSON text, which Spark makes a VARIANT of
all others            as it came
====================  =========================================================

A text was checked for its syntax before. It is read into slices of itself, not into values, so numbers keep all of
their digits.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import MAX_EMAX, MIN_EMIN, ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sqs_lease.spark.columns import STRANGE_TIME

MAP_KEY: Final = "key"
MAP_VALUE: Final = "value"

NO_VALUE: Final = "none of the schema's fields has a value"
"""The reason for an object that is another kind of message, such as an envelope, where no column is required."""

MISSING: Final = "required, but missing or null: "
UNFIT: Final = "not of the type in the schema: "
# Mostly these are milliseconds in a TIMESTAMP column, which would be a year such as 55840.
STRANGE: Final = f"{STRANGE_TIME}; numbers are seconds since 1970, or timestamp_units: "

FIRST_MICROSECOND: Final = -62_135_596_800_000_000
"""Of the year 1, since 1970."""

LAST_MICROSECOND: Final = 253_402_300_799_999_999
"""Of the year 9999, since 1970."""

SECOND: Final = 1_000_000
"""In microseconds."""

_DAYS_TO_1970: Final = date(1970, 1, 1).toordinal()
_LAST_YEAR: Final = 9999
_HOURS: Final = 24
_MINUTES: Final = 60
_FRACTION_DIGITS: Final = 6
# Of an integer of 64 bits, with its sign.
_MOST_DIGITS: Final = 20
_NULL: Final = b"null"
_BEGIN_NUMBERS: Final = b"-0123456789"
_ONE_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ONE_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_ONE_STRING: Final = msgspec.json.Decoder(str)

# No digits can be taken in two ways: a text of many that is not a number would take the square of its length.
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DAY: Final = re.compile(r"(?P<year>[+-]?\d{4,6})-(?P<month>\d\d)-(?P<day>\d\d)", re.ASCII)
_MOMENT: Final = re.compile(
    r"(?P<year>[+-]?\d{4,6})-(?P<month>\d\d?)-(?P<day>\d\d?)"
    r"(?:[T ](?P<hour>\d\d?)(?::(?P<minute>\d\d?)(?::(?P<second>\d\d?)(?:\.(?P<fraction>\d+))?)?)?"
    r" ?(?P<zone>Z|UTC|GMT|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)?)?",
    re.ASCII,
)
_SPACES: Final = " \t\r\n"
# In minutes; farther from UTC no time is.
_FARTHEST_ZONE: Final = 18 * _MINUTES
BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
"""A text in base64, of one line."""

_BASE64: Final = re.compile(BASE64.strip("^$"))
# As many digits as the widest DECIMAL has.
_DIGITS: Final = Context(prec=38, rounding=ROUND_HALF_UP, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


class _UnfitError(Exception):
    """The value is not of the type."""


class _StrangeTimeError(Exception):
    """A time beyond the years 1 to 9999."""


@dataclass(slots=True)
class Flaws:
    """The places of what is wrong with an object, each once and in the order of the columns.

    Attributes:
        unfit: Values that are not of their type.
        missing: Values that are required, and missing or null.
        strange: Times beyond the years 1 to 9999.
        lacking: Places that must not be null and would be, if what does not fit was null.
    """

    unfit: dict[str, None] = field(default_factory=dict)
    missing: dict[str, None] = field(default_factory=dict)
    strange: dict[str, None] = field(default_factory=dict)
    lacking: dict[str, None] = field(default_factory=dict)

    @property
    def reason(self) -> str | None:
        """Why the object does not fit; None where it does."""
        named = ((UNFIT, self.unfit), (MISSING, self.missing), (STRANGE, self.strange))
        return next((f"{what}{', '.join(places)}" for what, places in named if places), None)


_Read: TypeAlias = Callable[[bytes, Flaws], Any]
"""Reads a value that is not null; raises where it does not fit."""

_Place: TypeAlias = Callable[[Any, Flaws], Any]
"""Reads what an object has in a place, or None where it has nothing; gives None for null and for what does not fit."""


class ObjectReader:
    """Reads objects into texts for Arrow's reader.

    Args:
        columns: The columns.
        units: ``TIMESTAMP`` columns that are read from whole numbers -> how many microseconds one is.
        saves: Whether an object in which something does not fit is a record all the same, with null there.
    """

    def __init__(self, columns: StructType, units: Mapping[str, int], *, saves: bool) -> None:
        self._columns = [(of.name, _place(of, of.name, units.get(of.name))) for of in columns.fields]
        self._saves = saves
        self._may_be_another_kind = not saves and all(of.nullable for of in columns.fields)

    def read(self, text: str) -> tuple[bytes | None, str | None]:
        """Read an object.

        Returns:
            The text for Arrow's reader, and what does not fit. Without a text the object is rejected, for that reason;
            with both, it is a record of what fits.
        """
        flaws = Flaws()
        record = _record(_ONE_OBJECT.decode(text), self._columns, flaws)
        if self._saves:
            if flaws.lacking:
                return None, f"{MISSING}{', '.join(flaws.lacking)}"
            return msgspec.json.encode(record), flaws.reason
        reason = flaws.reason
        if reason is None and self._may_be_another_kind and not record:
            reason = NO_VALUE
        return (msgspec.json.encode(record) if reason is None else None), reason


def _record(found: Mapping[str, Any], fields: Sequence[tuple[str, _Place]], flaws: Flaws) -> dict[str, Any]:
    """The fields that have a value."""
    record = {}
    for name, read in fields:
        value = read(found.get(name), flaws)
        if value is not None:
            record[name] = value
    return record


def _place(of: StructField, path: str, unit: int | None = None) -> _Place:
    """Makes the reader of a field, or of the elements of an array; its flaws are named by the path."""
    read = _reader(of.dataType, path, unit)
    takes_null = isinstance(of.dataType, VariantType)
    is_required = not of.nullable

    def read_place(value: Any, flaws: Flaws) -> Any:
        text = _NULL if value is None else bytes(value)
        if text == _NULL and (value is None or not takes_null):
            if is_required:
                flaws.missing[path] = flaws.lacking[path] = None
            return None
        try:
            return read(text, flaws)
        except _UnfitError:
            flaws.unfit[path] = None
        except _StrangeTimeError:
            flaws.strange[path] = None
        if is_required:
            flaws.lacking[path] = None
        return None

    return read_place


def _reader(kind: DataType, path: str, unit: int | None) -> _Read:
    """Makes the reader of the values of a type."""
    if isinstance(kind, StructType):
        return _struct(kind, path)
    # All that is inside of an array or a map has one place.
    inside = path if path.endswith("[]") else f"{path}[]"
    if isinstance(kind, ArrayType):
        return _array(_place(StructField("", kind.elementType, kind.containsNull), inside))
    if isinstance(kind, MapType):
        return _map(_place(StructField("", kind.valueType, kind.valueContainsNull), inside))
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, TimestampType) and unit is not None:
        return lambda text, _: _moment_of_number(text, unit)
    if isinstance(kind, StringType):
        return _string
    return _SINGLE[type(kind)]


def _struct(kind: StructType, path: str) -> _Read:
    inside = path if path.endswith("[]") else None
    fields = [(of.name, _place(of, inside or f"{path}.{of.name}")) for of in kind.fields]

    def read(text: bytes, flaws: Flaws) -> Any:
        _require(text.startswith(b"{"))
        return _record(_ONE_OBJECT.decode(text), fields, flaws)

    return read


def _array(read_element: _Place) -> _Read:
    def read(text: bytes, flaws: Flaws) -> Any:
        _require(text.startswith(b"["))
        return [read_element(element, flaws) for element in _ONE_ARRAY.decode(text)]

    return read


def _map(read_value: _Place) -> _Read:
    def read(text: bytes, flaws: Flaws) -> Any:
        _require(text.startswith(b"{"))
        found = _ONE_OBJECT.decode(text)
        return [{MAP_KEY: name, MAP_VALUE: read_value(value, flaws)} for name, value in found.items()]

    return read


def _boolean(text: bytes, _: Flaws) -> Any:
    _require(text in {b"true", b"false"})
    return msgspec.Raw(text)


def _whole(bits: int) -> _Read:
    def read(text: bytes, _: Flaws) -> Any:
        number = _whole_number(text)
        _require(-1 << bits <= number < 1 << bits)
        return number

    return read


def _whole_number(text: bytes) -> int:
    # Longer ones take long to read.
    _require(len(text) <= _MOST_DIGITS)
    try:
        # Of all values that JSON has, Python takes only these.
        return int(text)
    except ValueError:
        raise _UnfitError from None


def _fraction(text: bytes, _: Flaws) -> Any:
    _require(_is_number(text))
    # Arrow's reader refuses a zero with a large exponent. Of all others it needs the digits: the double that is nearest
    # to a number may have another nearest FLOAT than the number itself.
    return msgspec.Raw(text) if (number := float(text)) else number


def _is_number(text: bytes) -> bool:
    return text[0] in _BEGIN_NUMBERS


def _decimal(kind: DecimalType) -> _Read:
    """Makes the reader of numbers, and of texts that are numbers: many senders keep money from being a double so."""
    step = Decimal(1).scaleb(-kind.scale)
    above = Decimal(10) ** (kind.precision - kind.scale)

    def read(text: bytes, flaws: Flaws) -> Any:
        number = text.decode() if _is_number(text) else _text(text)
        _matched(_NUMBER, number)
        try:
            value = Decimal(number).quantize(step, context=_DIGITS)
        except InvalidOperation:
            raise _UnfitError from None
        _require(abs(value) < above)
        return msgspec.Raw(format(value, "f").encode())

    return read


def _string(text: bytes, _: Flaws) -> Any:
    if text.startswith(b'"'):
        return msgspec.Raw(text)
    # Without white space between the tokens, which stay as they came.
    return (msgspec.json.format(text, indent=-1) if text[:1] in b"{[" else text).decode()


def _variant(text: bytes, _: Flaws) -> Any:
    return text.decode()


def _binary(text: bytes, _: Flaws) -> Any:
    encoded = _text(text)
    _matched(_BASE64, encoded)
    return encoded


def _day(text: bytes, _: Flaws) -> Any:
    return _days(_matched(_DAY, _text(text)))


def _moment(text: bytes, _: Flaws) -> Any:
    return _moment_of_number(text, SECOND) if _is_number(text) else _moment_of_text(text, local=False)


def _local_moment(text: bytes, _: Flaws) -> Any:
    return _moment_of_text(text, local=True)


def _moment_of_number(text: bytes, unit: int) -> int:
    return _within_years(_whole_number(text) * unit)


def _moment_of_text(text: bytes, *, local: bool) -> int:
    found = _matched(_MOMENT, _text(text).strip(_SPACES))
    _require(not (local and found["zone"]))
    days = _days(found)
    hour, minute, second = (int(found[name] or 0) for name in ("hour", "minute", "second"))
    _require(hour < _HOURS and minute < _MINUTES and second < _MINUTES)
    minutes = (days * _HOURS + hour) * _MINUTES + minute
    if found["sign"]:
        ahead = int(found["hours"]) * _MINUTES + int(found["minutes"] or 0)
        _require(ahead <= _FARTHEST_ZONE and int(found["minutes"] or 0) < _MINUTES)
        minutes += ahead if found["sign"] == "-" else -ahead
    # Less than a microsecond is cut off.
    fraction = int((found["fraction"] or "")[:_FRACTION_DIGITS].ljust(_FRACTION_DIGITS, "0"))
    return _within_years((minutes * _MINUTES + second) * SECOND + fraction)


def _days(found: re.Match[str]) -> int:
    """The days from 1970 on to a day that was matched."""
    year = int(found["year"])
    if not 1 <= year <= _LAST_YEAR:
        raise _StrangeTimeError
    try:
        # With four digits, and no sign: other readers take it for something else.
        _require(len(found["year"]) == len(str(_LAST_YEAR)))
        return date(year, int(found["month"]), int(found["day"])).toordinal() - _DAYS_TO_1970
    except ValueError:
        raise _UnfitError from None


def _within_years(microseconds: int) -> int:
    if not FIRST_MICROSECOND <= microseconds <= LAST_MICROSECOND:
        raise _StrangeTimeError
    return microseconds


def _text(text: bytes) -> str:
    _require(text.startswith(b'"'))
    return _ONE_STRING.decode(text)


def _matched(pattern: re.Pattern[str], text: str) -> re.Match[str]:
    found = pattern.fullmatch(text)
    if found is None:
        raise _UnfitError
    return found


def _require(is_so: bool) -> None:
    if not is_so:
        raise _UnfitError


_SINGLE: Final[Mapping[type[DataType], _Read]] = {
    BooleanType: _boolean,
    ShortType: _whole(15),
    IntegerType: _whole(31),
    LongType: _whole(63),
    FloatType: _fraction,
    DoubleType: _fraction,
    BinaryType: _binary,
    DateType: _day,
    TimestampType: _moment,
    TimestampNTZType: _local_moment,
    VariantType: _variant,
}
"""The readers of types without anything inside; of texts and DECIMAL, there are many types."""


def decoded(base64_text: str) -> bytes:
    """The bytes of a text in base64 that was checked."""
    return binascii.a2b_base64(base64_text)
