"""What `sqs-lease doctor` found: values, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from rich.console import Console
from rich.text import Text

from sqs_lease.cli.output import Mark, marked


class Level(StrEnum):
    """How much a finding matters."""

    FINE = "fine"
    NOTE = "note"
    """Worth knowing; nothing has to be changed."""
    BITES = "bites"
    """It will do harm, in a case that comes sooner or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: What was looked at, as a word that does not change between versions.
        level: How much it matters.
        what: What is so, in one line.
        why: What it will do; empty if that is obvious.
        change: What to do about it: a sentence, or a command to be copied (see :attr:`command`).
        command: A command for a shell that makes the change; empty without one.
    """

    check: str
    level: Level
    what: str
    why: str = ""
    change: str = ""
    command: str = ""

    @classmethod
    def fine(cls, check: str, what: str) -> Self:
        """A finding that needs nothing."""
        return cls(check=check, level=Level.FINE, what=what)

    @classmethod
    def note(cls, check: str, what: str, *, why: str = "", change: str = "", command: str = "") -> Self:
        """A finding that is worth knowing."""
        return cls(check=check, level=Level.NOTE, what=what, why=why, change=change, command=command)

    @classmethod
    def harm(cls, check: str, what: str, *, why: str = "", change: str = "", command: str = "") -> Self:
        """A finding that will do harm."""
        return cls(check=check, level=Level.BITES, what=what, why=why, change=change, command=command)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """What was found about one subject: a queue, or this installation of a host.

    Attributes:
        subject: What was examined, as the user named it.
        detail: Its full name, such as the queue's URL; empty without one.
        findings: In the order in which they were looked at.
    """

    subject: str
    detail: str
    findings: tuple[Finding, ...]

    @property
    def bites(self) -> int:
        """How many of the findings will do harm."""
        return sum(finding.level is Level.BITES for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"subject": self.subject, "detail": self.detail, "findings": [asdict(found) for found in self.findings]}


_INDENT: Final = " " * 4
_MARKS: Final = {Level.FINE: Mark.GOOD, Level.NOTE: Mark.NOTE, Level.BITES: Mark.BAD}


def show(examined: Iterable[Examined], screen: Console) -> None:
    """Print findings for people: what bites with its reason and its change, all else in a line."""
    for about in examined:
        screen.print(
            Text.assemble((about.subject, "bold"), f"  {about.detail}" if about.detail else ""), soft_wrap=True
        )
        for finding in about.findings:
            _print_indented(
                finding.what, screen, before=Text.assemble("  ", marked(_MARKS[finding.level], screen), " ")
            )
            if finding.level is Level.FINE:
                continue
            _print_indented(finding.why, screen, style="dim")
            _print_indented(finding.change, screen)
            if finding.command:
                # Never wrapped, so that it can be copied.
                screen.print(Text(f"{_INDENT}$ {finding.command}", style="cyan"), soft_wrap=True)
        screen.print()


def _print_indented(text: str, screen: Console, *, before: Text | None = None, style: str = "") -> None:
    """Print a text behind a margin, in as many lines as it needs, without blanks at their ends."""
    lines = Text(text, style=style).wrap(screen, max(screen.width - len(_INDENT), 20)) if text else ()
    for number, line in enumerate(lines):
        line.rstrip()
        margin = before if before is not None and number == 0 else Text(_INDENT)
        screen.print(Text.assemble(margin, line), soft_wrap=True)
