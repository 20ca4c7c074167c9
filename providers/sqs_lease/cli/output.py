"""How every command prints: tables and text for people, ``--json`` for programs, one line for an error, exit codes.

Results go to standard output, errors to standard error. Message bodies are printed only where a command was asked
for them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from sqs_lease.cli.message_text import harmless
from sqs_lease.sqs.errors import (
    ConfigurationError,
    CredentialsError,
    EndpointError,
    QueueNotFoundError,
    SqsError,
    WrongRegionError,
)


class ExitCode(IntEnum):
    """What the exit codes of all commands mean."""

    FINE = 0
    TROUBLE = 1
    """The command did its work and found trouble, or SQS refused a part of it."""
    BAD_INPUT = 2
    """An argument or the configuration is unusable: nothing was done."""
    INTERRUPTED = 130


class CommandError(Exception):
    """A command cannot go on; the text is one line that says what happened and what to do."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Mark(StrEnum):
    """How a line begins that says how something is; the value is its style."""

    GOOD = "green"
    NOTE = "cyan"
    WARNING = "yellow"
    BAD = "bold red"


_SYMBOLS: Final = {Mark.GOOD: "✓", Mark.NOTE: "·", Mark.WARNING: "!", Mark.BAD: "✗"}
_ASCII_SYMBOLS: Final = {Mark.GOOD: "+", Mark.NOTE: "-", Mark.WARNING: "!", Mark.BAD: "x"}

# Mistakes in what the user named or configured; SQS was not asked to do anything, or knows no such queue.
_BAD_INPUT: Final = (ConfigurationError, CredentialsError, EndpointError, QueueNotFoundError, WrongRegionError)

_NO_OUTPUT: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What writing to standard output fails with: its reader left, or the disk is full or broken."""


def console() -> Console:
    """The console for results: colors in a terminal only, and no guesses at what a number or a path is."""
    return Console(highlight=False)


def marked(mark: Mark, screen: Console) -> Text:
    """The symbol of a mark, in its color; in ASCII where the terminal cannot show more."""
    try:
        "".join(_SYMBOLS.values()).encode(screen.encoding)
    except (LookupError, UnicodeEncodeError):
        return Text(_ASCII_SYMBOLS[mark], style=mark.value)
    return Text(_SYMBOLS[mark], style=mark.value)


def print_json(value: Any) -> None:
    """Print one JSON document; the same input gives the same bytes, in a terminal and in a pipe."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def print_error(message: str) -> None:
    """Print one line to standard error, never wrapped."""
    line = Text.assemble(("Error: ", "bold red"), _one_line(message))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def print_note(message: str) -> None:
    """Print what is worth knowing beside a result, on one line to standard error."""
    line = Text.assemble(("Note: ", "bold cyan"), _one_line(message))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def _one_line(message: str) -> str:
    """Text on one line: what a service answered may have characters in it that a terminal would obey."""
    return harmless(" ".join(message.split()))


@contextmanager
def errors_as_lines() -> Iterator[None]:
    """Turn what a command may raise into one line and an exit code.

    Raises:
        SystemExit: The command cannot go on.
    """
    try:
        yield
        sys.stdout.flush()
    except CommandError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except SqsError as error:
        print_error(str(error))
        sys.exit(ExitCode.BAD_INPUT if isinstance(error, _BAD_INPUT) else ExitCode.TROUBLE)
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except OSError as error:
        if error.errno not in _NO_OUTPUT:
            raise
        # What is left in the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:
            print_error(f"The output cannot be written: {error.strerror}")
        sys.exit(ExitCode.TROUBLE)
