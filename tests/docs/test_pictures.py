"""The pictures in docs/pictures are what `make pictures` draws, and each page says what is on those that it shows."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from docs.site.pictures import doctor
from docs.site.pictures.__main__ import PICTURES
from docs.site.pictures.drawing import Drawing, Scale
from tests.docs.test_examples import ROOT

DIRECTORY = ROOT / "docs" / "pictures"
SCREENSHOTS = ROOT / "docs" / "screenshots"
"""Of the page of leases, by `make test-pages`: what is on them are times of a real run, so they are looked at."""

COMMAND_LINE = (ROOT / "docs" / "command-line.md").read_text()
"""It shows what the command prints: a test of the command line compares them."""

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


def test_the_terminal_on_the_picture_says_what_the_page_of_the_command_says() -> None:
    (shown,) = re.findall(r"^```console\n(\$ sqs-lease doctor returns\n(?:.*\n)*?)^```$", COMMAND_LINE, re.MULTILINE)
    # The picture leaves this part out, because versions are those of the day.
    queue, _, end = shown.partition("This installation")
    problems = end.rpartition("\n\n")[2]
    drawn = "".join(line.plain for line in doctor.output())
    assert "".join(drawn.split()) == "".join((queue + problems).split())


def test_a_drawing_is_xml_whatever_its_texts_say() -> None:
    drawing = Drawing(100, 50, "less < more")
    drawing.text(0, 0, "a & b")
    root = ET.fromstring(drawing.svg())
    assert [element.text for element in root if element.tag.endswith(("title", "text"))] == ["less < more", "a & b"]


def test_a_scale_brings_values_to_pixels_in_either_direction() -> None:
    assert Scale((0, 10), (100, 200))(5) == 150
    assert Scale((0, 10), (200, 100))(1) == 190
