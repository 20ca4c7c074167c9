"""The model, what is checked of it, and its page say the same; the searches themselves are `make model`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.model.checks import CONFIGURATIONS, RULES, named
from tests.model.spin import MODEL, Search, SearchError, read_search, read_trail

ROOT: Final = Path(__file__).parents[2]
ROWS: Final = re.findall(
    r"^\| `([A-Z_]+)` \| [^|]+ \| `([\w/.]+)` `(\w+)` \| ([^|]+) \| (\d+) \|$",
    (ROOT / "tests/model/README.md").read_text(),
    re.MULTILINE,
)

FOUND: Final = """
pan:1: assertion violated (newest[0]==0) (at depth 33)
pan: wrote protocol.pml.trail
State-vector 108 byte, depth reached 34, errors: 1
    78787 states, stored
  139.395\ttotal actual memory usage
pan: elapsed time 0.45 seconds
"""


def test_each_rule_of_the_model_is_taken_out_and_explained() -> None:
    rules = set(re.findall(r"\bWITHOUT_([A-Z_]+)", MODEL.read_text()))
    assert sorted(rules) == sorted(rule.name for rule in RULES)
    assert [row[0] for row in ROWS] == [rule.name for rule in RULES]


def test_the_page_says_with_what_each_rule_is_missed() -> None:
    assert [row[3] for row in ROWS] == [named(rule.defines) for rule in RULES]


def test_a_rule_is_missed_where_nothing_is_wrong_with_all_rules() -> None:
    assert [rule.name for rule in RULES if rule.defines not in CONFIGURATIONS] == []


@pytest.mark.parametrize(("path", "name"), sorted({(row[1], row[2]) for row in ROWS}))
def test_the_code_that_follows_a_rule_is_where_the_page_says(path: str, name: str) -> None:
    code = (ROOT / "providers/sqs_lease" / path).read_text()
    assert re.search(rf"^ *(async )?(def {name}\(|{name}: Final)", code, re.MULTILINE)


def test_each_possible_event_is_counted_in_the_model() -> None:
    counted = {name for defines in (*CONFIGURATIONS, *(rule.defines for rule in RULES)) for name in defines}
    assert counted == set(re.findall(r"^#ifndef ((?!WITHOUT_)[A-Z_]+)$", MODEL.read_text(), re.MULTILINE))


def test_the_page_has_the_figures_of_each_configuration() -> None:
    page = (ROOT / "tests/model/README.md").read_text()
    assert re.findall(r"^\| ([a-z0-9 ,-]+) \| [\d ]+ \| \d+ \| \d+ \|$", page, re.MULTILINE) == [
        named(defines) for defines in CONFIGURATIONS
    ]


def test_a_counterexample_is_read() -> None:
    assert read_search(FOUND) == Search(78787, 34, 139.395, 0.45, "(newest[0]==0)")


@pytest.mark.parametrize("trouble", ["Warning: Search not completed", "pan: reached -DMEMLIM bound", ""])
def test_a_search_that_did_not_see_every_state_proves_nothing(trouble: str) -> None:
    whole = "\n".join(line for line in FOUND.splitlines() if "pan:1" not in line).replace("errors: 1", "errors: 0")
    assert read_search(whole).violation is None
    with pytest.raises(SearchError, match="did not end"):
        read_search(f"{whole}\n{trouble}" if trouble else "Killed")


def test_a_trail_is_what_happens_and_no_values() -> None:
    told = "  triggerer 0 crashes\nspin: protocol.pml:5, Error: assertion violated\n#processes: 1\n\t\tplace[0] = 1\n"
    assert read_trail(told) == ["triggerer 0 crashes"]
