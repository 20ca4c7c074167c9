"""The JSON check is as strict as the letter of the standard: whatever Python's own parser refuses, it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sqs_lease.spark.json_syntax import NotJsonError, decode, decode_object

repeatable = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, database=None)
"""However slow the machine is, and with the same examples each time."""

TOO_LARGE = "a number that no double can hold"


def reason(text: str | bytes) -> str | None:
    try:
        decode_object(text)
    except NotJsonError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        pytest.param("", "the body is empty", id="empty"),
        pytest.param(" \n\t", "the body is empty", id="white space"),
        pytest.param("hello", "not valid JSON", id="text"),
        pytest.param('{"id": 1', "not valid JSON", id="cut off"),
        pytest.param('{"id": 1} garbage', "not valid JSON: trailing characters at line 1 column 11", id="garbage"),
        pytest.param('{"id": 1}{"id": 2}', "not valid JSON: trailing characters", id="a second object"),
        pytest.param('{"id": 1}\n{"id": 2}', "not valid JSON: trailing characters at line 2", id="a second line"),
        pytest.param('{"id": 1}\0', "not valid JSON: trailing characters", id="a null character behind it"),
        pytest.param('{"id": 1,}', "not valid JSON", id="a trailing comma"),
        pytest.param('{"id": 1} // one', "not valid JSON", id="a comment"),
        pytest.param("{'id': 1}", "not valid JSON", id="single quotes"),
        pytest.param("{id: 1}", "not valid JSON", id="a name without quotes"),
        pytest.param('{"x": NaN}', "not valid JSON", id="NaN"),
        pytest.param('{"x": -Infinity}', "not valid JSON", id="infinity"),
        pytest.param('{"id": 01}', "not valid JSON", id="a leading zero"),
        pytest.param('{"name": "\x01"}', "not valid JSON", id="a control character"),
        pytest.param('\ufeff{"id": 1}', "not valid JSON", id="a byte order mark"),
        pytest.param('\u00a0{"id": 1}', "not valid JSON", id="white space that JSON does not know"),
        pytest.param('{"name": "\\x41"}', "not valid JSON", id="an unknown escape"),
        pytest.param('{"name": "\\ud800"}', "not valid JSON", id="half a surrogate pair, escaped"),
        pytest.param('{"name": "\ud800"}', "not valid JSON: half a surrogate pair", id="half a surrogate pair"),
        pytest.param(b'{"name": "\xff"}', "not valid JSON", id="invalid UTF-8"),
        pytest.param(b'{"name": "\xc0\x80"}', "not valid JSON", id="an overlong form"),
        pytest.param('{"a": 1, "a": 1}', "not valid JSON: a name stands twice in one object at", id="a name twice"),
        pytest.param('{"x": [{"a": 1, "\\u0061": 1}]}', "not valid JSON: a name stands twice", id="deeper, escaped"),
        pytest.param('[{"id": 1}]', "not a JSON object, but an array", id="an array"),
        pytest.param('"id"', "not a JSON object, but a string", id="a string"),
        pytest.param("1.5", "not a JSON object, but a number", id="a number"),
        pytest.param("true", "not a JSON object, but true or false", id="a boolean"),
        pytest.param("null", "not a JSON object, but null", id="null"),
        pytest.param('{"x": ' + "[" * 100_000 + "]" * 100_000 + "}", "not JSON that can be stored: nested", id="deep"),
    ],
)
def test_a_text_that_is_not_a_json_object_has_a_reason(text: str | bytes, starts: str) -> None:
    assert str(reason(text)).startswith(starts)


@pytest.mark.parametrize(
    "number",
    [
        *("1e309", "-1E+309", "1e999", "1e00309", "1.7976931348623159e308", "1234567890e300"),
        *("9" * 309, "-" + "9" * 5000, "9" * 309 + ".5", "9" * 250 + "e60"),
    ],
)
def test_a_number_that_no_double_holds_is_refused_at_any_depth(number: str) -> None:
    for text in (f'{{"x": {number}}}', f'{{"x": [{{"y": {number}}}]}}'):
        assert str(reason(text)).endswith(TOO_LARGE)


@pytest.mark.parametrize(
    "number",
    ["1.7976931348623157e308", "0e999", "1e-999", "0.0000001e310", "9" * 308, "0." + "0" * 400 + "1", "1E5", "-0"],
)
def test_a_number_that_a_double_holds_is_taken_however_it_is_written(number: str) -> None:
    assert decode_object(f'{{"x": {number}}}')["x"] == pytest.approx(float(number))


def test_an_exponent_inside_of_a_string_is_text() -> None:
    assert reason('{"id": "4e999456-0000", "digits": "' + "9" * 400 + '"}') is None


@pytest.mark.parametrize("text", ['{"secret": 1, "secret": 2}', '{"a": secret}', '{"a": "secret"} secret', "secret"])
def test_no_reason_quotes_the_text(text: str) -> None:
    assert "secret" not in str(reason(text))


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@repeatable
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_text_that_python_writes_is_read_as_it_is(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert decode(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


def refused_by_python(text: str) -> bool:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def no_constant(_name: str) -> None:
        raise ValueError

    def finite(digits: str) -> float:
        if abs(float(digits)) == float("inf"):
            raise ValueError
        return float(digits)

    try:
        json.loads(text, object_pairs_hook=once, parse_constant=no_constant, parse_float=finite, parse_int=finite)
        text.encode()
    except ValueError:
        return True
    return False


# Pieces that make what is nearly JSON.
PIECES = st.sampled_from(
    [
        *('{}[]",:\\ \n\t0123456789.-'),
        *("e", "E+", "e309", "9" * 310, "true", "null", "NaN", "Infinity", "//", "\x00", "\x0b", "\u00a0"),
        *('"a"', '"a":1', '"\\u0061":2', "'a'", "\\ud800", "\ud800", '{"a":'),
    ]
)


@repeatable
@given(VALUES, st.data())
@example({"a": 1}, None)
def test_text_that_python_refuses_is_refused(value: Any, data: Any) -> None:
    text = json.dumps(value)
    if data is not None:
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(text)))
            text = text[:at] + data.draw(PIECES) + text[at + data.draw(st.integers(0, 2)) :]

    if refused_by_python(text):
        with pytest.raises(NotJsonError):
            decode(text)


@repeatable
@given(st.lists(PIECES, max_size=12).map("".join))
def test_pieces_that_python_refuses_are_refused(text: str) -> None:
    if refused_by_python(text):
        with pytest.raises(NotJsonError):
            decode(text)
