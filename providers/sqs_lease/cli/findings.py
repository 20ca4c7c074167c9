"""The findings of `sqs-lease doctor`: values, and their output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final, Self

from rich.console import Console
from rich.text import Text

from sqs_lease.cli.message_text import harmless, one_line
from sqs_lease.cli.output import Mark, marked


class Level(StrEnum):
    """How much a finding matters."""

    FINE = "fine"
    NOTE = "note"
    """Useful to know; a change is not necessary."""
    PROBLEM = "problem"
    """A problem: it will do harm in a case that comes sooner or later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check.

    Attributes:
        check: The name of the check, which does not change between versions.
        level: How much it matters.
        what: The fact, in one line.
        why: Its effect; empty if that is obvious.
        change: The remedy: a sentence, or the introduction of a command (see :attr:`command`).
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
        """Make a finding that needs no change."""
        return cls(check=check, level=Level.FINE, what=what)

    @classmethod
    def note(cls, check: str, what: str, *, why: str = "", change: str = "", command: str = "") -> Self:
        """Make a finding that is useful to know."""
        return cls(check=check, level=Level.NOTE, what=what, why=why, change=change, command=command)

    @classmethod
    def harm(cls, check: str, what: str, *, why: str = "", change: str = "", command: str = "") -> Self:
        """Make a finding of a problem."""
        return cls(check=check, level=Level.PROBLEM, what=what, why=why, change=change, command=command)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectReport:
    """The findings about one subject: a queue, or this installation of a host.

    Attributes:
        subject: The subject, as the user named it.
        detail: Its full name, such as the queue's URL; empty without one.
        findings: The findings, in the order of the checks.
    """

    subject: str
    detail: str
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> int:
        """The number of problems."""
        return sum(finding.level is Level.PROBLEM for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """Return it as plain values, for JSON."""
        return {"subject": self.subject, "detail": self.detail, "findings": [asdict(found) for found in self.findings]}


_INDENT: Final = " " * 4
_MARKS: Final = {Level.FINE: Mark.GOOD, Level.NOTE: Mark.NOTE, Level.PROBLEM: Mark.BAD}


def show(examined: Iterable[SubjectReport], screen: Console) -> None:
    """Print findings for people: problems with their reason and remedy, the others in a line."""
    for about in examined:
        detail = f"  {one_line(about.detail)}" if about.detail else ""
        screen.print(Text.assemble((one_line(about.subject), "bold"), detail), soft_wrap=True)
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
                screen.print(Text(f"{_INDENT}$ {harmless(finding.command)}", style="cyan"), soft_wrap=True)
        screen.print()


def _print_indented(text: str, screen: Console, *, before: Text | None = None, style: str = "") -> None:
    """Print a text with an indent, in as many lines as it needs, without blanks at their ends.

    Texts quote the service: it gets no line, and no character that a terminal obeys.
    """
    lines = Text(one_line(text), style=style).wrap(screen, max(screen.width - len(_INDENT), 20)) if text else ()
    for number, line in enumerate(lines):
        line.rstrip()
        margin = before if before is not None and number == 0 else Text(_INDENT)
        screen.print(Text.assemble(margin, line), soft_wrap=True)
