"""What a job says of an error: where it comes from, what kind it is, and no word of a message's body.

Spark hands on what a function of the user's raised, with its whole text, which may quote a body: it is told without the
words that stand in the batch's messages (:func:`note_what_was_raised`). Spark's own texts quote values of rows, so only
the kind of those is told. Texts are told whole of this package's own errors, which quote no body, and of errors that
are raised before there are any rows.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException, PythonException

from sqs_lease.batch_files.manifest import ManifestError
from sqs_lease.core.failure_rules import printable
from sqs_lease.core.messages import Message
from sqs_lease.ingestion.spec import SpecError
from sqs_lease.spark.errors import IngestionError
from sqs_lease.spark.spark_errors import SPARK_ERRORS

EXPECTED: Final = (IngestionError, ManifestError, SpecError)
"""Errors whose text is enough."""

_SHOWN_CHARACTERS: Final = 2_000
_SHOWN_ERRORS: Final = 5
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
_NOT_THE_USERS: Final = re.compile(r"/(pyspark|sqs_lease|site-packages|dist-packages)[/.]")
_KIND: Final = re.compile(r"^[\w.]+(?=:|$)")
# Whose text names no more than a module: executors without this package are the likeliest mistake.
_TEXT_IS_TOLD: Final = re.compile(r"^(sqs_lease\.[\w.]+|ModuleNotFoundError): ")
_WORD: Final = re.compile(r"\w+")
_SHORT_WORD: Final = 3
"""Longest word that is left out only where it is a word of a message, and not within one: "no" is in "north"."""
_LEFT_OUT: Final = "…"
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_OF_JAVA: Final = re.compile(r"\b(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b")
# Whatever asks for it afterwards fails, too, such as what puts the session's settings back.
_NO_JAVA: Final = (
    "the Java process of Spark's driver has ended, or answers no more: see its log, and whether the machine killed it "
    "because memory was short. The batch can be started again"
)
_OF_THE_MACHINE: Final = ("Python worker exited unexpectedly", "No space left on device")


def one_line(error: Exception) -> str:
    """Say in one line what went wrong, for the starter of the job."""
    if isinstance(error, EXPECTED):
        text = str(error)
    elif any(isinstance(one, Py4JNetworkError) for one in _chain(error)):
        text = _NO_JAVA
    elif isinstance(error, PythonException) and (raised := _raised_in_worker(str(error))):
        said = "".join(f": {note}" for note in getattr(error, "__notes__", ()))
        text = f"{raised}{said} (raised in a Python worker of Spark)"
    elif isinstance(error, SPARK_ERRORS) and not isinstance(error, AnalysisException):
        text = " ".join([type(error).__name__, *_kinds(error)])
    else:
        # Spark's texts go on for pages with plans.
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        text = f"{type(error).__name__} {condition or ''} {str(error).strip().partition(chr(10))[0]}"
    # Names of fields and keys of objects are the sender's: no control character of theirs reaches a log.
    return printable(" ".join(text.split())[:_SHOWN_CHARACTERS])


def note_what_was_raised(error: PythonException, messages: Iterable[Message]) -> None:
    """Add a note to what was raised in a Python worker: its text, without the words that stand in the batch's messages.

    The first line of the text only. What a function decoded before it quoted it (base64, a compressed body, an object
    in S3) is not recognised. Nothing is added where there is no text, or where the whole text is told already.
    """
    last = _last_line(str(error))
    text = "" if last is None or _TEXT_IS_TOLD.match(last) or not _KIND.match(last) else last.partition(": ")[2].strip()
    if text:
        in_messages = _words_in(messages, frozenset(_WORD.findall(text)))
        error.add_note(_WORD.sub(lambda word: _LEFT_OUT if word[0] in in_messages else word[0], text))


def _words_in(messages: Iterable[Message], words: frozenset[str]) -> set[str]:
    """Which of some words stand in bodies or attributes, also as parts of words there."""
    found: set[str] = set()
    for message in messages:
        sent = " ".join([message.body, *_texts(message.message_attributes), *_texts(message.attributes)])
        if "\\u" in sent:
            sent += _ESCAPED.sub(lambda escaped: chr(int(escaped[1], 16)), sent)
        whole = words.intersection(_WORD.findall(sent))
        found |= whole | {word for word in words - found - whole if len(word) > _SHORT_WORD and word in sent}
    return found


def _texts(value: Mapping[str, Any]) -> Iterator[str]:
    for part in value.values():
        if isinstance(part, Mapping):
            yield from _texts(part)
        else:
            yield str(part)


def trace(error: BaseException) -> str:
    """Say where an error was raised, and what it was raised for, in the lines of tracebacks without their texts."""
    lines: list[str] = []
    for told in _chain(error):
        lines += [f"{type(told).__name__} at\n", *traceback.format_tb(told.__traceback__)]
        if isinstance(told, PythonException):
            lines += [f"{line}\n" for line in _frames_in_worker(str(told))]
    return "".join(lines).rstrip()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, what it was raised for, and so on."""
    told: BaseException | None = error
    while told is not None:
        yield told
        told = told.__cause__ or (None if told.__suppress_context__ else told.__context__)


def _raised_in_worker(text: str) -> str | None:
    """The exception at the end of the last traceback in a text: its kind and its place."""
    line = _last_line(text)
    if line is None or _TEXT_IS_TOLD.match(line):
        return line
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    frames = [match.groups() for match in map(_FRAME.match, lines[: lines.index(line)]) if match]
    if not frames:
        return _kind(line)
    of_the_user = [frame for frame in frames if not _NOT_THE_USERS.search(frame[0])]
    file, number, function = (of_the_user or frames)[-1]
    return f"{_kind(line)} at {PurePosixPath(file).name}:{number}, in {function}"


def _last_line(text: str) -> str | None:
    """The line with the exception at the end of the last traceback in a text."""
    _, found, rest = text.rpartition(_TRACEBACK)
    lines = (line for line in rest.splitlines() if line.strip() and not line[0].isspace())
    return next(lines, None) if found else None


def _kind(line: str) -> str:
    kind = _KIND.match(line)
    return kind[0] if kind else "an exception"


def _frames_in_worker(text: str) -> Iterator[str]:
    within = False
    for line in text.splitlines():
        if line == _TRACEBACK:
            within = True
            yield line
        elif within and line.strip() and not line[0].isspace():
            within = False
            yield _kind(line)
        elif within:
            yield line


def _kinds(error: Exception) -> Iterator[str]:
    """Spark's name for an error, and the Java errors and the faults of the machine that its text names."""
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        yield condition
    text = str(error)
    names = dict.fromkeys(_OF_JAVA.findall(text))
    yield from list(names)[:_SHOWN_ERRORS]
    yield from (f"({sign})" for sign in _OF_THE_MACHINE if sign in text)
