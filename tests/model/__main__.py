# ruff: noqa: T201 - what it prints is for people
"""Checks the model of the protocol, see tests/model/README.md.

``python -m tests.model`` searches all states of each configuration, in which no rule may be broken, and then takes out
each rule, which must be missed. ``--without RELEASING_ONCE`` takes out that one alone, and prints the counterexample.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.model.checks import CONFIGURATIONS, RULES, Rule, named
from tests.model.spin import MissingToolError, Search, SearchError, require_tools, search


def main() -> int:
    """Return 1 if a rule is broken, or is not missed when it is taken out; 2 if nothing can be said."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", choices=[rule.name for rule in RULES], help="show what happens without a rule")
    parser.add_argument("--rules-only", action="store_true", help="search no configuration with all rules")
    options = parser.parse_args()
    try:
        require_tools()
        if options.without is not None:
            return _show(next(rule for rule in RULES if rule.name == options.without))
        as_it_should_be = options.rules_only or _check_configurations()
        return 0 if _check_rules() and as_it_should_be else 1
    except (MissingToolError, SearchError) as error:
        print(error, file=sys.stderr)
        return 2


def _check_configurations() -> bool:
    print(f"{'what may happen':40} {'states':>12} {'steps':>6} {'MB':>6} {'s':>6}", flush=True)
    is_right = True
    for defines in CONFIGURATIONS:
        found = _search(defines)
        print(
            f"{named(defines):40} {found.states:12,} {found.depth:6} {found.megabytes:6.0f} {found.seconds:6.0f}",
            flush=True,
        )
        if found.violation is not None:
            is_right = False
            _print_trail(found)
    return is_right


def _check_rules() -> bool:
    print(f"\n{'without':40} {'what may happen':20} {'steps':>6}", flush=True)
    is_right = True
    for rule in RULES:
        found = _search(rule.defines, without=rule.name)
        steps = "NONE" if found.violation is None else str(found.depth)
        print(f"{rule.name:40} {named(rule.defines):20} {steps:>6}", flush=True)
        is_right = is_right and found.violation is not None
    return is_right


def _show(rule: Rule) -> int:
    found = _search(rule.defines, without=rule.name)
    _print_trail(found)
    return 0 if found.violation is not None else 1


def _print_trail(found: Search) -> None:
    for number, line in enumerate(found.trail, start=1):
        print(f"{number:4}  {line}")
    print(f"Then this is not so: {found.violation}" if found.violation else "No rule is broken")


def _search(defines: Mapping[str, int], *, without: str | None = None) -> Search:
    with tempfile.TemporaryDirectory(prefix="sqs-lease-model-") as directory:
        return search(defines, Path(directory), without=without)


if __name__ == "__main__":
    sys.exit(main())
