"""The results of earlier runs of `make test-processes`: a run that was cut off is continued by the next one.

A result counts as long as the sources are what they were: the fingerprint of the tree goes with it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.suite.commands import Outcome

SOURCES: Final = (
    *("providers", "dags", "dagster_defs", "demo", "benchmarks", "docs", "requirements", "tests"),
    *("README.md", "pyproject.toml"),
)
"""Everything that the result of a test can depend on."""


class KeptResults:
    """The outcomes of the commands that ended, in a file that is written whenever one does.

    Args:
        file: The file; made when it is missing.
        sources: Gives the fingerprint of the sources; outcomes with another one are not read, nor kept.
    """

    def __init__(self, file: Path, sources: Callable[[], str]) -> None:
        self._file = file
        self._sources = sources
        self._fingerprint = sources()
        self._outcomes = self._read()

    @property
    def good(self) -> dict[str, Outcome]:
        """The outcomes that need not be found out again, by the name of the command."""
        return {name: outcome for name, outcome in self._outcomes.items() if outcome.is_good}

    def keep(self, outcome: Outcome) -> bool:
        """Keep an outcome, in the place of an earlier one of the same command.

        Returns:
            Whether it is kept: not when the sources are others than at the beginning of the run.
        """
        if self._sources() != self._fingerprint:
            return False
        self._outcomes[outcome.name] = outcome
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "fingerprint": self._fingerprint,
            "outcomes": [asdict(outcome) for outcome in self._outcomes.values()],
        }
        written = self._file.with_suffix(".new")
        written.write_text(json.dumps(kept, indent=1))
        written.rename(self._file)
        return True

    def forget(self) -> None:
        """Drop all outcomes."""
        self._outcomes = {}
        self._file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Outcome]:
        if not self._file.exists():
            return {}
        try:
            kept = json.loads(self._file.read_text())
        except json.JSONDecodeError:
            return {}
        if kept["fingerprint"] != self._fingerprint:
            return {}
        return {values["name"]: Outcome(**values) for values in kept["outcomes"]}


def fingerprint(root: Path, names: Sequence[str] = SOURCES) -> str:
    """A digest of all sources, by names and contents, without compiled files; and of Python's version.

    Args:
        root: The checkout.
        names: The files and directories below it that count.
    """
    digest = hashlib.sha256(sys.version.encode())
    for name in names:
        path = root / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
