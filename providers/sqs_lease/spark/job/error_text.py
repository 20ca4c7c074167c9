"""Text of a job's errors: their kind and their place, without any word of a message's body.

The text reaches the log of an orchestrator, where a user needs it to act on the error. It depends on the error:

- A user's function: Spark passes on the whole text, and that may quote a body, for example in the error of
  ``int(body)``. So each word that occurs in the batch's messages is left out (:func:`note_what_was_raised`). That
  leaves out too much rather than too little: a word such as "airport" is left out if bodies have it.
- Spark's own errors: their texts quote values of rows, so only the condition and the names of Java's exceptions are
  shown.
- This package's errors, which never quote a body, and errors before there are any rows: the whole text.
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
"""Errors whose text is enough, without a traceback."""

_SHOWN_CHARACTERS: Final = 2_000
_SHOWN_ERRORS: Final = 5
_TRACEBACK: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'^\s+File "([^"]+)", line (\d+), in (.+)$')
_NOT_THE_USERS: Final = re.compile(r"/(pyspark|sqs_lease|site-packages|dist-packages)[/.]")
_KIND: Final = re.compile(r"^[\w.]+(?=:|$)")
# Errors whose text names only a module are shown whole: executors without this package are the likeliest mistake.
_TEXT_IS_TOLD: Final = re.compile(r"^(sqs_lease\.[\w.]+|ModuleNotFoundError): ")
_WORD: Final = re.compile(r"\w+")
_SHORT_WORD: Final = 3
"""A word of at most so many letters is left out only if a message has it as a whole word: "no" is in "north"."""
_LEFT_OUT: Final = "…"
_ESCAPED: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
_OF_JAVA: Final = re.compile(r"\b(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b")
# Every later call to Java fails, too, for example the one that restores the session's settings.
_NO_JAVA: Final = (
    "the Java process of Spark's driver has ended, or does not answer: look at its log, and check whether the machine "
    "killed it because memory was short. The batch can be started again"
)
_OF_THE_MACHINE: Final = ("Python worker exited unexpectedly", "No space left on device")


def one_line(error: Exception) -> str:
    """Return one line about an error, for the process that started the job."""
    if isinstance(error, EXPECTED):
        text = str(error)
    elif any(isinstance(one, Py4JNetworkError) for one in _chain(error)):
        text = _NO_JAVA
    elif isinstance(error, PythonException) and (raised := _raised_in_worker(str(error))):
        notes = "".join(f": {note}" for note in getattr(error, "__notes__", ()))
        text = f"{raised}{notes} (raised in a Python worker of Spark)"
    elif isinstance(error, SPARK_ERRORS) and not isinstance(error, AnalysisException):
        text = " ".join([type(error).__name__, *_kinds(error)])
    else:
        # Only the first line, because Spark's texts have pages of plans.
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        text = f"{type(error).__name__} {condition or ''} {str(error).strip().partition(chr(10))[0]}"
    # Made printable: names of fields and keys of objects come from senders, and may have control characters.
    return printable(" ".join(text.split())[:_SHOWN_CHARACTERS])


def note_what_was_raised(error: PythonException, messages: Iterable[Message]) -> None:
    """Add a note to an error of a Python worker: its text, without the words that occur in the batch's messages.

    Only the first line of the text is used. If a function quotes something that it decoded first (base64, a compressed
    body, an object in S3), its words are not recognised. Nothing is added if there is no text, or if :func:`one_line`
    shows the whole text anyway.
    """
    last = _last_line(str(error))
    text = "" if last is None or _TEXT_IS_TOLD.match(last) or not _KIND.match(last) else last.partition(": ")[2].strip()
    if text:
        in_messages = _words_in(messages, frozenset(_WORD.findall(text)))
        error.add_note(_WORD.sub(lambda word: _LEFT_OUT if word[0] in in_messages else word[0], text))


def _words_in(messages: Iterable[Message], words: frozenset[str]) -> set[str]:
    """Return the words that occur in bodies or attributes, also as parts of words there."""
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
    """Return the tracebacks of an error and of its causes, without their texts."""
    lines: list[str] = []
    for one in _chain(error):
        lines += [f"{type(one).__name__} at\n", *traceback.format_tb(one.__traceback__)]
        if isinstance(one, PythonException):
            lines += [f"{line}\n" for line in _frames_in_worker(str(one))]
    return "".join(lines).rstrip()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that, and so on."""
    one: BaseException | None = error
    while one is not None:
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _raised_in_worker(text: str) -> str | None:
    """Return kind and place of the exception at the end of the last traceback in a text."""
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
    """Return the line with the exception at the end of the last traceback in a text."""
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
    """Yield Spark's name for an error, and the Java errors and faults of the machine in its text."""
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        yield condition
    text = str(error)
    names = dict.fromkeys(_OF_JAVA.findall(text))
    yield from list(names)[:_SHOWN_ERRORS]
    yield from (f"({sign})" for sign in _OF_THE_MACHINE if sign in text)
