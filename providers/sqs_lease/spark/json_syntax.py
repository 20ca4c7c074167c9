"""Reads strict JSON (RFC 8259), and says why a text is not JSON, without quoting it.

Other readers, such as Spark's, take much that is not JSON, and drop the rest in silence. Three rules are stricter than
the RFC: a name may occur only once in an object, a number must fit a double, and nesting ends at 200 levels.
"""

from __future__ import annotations

import re
from typing import Any, Final

import jiter

_POSITION = re.compile(r"^(?P<what>.*?)(?P<where> at line \d+ column \d+)?$", re.DOTALL)

# All digits alike, so that a few plain searches find what might be a number that no double holds: 200 digits in a row,
# or an exponent of three; the largest number with fewer is below 1e300. A regular expression takes ten times as long.
_DIGITS_ALIKE: Final = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS: Final = b"0" * 200
_LONG_EXPONENTS: Final = (b"0e000", b"0e+000")


class NotJsonError(ValueError):
    """The text is not JSON that can be stored. The error says why, without quoting the text."""


def decode(text: str | bytes) -> Any:
    """Decode one JSON value.

    Args:
        text: The whole text; bytes are UTF-8.

    Raises:
        NotJsonError: It is empty, or not exactly one JSON value.
    """
    if isinstance(text, str):
        try:
            text = text.encode()
        except UnicodeEncodeError:
            raise NotJsonError("not valid JSON: half a surrogate pair") from None
    try:
        value = jiter.from_json(text, allow_inf_nan=False, catch_duplicate_keys=True, cache_mode="keys")
    except ValueError as error:
        raise NotJsonError(_reason(text, str(error))) from None
    alike = text.translate(_DIGITS_ALIKE)
    suspicious = _MANY_DIGITS in alike or any(exponent in alike for exponent in _LONG_EXPONENTS)
    if suspicious and not _fits_doubles(value):
        raise NotJsonError(_TOO_LARGE)
    return value


def decode_object(text: str | bytes, *, exactly: bool = False) -> dict[str, Any]:
    """Decode one JSON object.

    Args:
        text: As for :func:`decode`.
        exactly: Whether numbers with a fraction or an exponent become ``Decimal``, which keeps all of their digits.

    Raises:
        NotJsonError: As for :func:`decode`, or the value is not an object.
    """
    value = decode(text)
    if not isinstance(value, dict):
        raise NotJsonError(f"not a JSON object, but {_KINDS[type(value)]}")
    return _exactly(text) if exactly else value


def _exactly(text: str | bytes) -> dict[str, Any]:
    try:
        record: dict[str, Any] = jiter.from_json(text.encode() if isinstance(text, str) else text, float_mode="decimal")
    except ValueError:
        # Of such a text, only an exponent that no Decimal has: it is nearly zero.
        raise NotJsonError("not JSON that can be stored: a number with too long an exponent") from None
    return record


_TOO_LARGE: Final = "not JSON that can be stored: a number that no double can hold"
_KINDS: Final = {
    list: "an array",
    str: "a string",
    int: "a number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def _reason(text: bytes, said: str) -> str:
    if not text or text.isspace():
        return "the body is empty"
    match = _POSITION.match(said)
    what, where = (match["what"], match["where"] or "") if match else (said, "")
    if what.startswith("Detected duplicate key"):
        # The parser's own words quote the name.
        return f"not valid JSON: a name stands twice in one object{where}"
    if what == "recursion limit exceeded":
        return f"not JSON that can be stored: nested more than 200 levels deep{where}"
    if what == "number out of range":
        return _TOO_LARGE
    return f"not valid JSON: {what}{where}"


def _fits_doubles(value: Any) -> bool:
    """Whether all numbers in the value fit a double; the parser reads larger ones as infinite, or as integers."""
    if isinstance(value, dict):
        return all(map(_fits_doubles, value.values()))
    if isinstance(value, list):
        return all(map(_fits_doubles, value))
    if isinstance(value, int | float):
        try:
            return abs(float(value)) != float("inf")
        except OverflowError:
            return False
    return True
