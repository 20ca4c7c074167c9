"""Builds the distribution from the checkout, and installs it into fresh environments at the pinned versions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from uv import find_uv_bin

ROOT: Final = Path(__file__).resolve().parents[3]
PINNED: Final = ROOT / "requirements" / "development.txt"

IMPORT_EACH: Final = """
import importlib, json, sys

def missing(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        return error.name
    return ""

print(json.dumps({name: missing(name) for name in json.loads(sys.argv[1])}))
"""

LIST_DISTRIBUTIONS: Final = """
import json
from importlib.metadata import distributions
print(json.dumps([distribution.name for distribution in distributions()]))
"""


def run(
    *command: str | Path, directory: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, its output captured; ``environment`` is all of it, None inherits ours."""
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def output_of(*command: str | Path, directory: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return the output of a command; an exit code other than 0 fails the test with all that it said."""
    done = run(*command, directory=directory, environment=environment)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(directory: Path, *options: str) -> None:
    """Build into a directory from the checkout, by the hatchling that is installed here."""
    directory.mkdir()
    command = (sys.executable, "-m", "build", "--no-isolation", *options, "--outdir", str(directory), str(ROOT))
    output_of(*command, directory=directory)


@dataclass(frozen=True, slots=True)
class Installation:
    """A virtual environment with the distribution in it, and nothing but what that asked for."""

    directory: Path

    def command(self, name: str) -> Path:
        """The path of one of its programs."""
        return self.directory / "bin" / name

    def output_of(self, program: str, *arguments: str) -> str:
        """Return the output of one of its programs. It sees nothing of the checkout, and a home of its own."""
        return output_of(
            self.command(program),
            *arguments,
            directory=self.directory,
            environment={
                "PATH": os.pathsep.join([str(self.command("")), os.environ["PATH"]]),
                "HOME": str(self.directory),
                "AIRFLOW_HOME": str(self.directory / "airflow"),
            },
        )

    def distributions(self) -> set[str]:
        """The normalized names of what is installed."""
        names = json.loads(self.output_of("python", "-I", "-c", LIST_DISTRIBUTIONS))
        return {re.sub(r"[-_.]+", "-", name).lower() for name in names}

    def missing_modules(self, *modules: str) -> dict[str, str]:
        """For each of these that cannot be imported, the module that it could not find; other errors fail."""
        missing = json.loads(self.output_of("python", "-I", "-c", IMPORT_EACH, json.dumps(modules)))
        return {module: name for module, name in missing.items() if name}


def install(wheel: Path, extra: str, directory: Path) -> Installation:
    """Install the wheel with one extra (or none, "") into a new environment."""
    uv = find_uv_bin()
    output_of(uv, "venv", "--quiet", "--python", sys.executable, directory, directory=directory.parent)
    installation = Installation(directory)
    requirement = f"sqs-lease[{extra}] @ {wheel.as_uri()}" if extra else f"sqs-lease @ {wheel.as_uri()}"
    command = (uv, "pip", "install", "--python", installation.command("python"), "--constraint", PINNED, requirement)
    # The setup of the checkout left everything in uv's cache; the registry is asked only when it is not there.
    if run(*command, "--offline", directory=directory).returncode != 0:
        output_of(*command, directory=directory)
    return installation
