"""A job's text of an error has its kind, its place and its text, and no word of a body."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PythonException, SparkRuntimeException

from sqs_lease.core.messages import Message, Receipt
from sqs_lease.spark.errors import TableError
from sqs_lease.spark.job.error_text import note_what_was_raised, one_line, trace

SECRET = "4711"


def in_worker(*lines: str) -> str:
    """Spark's text when a Python worker raised something."""
    return "\n".join(
        [
            "[PYTHON_EXCEPTION] An exception was thrown from the Python worker:",
            "Traceback (most recent call last):",
            '  File "/opt/spark/python/lib/pyspark.zip/pyspark/worker.py", line 1, in main',
            '  File "/opt/site-packages/sqs_lease/spark/sources/functions.py", line 2, in _answer',
            '  File "/app/orders.py", line 3, in parse',
            "    number = int(body)",
            "             ^^^^^^^^^",
            '  File "/opt/site-packages/library/numbers.py", line 4, in int',
            *lines,
            "",
            "JVM stacktrace:",
            f"org.apache.spark.SparkException: {SECRET}",
        ]
    )


RAISED_AGAIN = [
    f"ValueError: invalid literal: {SECRET}",
    "",
    "During handling of the above exception, another exception occurred:",
    "",
    "Traceback (most recent call last):",
    '  File "/app/orders.py", line 5, in parse',
    "orders.UnknownOrderError: order 4711 has",
    f"no customer {SECRET}",
]
OF_A_PACKAGE = f"sqs_lease.spark.sources.functions.ParserError: the parser gave no column {SECRET}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([f"ValueError: invalid literal: '{SECRET}'"], "ValueError at orders.py:3, in parse"),
        (["KeyError"], "KeyError at orders.py:3, in parse"),
        (RAISED_AGAIN, "orders.UnknownOrderError at orders.py:5, in parse"),
        ([f"<{SECRET}>"], "an exception at orders.py:3, in parse"),
        ([OF_A_PACKAGE], OF_A_PACKAGE),
        (["ModuleNotFoundError: No module named 'orders'"], "ModuleNotFoundError: No module named 'orders'"),
    ],
    ids=["text", "no text", "raised again", "no name", "our own", "no module"],
)
def test_the_error_of_a_python_worker_is_the_error_of_the_job_without_its_text(lines: list[str], said: str) -> None:
    assert one_line(PythonException(in_worker(*lines))) == f"{said} (raised in a Python worker of Spark)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("the model file is missing", "the model file is missing"),
        ("could not convert string to float: '4711'", "could not convert string to float: '…'"),
        ("no flight of Ann Müller in {'carrier': 'UA'}", "no flight of … … in {'…': '…'}"),
        ("what is 1234567?", "what is …?"),
        ("cut short: 123456", "cut short: …"),
        ("tenant blue is unknown", "tenant … is unknown"),
    ],
    ids=["nothing quoted", "a number", "several words", "a word within", "a part of a word", "an attribute"],
)
def test_the_text_of_what_a_function_raised_is_told_without_the_words_of_messages(text: str, said: str) -> None:
    bodies = ('{"id": 4711, "carrier": "UA", "by": "Ann"}', '{"by": "M\\u00fcller", "card": "1234567890"}')
    tenant = {"tenant": {"DataType": "String", "StringValue": "blue"}}
    messages = [Message(Receipt("m", "handle"), body, message_attributes=tenant) for body in bodies]
    error = PythonException(in_worker(f"ValueError: {text}"))

    note_what_was_raised(error, messages)

    assert one_line(error) == f"ValueError at orders.py:3, in parse: {said} (raised in a Python worker of Spark)"


@pytest.mark.parametrize(
    "lines", [["KeyError"], [f"<{SECRET}>: 1"], [OF_A_PACKAGE]], ids=["none", "no name", "our own"]
)
def test_no_text_is_told_where_it_is_missing_or_told_already(lines: list[str]) -> None:
    error = PythonException(in_worker(*lines))
    before = one_line(error)

    note_what_was_raised(error, [])

    assert one_line(error) == before


def test_an_exception_of_which_no_code_of_the_user_is_told_has_the_last_place() -> None:
    text = 'Traceback (most recent call last):\n  File "/opt/pyspark/worker.py", line 9, in main\nEOFError\n'
    assert one_line(PythonException(text)) == "EOFError at worker.py:9, in main (raised in a Python worker of Spark)"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TableError("the table is gone"), "the table is gone"),
        (AnalysisException("there is no table orders\n'Project [*]"), "AnalysisException there is no table orders"),
        (OSError(28, "No space left on device"), "OSError [Errno 28] No space left on device"),
        (PythonException(f"nothing is known: {SECRET}"), "PythonException"),
        (
            SparkRuntimeException(f"Lost task 1: java.lang.NumberFormatException: For input string: {SECRET}"),
            "SparkRuntimeException java.lang.NumberFormatException",
        ),
        (
            SparkRuntimeException("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
            "SparkRuntimeException org.apache.spark.SparkException (Python worker exited unexpectedly)",
        ),
    ],
    ids=["our own", "of a plan", "of the driver", "no traceback", "of Java", "of the machine"],
)
def test_other_errors(error: Exception, said: str) -> None:
    assert one_line(error) == said


def test_text_of_a_sender_adds_no_line_and_no_control_character() -> None:
    said = one_line(TableError("S3 did not give s3://data/a\nerror: forged\x1b[2K\u2028\u202e (SlowDown)"))

    assert said == "S3 did not give s3://data/a error: forged [2K   (SlowDown)"


def test_where_the_java_of_spark_has_ended_that_is_said_whatever_failed_for_it_in_the_end() -> None:
    # As it is where the session's settings are put back.
    last = ConnectionRefusedError(111, "Connection refused")
    assert one_line(last) == "ConnectionRefusedError [Errno 111] Connection refused"

    last.__context__ = Py4JNetworkError("Answer from Java side is empty")
    assert one_line(last).startswith("the Java process of Spark's driver has ended")


def test_the_trace_has_the_frames_of_driver_and_worker_and_no_text() -> None:
    def ingest() -> None:
        try:
            int(f"the secret {SECRET}")
        except ValueError as error:
            raise PythonException(in_worker(*RAISED_AGAIN)) from error

    with pytest.raises(PythonException) as raised:
        ingest()

    said = trace(raised.value)

    assert SECRET not in said
    assert [line for line in said.splitlines() if not line.startswith(" ")] == [
        "PythonException at",
        "Traceback (most recent call last):",
        "ValueError",
        "Traceback (most recent call last):",
        "orders.UnknownOrderError",
        "ValueError at",
    ]
    assert "in ingest" in said
    assert '  File "/app/orders.py", line 5, in parse' in said.splitlines()
