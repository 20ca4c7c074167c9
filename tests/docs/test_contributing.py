"""CONTRIBUTING.md says where things are: its tree names what is there, and every room of the package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = "providers/sqs_lease"

_SECTION: Final = re.compile(r"\n## Where things are\n\n(?P<tree>(?: {4}.*\n)+)")
_ENTRY: Final = re.compile(r"^ {4}(?P<indent> *)(?P<name>[\w./-]+)(?: {2,}\S|$)", re.MULTILINE)


def _named() -> list[str]:
    """The paths that the tree names, without the slash at the end of a directory."""
    section = _SECTION.search((ROOT / "CONTRIBUTING.md").read_text())
    assert section is not None
    paths: list[str] = []
    above: list[tuple[int, str]] = []
    for entry in _ENTRY.finditer(section["tree"]):
        depth = len(entry["indent"])
        above = [(less, path) for less, path in above if less < depth]
        path = f"{above[-1][1]}/{entry['name']}" if above else entry["name"]
        above.append((depth, path.rstrip("/")))
        paths.append(path)
    return paths


def test_what_the_tree_names_exists_and_is_a_directory_where_it_says_so() -> None:
    named = _named()

    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [path for path in named if (ROOT / path).is_dir() != path.endswith("/")] == []


def test_the_tree_names_each_room_of_the_package_and_of_its_hosts() -> None:
    rooms = [*(ROOT / PACKAGE).glob("*/__init__.py"), *(ROOT / PACKAGE).glob("*/*/__init__.py")]

    assert {f"{room.parent.relative_to(ROOT)}/" for room in rooms} - set(_named()) == set()
