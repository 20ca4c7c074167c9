"""docker/Dockerfile in its stages, and the files that Dockerfile.dockerignore lets through to them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]
from dockerfile_parse.parser import image_from  # type: ignore[import-untyped]

ROOT: Final = Path(__file__).resolve().parents[2]
DOCKERFILE: Final = ROOT / "docker" / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Copy:
    """A COPY instruction."""

    stage: str | None
    """The stage that it copies from; `None` is the context."""
    sources: Sequence[str]
    target: str


@dataclass(frozen=True, slots=True)
class Stage:
    """The instructions between one FROM and the next one."""

    base: str
    """As it is written: an image, an argument or a stage."""
    name: str
    instructions: Sequence[tuple[str, str]]
    """Their names and what follows these, in order."""

    def values(self, instruction: str) -> list[str]:
        """List the texts after each instruction of one kind."""
        return [value for name, value in self.instructions if name == instruction]

    def pairs(self, instruction: str) -> dict[str, str]:
        """The names and values of all instructions of one kind: LABEL, ENV or ARG."""
        return key_values(self.values(instruction))

    def copies(self) -> list[Copy]:
        """The COPY instructions."""
        return [_copy(value) for value in self.values("COPY")]

    def shell_commands(self) -> list[str]:
        """The parts of all RUN instructions between `&&`."""
        return [part.strip() for value in self.values("RUN") for part in value.split("&&")]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A whole file."""

    arguments: Mapping[str, str]
    """The build arguments before the first stage, with their defaults."""
    stages: Mapping[str, Stage]
    """In the order of the file."""

    @classmethod
    def read(cls, path: Path = DOCKERFILE) -> Dockerfile:
        """Read a file in which each stage has a name."""
        arguments: list[str] = []
        stages: dict[str, Stage] = {}
        instructions: list[tuple[str, str]] = []
        for found in DockerfileParser(str(path), env_replace=False).structure:
            name, value = found["instruction"], found["value"]
            if name == "FROM":
                base, stage = image_from(value)
                instructions = []
                stages[stage] = Stage(base, stage, instructions)
            elif stages and name != "COMMENT":
                instructions.append((name, value))
            elif name == "ARG":
                arguments.append(value)
        return cls(key_values(arguments), stages)


class IgnoreFile:
    """The patterns of a .dockerignore file, which keep paths from the builder.

    Of several patterns the last one that matches a path, or a directory above it, decides; `!` lets through.

    Args:
        text: The text of the file.
    """

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        self._patterns = [line for line in lines if line and not line.startswith("#")]
        self._rules = [(line.startswith("!"), _as_regex(line.removeprefix("!"))) for line in self._patterns]

    def lets_through(self, path: Path) -> bool:
        """Whether the builder gets a file, whose path is relative to the context."""
        chain = [path, *path.parents][:-1]
        passes = True
        for is_exception, regex in self._rules:
            if any(regex.fullmatch(part.as_posix()) for part in chain):
                passes = is_exception
        return passes

    def files(self, root: Path) -> Iterator[Path]:
        """The files of a context that the builder gets, relative to it."""
        exceptions = [pattern[1:] for pattern in self._patterns if pattern.startswith("!")]
        below = [root]
        while below:
            for path in sorted(below.pop().iterdir()):
                relative = path.relative_to(root)
                passes = self.lets_through(relative)
                if not path.is_dir() or path.is_symlink():
                    if passes:
                        yield relative
                # An exception may lie in a directory that is left out.
                elif passes or any(exception.startswith(f"{relative.as_posix()}/") for exception in exceptions):
                    below.append(path)


def key_values(values: Sequence[str]) -> dict[str, str]:
    """Read `NAME=VALUE NAME="VALUE"`; a name without a value has an empty one."""
    pairs = (word.partition("=") for value in values for word in shlex.split(value))
    return {name: value for name, _, value in pairs}


def _copy(value: str) -> Copy:
    words = shlex.split(value)
    flags = key_values([word for word in words if word.startswith("--")])
    *sources, target = (word for word in words if not word.startswith("--"))
    return Copy(flags.get("--from"), sources, target)


def _as_regex(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*)", pattern.strip("/"))
    meanings = {"**/": "(?:.*/)?", "*": "[^/]*"}
    return re.compile("".join(meanings.get(part, re.escape(part)) for part in parts))
