"""A count of habits of wording that non-native readers stumble over, room by room: ``make lint`` runs it.

It reads the comments and string literals of Python files (docstrings, errors, logs), and Markdown, YAML and the page of
leases whole.
It does not read :data:`UNREAD`, the check itself and its test: they name the habits and give examples of them.
A count may only fall. It must equal its number in :data:`LEFT`, so that each reworded sentence lowers the number.
"""

# ruff: noqa: T201 - the report is for people

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

LEFT: Final[dict[str, int]] = {
    ".": 0,
    "airflow": 0,
    "batch_files": 0,
    "benchmarks": 0,
    "cli": 0,
    "core": 0,
    "dags": 0,
    "dagster": 0,
    "dagster_defs": 0,
    "demo": 0,
    "docker": 0,
    "docs": 0,
    "ingestion": 0,
    "keeper": 0,
    "spark": 0,
    "sqs": 0,
    "sqs_lease": 0,
    "testing": 0,
    "tests": 0,
}
"""The sentences left in each room; the rooms of the package by their own names, ``.`` for files in no directory."""

SUFFIXES: Final = {".html", ".js", ".md", ".py", ".yaml", ".yml"}

PLACES: Final = ("providers/sqs_lease", "benchmarks", "dags", "dagster_defs", "demo", "docker", "docs", "tests")

UNREAD: Final = {"tests/architecture/plain_english.py", "tests/architecture/test_plain_english.py"}

HABITS: Final = {
    # Capitalised, and not a question: "What becomes of a batch.", but neither "Tells what ..." nor "What is a lease?".
    "question word as subject": (
        r"(?:\A|[.!?:|]\s+|\n\s*\n\s*|^\s*[#*>/-]+\s+)(?:What|Who|Whose|Which)\b(?! to\b|[^.!?]*\?)"
    ),
    "nobody, somebody, whoever": r"\b(?i:nobody|somebody|whoever)\b(?!`)",
    "anew": r"\banew\b",
    # "It is no record": plainly, "it is not a record". "There is no record" is plain, and so is "no longer".
    "is no, are none": r"(?<![Tt]here )\bis no\b(?! longer| more)|\bare none\b",
}
"""The patterns to count, by the name that the report gives them."""


def habits_in(text: str) -> Iterator[tuple[int, str]]:
    """Find the habits in a text: the offset of each, and its name."""
    for name, pattern in HABITS.items():
        for match in re.finditer(pattern, text, re.MULTILINE):
            yield match.end(), name


def habits_of(path: Path) -> Iterator[tuple[int, str]]:
    """Find the habits in a file: the line of each, and its name."""
    source = path.read_text(encoding="utf-8")
    for line, text in texts_of(source) if path.suffix == ".py" else [(1, source)]:
        for offset, name in habits_in(text):
            yield line + text.count("\n", 0, offset), name


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module with their first lines: string literals, and comments on adjacent lines as one."""
    tree = ast.parse(source)
    in_f_strings = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and node not in in_f_strings and " " in str(node.value):
            # A literal without a space is a name, such as that of the user `nobody`.
            yield node.lineno, str(node.value)
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != first + len(lines):
                yield first, "\n".join(lines)
                lines = []
            first = first if lines else token.start[0]
            lines.append(token.string.lstrip("#: "))
    if lines:
        yield first, "\n".join(lines)


def files_by_room(root: Path) -> dict[str, list[Path]]:
    """The files that people read, by room."""
    rooms: dict[str, list[Path]] = defaultdict(list)
    rooms["."] = sorted(root.glob("*.md"))
    for place in PLACES:
        for path in sorted((root / place).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.suffix in SUFFIXES and "node_modules" not in path.parts and name not in UNREAD:
                below = path.relative_to(root / place).parts
                room = place if place != PLACES[0] else below[0] if len(below) > 1 else "sqs_lease"
                rooms[room].append(path)
    return dict(rooms)


def found(root: Path) -> dict[str, list[str]]:
    """All habits by room, each as ``file:line: its name``."""
    return {
        room: [f"{path.relative_to(root)}:{line}: {name}" for path in paths for line, name in sorted(habits_of(path))]
        for room, paths in files_by_room(root).items()
    }


def wrong(found_by_room: dict[str, list[str]], left: dict[str, int]) -> list[str]:
    """Say which numbers of a table are not the counts, and where the sentences are that are too many."""
    complaints = []
    for room in sorted(found_by_room.keys() | left.keys()):
        sentences, number = found_by_room.get(room, []), left.get(room, 0)
        if len(sentences) > number:
            complaints += [*sentences, f"{room}: {len(sentences)} habits, {number} allowed: reword yours (above)"]
        elif len(sentences) < number:
            complaints.append(f"{room}: {len(sentences)} habits, {number} allowed: lower the number in {__file__}")
    return complaints


if __name__ == "__main__":
    if "--list" in sys.argv:
        print(*(line for lines in found(ROOT).values() for line in lines), sep="\n")
    elif complaints := wrong(found(ROOT), LEFT):
        sys.exit("\n".join(complaints))
