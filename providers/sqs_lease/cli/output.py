"""The output of all commands: tables and text for people, ``--json`` for programs, one line for an error, exit codes.

Results go to standard output, errors to standard error. Message bodies are printed only if an option asks for them.
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

from sqs_lease.cli.message_text import one_line
from sqs_lease.sqs.errors import (
    ConfigurationError,
    CredentialsError,
    EndpointError,
    QueueNotFoundError,
    SqsError,
    WrongRegionError,
)


class ExitCode(IntEnum):
    """The exit codes of all commands."""

    FINE = 0
    TROUBLE = 1
    """The command did its work and found trouble, or SQS refused a part of it."""
    BAD_INPUT = 2
    """An argument or the configuration is unusable: nothing was done."""
    INTERRUPTED = 130


class CommandError(Exception):
    """Error that ends a command; the text is one line with the problem and the remedy."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Mark(StrEnum):
    """The symbol at the beginning of a line with a result; the value is its style."""

    GOOD = "green"
    NOTE = "cyan"
    WARNING = "yellow"
    BAD = "bold red"


_SYMBOLS: Final = {Mark.GOOD: "✓", Mark.NOTE: "·", Mark.WARNING: "!", Mark.BAD: "✗"}
_ASCII_SYMBOLS: Final = {Mark.GOOD: "+", Mark.NOTE: "-", Mark.WARNING: "!", Mark.BAD: "x"}

# Mistakes in arguments or configuration: SQS was not called, or does not have such a queue.
_BAD_INPUT: Final = (ConfigurationError, CredentialsError, EndpointError, QueueNotFoundError, WrongRegionError)

_NO_OUTPUT: Final = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""Error codes of writing to standard output: its reader has ended, or the disk is full or broken."""


def console() -> Console:
    """Return the console for results: colors in a terminal only, and no highlighting of numbers or paths."""
    return Console(highlight=False)


def marked(mark: Mark, screen: Console) -> Text:
    """Return the symbol of a mark, in its color; in ASCII if the terminal cannot show more."""
    try:
        "".join(_SYMBOLS.values()).encode(screen.encoding)
    except (LookupError, UnicodeEncodeError):
        return Text(_ASCII_SYMBOLS[mark], style=mark.value)
    return Text(_SYMBOLS[mark], style=mark.value)


def print_json(value: Any) -> None:
    """Print one JSON document; the same input gives the same bytes, in a terminal and in a pipe.

    Characters that a terminal may obey are JSON's escapes: bodies and names come from strangers.
    """
    lines = json.dumps(value, indent=2, ensure_ascii=False).split("\n")
    sys.stdout.write("\n".join(map(_printable_json, lines)) + "\n")


def _printable_json(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else json.dumps(one)[1:-1] for one in line)


def print_error(message: str) -> None:
    """Print one line to standard error, never wrapped."""
    line = Text.assemble(("Error: ", "bold red"), one_line(message))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


def print_note(message: str) -> None:
    """Print a note beside a result, on one line to standard error."""
    line = Text.assemble(("Note: ", "bold cyan"), one_line(message))
    Console(stderr=True, highlight=False).print(line, soft_wrap=True)


@contextmanager
def errors_as_lines() -> Iterator[None]:
    """Turn the errors of a command into one line and an exit code.

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
        # The rest of the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:
            print_error(f"The output cannot be written: {error.strerror}")
        sys.exit(ExitCode.TROUBLE)
