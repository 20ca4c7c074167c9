"""The messages of the demo: real flights, and some that no table takes."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import pytest

from demo.flights import bodies, flights, malformed

REQUIRED = {"time_hour": str, "carrier": str, "flight": int, "origin": str, "dest": str}


def is_a_flight(text: str) -> bool:
    try:
        value = json.loads(text, parse_constant=lambda _: None)
    except ValueError:
        return False
    if not isinstance(value, dict):
        return False
    typed = all(isinstance(value.get(name), kind) for name, kind in REQUIRED.items())
    return typed and isinstance(value["distance"], int) and value["time_hour"].startswith("2013-")


def test_a_flight_has_numbers_texts_and_gaps_as_in_the_data() -> None:
    first, *others = islice(flights(), 1000)

    assert first["carrier"] == "UA"
    assert first["flight"] == 1545
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert first["distance"] == 1400
    assert any(flight["dep_time"] is None for flight in others)


def test_there_are_as_many_messages_as_asked_for_each_a_flight_or_malformed() -> None:
    made = bodies(500)

    assert len(made) == 500
    assert [is_a_flight(body.text) for body in made] == [not body.is_malformed for body in made]


@pytest.mark.parametrize(("count", "broken"), [(1, 0), (9, 0), (10, 1), (55, 5)])
def test_of_few_messages_one_in_ten_is_malformed(count: int, broken: int) -> None:
    made = bodies(count)

    assert len(made) == count
    assert sum(body.is_malformed for body in made) == broken


def test_malformed_messages_are_spread_over_all_of_them() -> None:
    positions = [position for position, body in enumerate(bodies(1000)) if body.is_malformed]
    gaps = [after - before for before, after in pairwise(positions)]

    assert len(positions) == 20
    assert max(gaps) <= 60
    assert positions[0] < 60
    assert positions[-1] > 940


def test_every_malformed_message_is_malformed_in_its_own_way() -> None:
    texts = malformed(next(flights()))

    assert len(set(texts)) == len(texts) == 20
    assert all(texts)
