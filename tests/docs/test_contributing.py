"""CONTRIBUTING.md says where things are, and its first change, a new renewal policy, can be made as it says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from sqs_lease.core import policies, specs
from tests.core import test_policies
from tests.docs.test_examples import ROOT, blocks
from tests.suite.plans import nearest_tests

TEST, POLICY = blocks(ROOT / "CONTRIBUTING.md")
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


def test_paths_in_the_tree_exist_and_are_directories_where_it_says_so() -> None:
    named = _named()

    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert [path for path in named if (ROOT / path).is_dir() != path.endswith("/")] == []


def test_the_tree_names_each_room_of_the_package_and_of_its_hosts() -> None:
    rooms = [*(ROOT / PACKAGE).glob("*/__init__.py"), *(ROOT / PACKAGE).glob("*/*/__init__.py")]

    assert {f"{room.parent.relative_to(ROOT)}/" for room in rooms} - set(_named()) == set()


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> type[policies.RenewalPolicy]:
    """The policy of the first change, as if it stood in the module of policies and had its name."""
    names: dict[str, Any] = {**vars(policies)}
    exec(compile(POLICY, "CONTRIBUTING.md", "exec"), names)
    made: type[policies.RenewalPolicy] = names["Doubling"]
    monkeypatch.setattr(specs, "POLICIES", {**specs.POLICIES, "doubling": made})
    return made


def test_the_test_of_the_first_change_passes(doubling: type[policies.RenewalPolicy]) -> None:
    names: dict[str, Any] = {**vars(test_policies), "Doubling": doubling}
    exec(compile(TEST, "CONTRIBUTING.md", "exec"), names)
    test: Callable[[], None] = names["test_doubling_extends_by_twice_the_last_period"]
    test()


def test_users_can_name_the_new_policy_and_a_lease_carries_it_to_another_process(
    doubling: type[policies.RenewalPolicy],
) -> None:
    policy = specs.resolve_policy("doubling", visibility=30)

    assert type(policy) is doubling
    assert type(specs.decode_policy(specs.encode_policy(policy))) is doubling


def test_the_places_of_the_first_change_exist() -> None:
    steps = (ROOT / "CONTRIBUTING.md").read_text().partition("## A first change")[2].partition("\n## ")[0]
    paths = re.findall(r"`((?:providers|tests|docs)/[\w/.]+)`", steps)

    assert len(paths) == 6
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    for name, path in (("POLICIES", "core/specs.py"), ("_OURS", "keeper/plug_ins.py"), ("__all__", "__init__.py")):
        assert f"\n{name}" in (ROOT / PACKAGE / path).read_text()


def test_make_check_of_the_changed_policies_runs_their_tests() -> None:
    tests, _ = nearest_tests([Path(PACKAGE, "core", "policies.py")])

    assert Path("tests/core/test_policies.py") in tests
