"""The pictures in docs/pictures are what `make pictures` draws, and each page says what is on those that it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from docs.site.pictures.__main__ import PICTURES
from docs.site.pictures.drawing import Drawing, Scale
from tests.docs.test_examples import ROOT

DIRECTORY = ROOT / "docs" / "pictures"
SCREENSHOTS = ROOT / "docs" / "screenshots"
"""Of the page of leases, by `make test-pages`: what is on them are times of a real run, so they are looked at."""

SHOWN = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_the_one_that_the_code_of_today_draws(name: str) -> None:
    assert (DIRECTORY / name).read_text() == PICTURES[name]().svg(), "run `make pictures`, and look at what changed"


def test_there_are_no_other_pictures() -> None:
    assert {path.name for path in DIRECTORY.iterdir()} == set(PICTURES)


def test_every_picture_is_on_a_page_with_a_text_for_those_who_cannot_see_it() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = [(page, text, path) for page in pages for text, path in SHOWN.findall(page.read_text())]
    assert {(page.parent / path).resolve() for page, _, path in shown} == {
        *DIRECTORY.iterdir(),
        *SCREENSHOTS.iterdir(),
    }
    assert [page.name for page, text, _ in shown if len(text) < 40] == []


def test_a_drawing_is_xml_whatever_its_texts_say() -> None:
    drawing = Drawing(100, 50, "less < more")
    drawing.text(0, 0, "a & b")
    root = ET.fromstring(drawing.svg())
    assert [element.text for element in root if element.tag.endswith(("title", "text"))] == ["less < more", "a & b"]


def test_a_scale_brings_values_to_pixels_in_either_direction() -> None:
    assert Scale((0, 10), (100, 200))(5) == 150
    assert Scale((0, 10), (200, 100))(1) == 190
