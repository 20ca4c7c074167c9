"""Random messages by a seed: records that fit, records that nearly do, and whatever else a queue may bring."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from tests.spark.sources.s3_messages import direct, event_bridge, in_sns, record

PLAIN: Final = (
    "id BIGINT NOT NULL, name STRING, small SMALLINT, whole INT, ratio DOUBLE, flag BOOLEAN, day DATE, at TIMESTAMP, "
    "amount DECIMAL(10, 2), tags ARRAY<STRING>, home STRUCT<city: STRING, zip: INT, at: TIMESTAMP>"
)
"""Columns of types that tasks read by themselves."""

RICH: Final = (
    f"{PLAIN}, labels MAP<STRING, STRING>, raw BINARY, near FLOAT, local TIMESTAMP_NTZ, "
    "stops ARRAY<STRUCT<at: TIMESTAMP NOT NULL, fee: DECIMAL(4, 1)>>"
)
"""With types that only Spark reads."""

CANARY: Final = "S3CRET"
"""In every text that is drawn: it must be in no reason and no log line."""

_BEGAN: Final = 1_700_000_000_000
_TIMES: Final = (
    "2013-01-02",
    "2013-01-02T03:04:05Z",
    "2013-01-02 03:04:05.123456",
    "2013-01-02T03:04:05+18:00",
    "2013-01-02T24:00:00Z",
    "2013-02-30",
    "0000-01-01",
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "1582-10-10",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-12:00",
    "10000-01-01",
    "+12345-01-01T00:00:00Z",
    "-0044-03-15",
    "2013-1-2",
    "20130102",
    "now",
    "epoch",
    "",
    " ",
)
_NUMBERS: Final = (
    "0",
    "-0",
    "-0.0",
    "1.0",
    "1e0",
    "1E+2",
    "1e-7",
    "0.005",
    "1.005",
    "99999999.99",
    "99999999.995",
    "100000000",
    "127",
    "128",
    "32768",
    "2147483648",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1e38",
    "3.5e38",
    "1.7976931348623157e308",
    "1e309",
    "-1e400",
    "5e-324",
    "1e-400",
    "1700000000",
    "1700000000123",
    "1700000000123456",
    "1700000000123456789",
    "-62135596801",
    "253402300800",
    "NaN",
    "Infinity",
    "-Infinity",
    "01",
    "1.",
    ".5",
    "+1",
    "0x10",
)
_LONG_NUMBERS: Final = ("9" * 50, "9" * 400, "1" * 1001, "0." + "3" * 1001, "1e" + "0" * 1100)
_CHARACTERS: Final = (
    "\x00",
    "\x01",
    "\x1f",
    "\x7f",
    "\x85",
    "\u2028",
    "\ufeff",
    "\ufffd",
    "\uffff",
    "\U0001f600",
    "\U0010ffff",
    "e\u0301",
    "\u0130",
    "\u212a",
    "\u00df",
    "'",
    '"',
    "\\",
    "`",
    "%",
    "\n",
    "\r\n",
    "\t",
    "{",
    "$",
    ",",
    ";",
)
_NAMES: Final = (
    "",
    " ",
    ".",
    "a.b",
    "a b",
    "`a`",
    '"a"',
    "pct%",
    "%s",
    "a\x00b",
    "a\nb",
    "ID",
    "Id",
    "\u0130d",
    "\u017fmall",
    "\u212aey",
    "key",
    "KEY",
    "stra\u00dfe",
    "STRASSE",
    "xmin",
    "ctid",
    "tableoid",
    "_message_id",
    "_sent_at",
    "_batch_id",
    "_MESSAGE_ID",
    "_sqs_lease_attempt",
    "_sqs_lease_corrupt",
    "_corrupt_record",
    "ingested_batch",
    "_file",
    "_pos",
    "_partition",
    "_change_type",
    "_metadata",
    "__proto__",
    "value",
    "key_value",
    "select",
    "order",
    "user",
    "\u540d\u524d",
    "\U0001f600",
    "x" * 63,
    "x" * 64,
    "\u00e9" * 32,
    "x" * 300,
    "x" * 50_001,
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A message in the shape of the SQS API, and what is known of it.

    Attributes:
        message: The message.
        record: The record that a JSON source must make of it; None where nothing is promised.
    """

    message: dict[str, Any]
    record: Mapping[str, Any] | None = None

    @property
    def message_id(self) -> str:
        """Its id."""
        message_id: str = self.message["MessageId"]
        return message_id


class Draw:
    """Draws messages; the same ones for the same seed.

    Args:
        seed: The seed.
        ids: How many different values the records' ``id`` has.
    """

    def __init__(self, seed: int, *, ids: int = 1_000) -> None:
        self.random = Random(seed)
        self.ids = ids
        self._number = 0
        self._seed = seed

    def batch(self, count: int, *, wrap: Callable[[str], str] = lambda body: body, fitting: float = 0.4) -> list[Drawn]:
        """Draw messages; some come twice, under one id.

        Args:
            count: How many.
            wrap: Puts an envelope around most bodies.
            fitting: The share of records that fit.
        """
        drawn = [self._one(wrap, fitting) for _ in range(count)]
        again = [Drawn(_received_again(one.message), one.record) for one in self.random.sample(drawn, count // 50)]
        return [*drawn, *again]

    def good(self, count: int, *, wrap: Callable[[str], str] = lambda body: body) -> list[Drawn]:
        """Draw messages whose records fit."""
        records = [self._record() for _ in range(count)]
        return [Drawn(self._message(wrap(json.dumps(one))), one) for one in records]

    def _one(self, wrap: Callable[[str], str], fitting: float) -> Drawn:
        if self.random.random() < fitting:
            (drawn,) = self.good(1, wrap=wrap)
            return drawn
        body = self._drawn(
            self._near_record,
            self._near_record,
            self._near_record,
            self._cut,
            self._odd_fields,
            self._odd_fields,
            self._doubled,
            self._nested,
            self._text,
            self._value,
            self._envelope,
            self._notification,
            self._csv,
        )
        return Drawn(self._message(wrap(body) if self.random.random() < 0.7 else body))

    def _message(self, body: str) -> dict[str, Any]:
        self._number += 1
        attributes = {
            "SentTimestamp": str(_BEGAN + self.random.randrange(self.ids)),
            "ApproximateReceiveCount": str(self.random.choice((1, 1, 1, 2, 40))),
        }
        if self.random.random() < 0.02:
            attributes = {}
        message = {
            "MessageId": f"{self._seed}-{self._number}",
            "ReceiptHandle": f"handle-{self._number}",
            "Body": body,
            "Attributes": attributes,
        }
        if self.random.random() < 0.1:
            message["MessageAttributes"] = self._attributes()
        return message

    def _attributes(self) -> dict[str, Any]:
        return {
            "text": {"DataType": "String", "StringValue": self._string()},
            "number": {"DataType": "Number.custom", "StringValue": "1e400"},
            "bytes": {"DataType": "Binary", "BinaryValue": self.random.randbytes(9)},
            "png.binary-\U0001f600": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        }

    def _record(self) -> dict[str, Any]:
        """A record of both schemas."""
        values: dict[str, Callable[[], Any]] = {
            "name": lambda: self._choice((CANARY, f"{CANARY} {self._number}", "", f"{CANARY} \U0001f600\n", "7")),
            "small": lambda: self.random.randint(-32_768, 32_767),
            "whole": lambda: self._choice((0, -(2**31), 2**31 - 1, 7)),
            "ratio": lambda: self._choice((0.5, -1e300, 3, 1e-300)),
            "flag": lambda: self._choice((True, False)),
            "day": lambda: self._choice(("2013-01-02", "1969-12-31", "9999-12-31")),
            "at": lambda: self._choice(("2013-01-02T03:04:05.123456Z", "2013-01-02 03:04:05", 1_700_000_000)),
            "amount": lambda: self._choice((0, 1.25, -99_999_999.99, 12_345_678)),
            "tags": lambda: self._choice(([], [CANARY], [CANARY, "b"] * 5)),
            "home": lambda: self._choice(({}, {"city": CANARY}, {"city": "b", "zip": 1, "at": "2013-01-02T03:04:05Z"})),
        }
        chosen = self.random.sample(sorted(values), self.random.randrange(len(values)))
        nulls = self.random.sample(sorted(values), self.random.randrange(3))
        found = {name: values[name]() for name in chosen} | dict.fromkeys(nulls)
        return {"id": self.random.randrange(self.ids), **found}

    def _near_record(self) -> str:
        """A record of which some values are others."""
        fields = {name: json.dumps(value) for name, value in self._record().items()}
        names = ["id", "name", "small", "whole", "ratio", "flag", "day", "at", "amount", "tags", "home", "more"]
        names += ["labels", "raw", "near", "local", "stops"]
        for name in self.random.sample(names, self.random.choice((1, 1, 1, 2, 5))):
            fields[name] = self._value()
        if self.random.random() < 0.05:
            del fields["id"]
        return _object(fields)

    def _value(self) -> str:
        """Any JSON value, or what looks like one."""
        return self._drawn(
            lambda: self.random.choice(_NUMBERS),
            lambda: self.random.choice(_NUMBERS),
            lambda: self.random.choice(_LONG_NUMBERS),
            lambda: json.dumps(self.random.choice(_TIMES)),
            lambda: json.dumps(self._string(), ensure_ascii=self.random.random() < 0.5),
            lambda: json.dumps(self.random.choice(_NUMBERS)),
            lambda: self.random.choice(("null", "true", "false", "None", "TRUE", "''", "undefined")),
            lambda: self.random.choice((r'"\ud800"', r'"\udc00\ud800"', r'"\ud83d\ude00"', r'"\u0000"', r'"\x"')),
            lambda: f"[{', '.join(self._shallow() for _ in range(self.random.randrange(4)))}]",
            lambda: _object({"city": self._shallow(), "zip": self._shallow(), "at": self._shallow()}),
            lambda: f'[{{"at": {self._shallow()}, "fee": {self._shallow()}}}]',
            lambda: _object({self.random.choice(_NAMES): self._shallow()}),
            self._deep,
        )

    def _shallow(self) -> str:
        return self._drawn(
            lambda: self.random.choice(_NUMBERS),
            lambda: json.dumps(self.random.choice(_TIMES)),
            lambda: json.dumps(self._string()),
            lambda: "null",
            lambda: "[]",
            lambda: "{}",
        )

    def _string(self) -> str:
        length = self.random.choices((0, 3, 30, 3_000, 60_000), (20, 40, 40, 3, 1))[0]
        return CANARY + "".join(self.random.choices(_CHARACTERS + tuple("abc "), k=length))

    def _deep(self) -> str:
        levels = self.random.choice((3, 150, 198, 199, 200, 201, 600, 5_000))
        begin, end = self.random.choice((("[", "]"), ('{"a":', "}"), ('{"b":[', "]}")))
        return begin * levels + self.random.choice(("1", "null", '"x"')) + end * levels

    def _odd_fields(self) -> str:
        """A record with more fields."""
        fields = {name: json.dumps(value) for name, value in self._record().items()}
        for _ in range(self.random.choice((1, 1, 2, 3))):
            fields[self.random.choice(_NAMES)] = self._value()
        if self.random.random() < 0.1:
            fields |= {f"f{self._number}_{n}": "1" for n in range(self.random.choice((5, 50)))}
        return _object(fields)

    def _doubled(self) -> str:
        """An object that names a field twice, or nearly so."""
        return self.random.choice(
            (
                '{"id": 1, "id": 2}',
                r'{"id": 1, "\u0069d": 2}',
                '{"id": 1, "home": {"zip": 1, "zip": 2}}',
                '{"id": 1, "Id": 2, "iD": 3}',
                '{"id": 1, "home": {"zip": 1, "ZIP": 2}}',
                '{"id": 1, "new": {"a": 1, "A": 2}}',
                '{"id": 1, "new": [{"a": 1}, {"A": 2}]}',
            )
        )

    def _nested(self) -> str:
        return _object({"id": str(self.random.randrange(self.ids)), self._choice(("name", "deep")): self._deep()})

    def _cut(self) -> str:
        """A record with a part cut out, put in, or written twice."""
        text = json.dumps(self._record())
        start, stop = sorted(self.random.choices(range(len(text) + 1), k=2))
        put_in = self.random.choice(("", "", text[start:stop] * 2, self.random.choice(_CHARACTERS), text))
        return text[:start] + put_in + text[stop:]

    def _text(self) -> str:
        return self._drawn(
            lambda: "",
            lambda: self.random.choice((" ", "\n", "\x00", "\ufeff{}", "\ud800", '{"id": 1, "name": "\udfff"}')),
            self._string,
            lambda: f"{{'id': 1, 'name': '{CANARY}'}}",
            lambda: '{"id": 1} {"id": 2}',
            lambda: '{"id": 1}\n',
            lambda: '// no\n{"id": 1}',
            lambda: f"<xml>{CANARY}</xml>",
            lambda: base64.b64encode(self.random.randbytes(30)).decode(),
            lambda: "x" * self.random.choice((1, 1_000, 200_000)),
        )

    def _envelope(self) -> str:
        inner = self.random.choice((json.dumps(self._record()), self._value(), "", "\x00"))
        kind = self.random.choice(("Notification", "Notification", "SubscriptionConfirmation", "Other"))
        attributes: dict[str, Any] | None = self.random.choice(
            (
                None,
                {},
                {"a": {"Type": "String", "Value": self._string()}},
                {"a": {"Type": "Binary", "Value": "AAE="}},
                {"a": {"Type": "Binary", "Value": "no base64"}, "\x00": {"Type": "Number", "Value": "1e400"}},
                {"a": {"Type": None}},
                {"a": 1},
            )
        )
        body = in_sns(inner, attributes, kind=kind)
        if self.random.random() < 0.3:
            changed = json.loads(body)
            changed[self.random.choice(sorted(changed))] = self._choice((1, None, [], {"a": 1}, CANARY))
            body = json.dumps(changed)
        return body

    def _notification(self) -> str:
        key = self.random.choice(("a", "a%2Fb", "%00", "%zz", "", "x" * 1_025, "\U0001f600", "a+b", "..%2F.."))
        event = self.random.choice(("ObjectCreated:Put", "ObjectRemoved:Delete", "ObjectRestore:Post", ""))
        s3 = direct(*(record("no-such-bucket", key, event=event) for _ in range(self.random.choice((0, 1, 1, 2)))))
        return self.random.choice(
            (
                s3,
                in_sns(s3),
                event_bridge("no-such-bucket", key),
                event_bridge("", key, event="Object Deleted"),
                json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}),
                json.dumps({"Records": self._choice((None, {}, [None], [1], [{}], [{"s3": 1}], CANARY))}),
            )
        )

    def _csv(self) -> str:
        return self.random.choice(("id,name\n1,a\n", "1;2;3", '"a","b', "id\tname\n1\t\x00"))

    def _choice(self, among: Sequence[Any]) -> Any:
        return self.random.choice(among)

    def _drawn(self, *ways: Callable[[], str]) -> str:
        """Draw in one of some ways."""
        return self.random.choice(ways)()


def _object(fields: Mapping[str, str]) -> str:
    """An object of which the values are texts already."""
    return "{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in fields.items()) + "}"


def _received_again(message: Mapping[str, Any]) -> dict[str, Any]:
    again = dict(message["Attributes"])
    if "ApproximateReceiveCount" in again:
        again["ApproximateReceiveCount"] = str(int(again["ApproximateReceiveCount"]) + 1)
    return {**message, "ReceiptHandle": "another handle", "Attributes": again}
