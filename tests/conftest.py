"""Shared by tests of several packages."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pytest
from botocore.loaders import JSONFileLoader

from demo.sqs_server import SqsServer, sqs_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure() -> None:
    # A shell's job in the background ignores SIGINT, and so would all that these tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


LONGEST_WAIT_SECONDS: Final = 1.0
"""For how long a test may wait by the clock; what takes longer is awaited, in small steps."""


@pytest.fixture(autouse=True, scope="session")
def no_long_waits() -> Iterator[None]:
    """Have `time.sleep` refuse to wait for long, in tests and in what they test."""
    sleep = time.sleep

    def sleep_briefly(seconds: float) -> None:
        assert seconds <= LONGEST_WAIT_SECONDS, f"a test must not sleep for {seconds} s: await what it waits for"
        sleep(seconds)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "sleep", sleep_briefly)
        yield


@pytest.fixture(scope="session")
def server() -> Iterator[SqsServer]:
    """A real SQS server process; each test makes queues of its own."""
    with sqs_server() as running:
        yield running


@pytest.fixture
def read_by_botocore(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the data files that botocore has read since the test began; a test may clear the list."""
    read: list[str] = []
    load_file = JSONFileLoader.load_file

    def load_file_and_note(self: JSONFileLoader, file_path: str) -> Any:
        read.append(file_path)
        return load_file(self, file_path)

    monkeypatch.setattr(JSONFileLoader, "load_file", load_file_and_note)
    return read


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of a run that ask for it: a process has no more than one session."""
    # By name: `make check` follows imports, and after this one each test would be a test of Spark's modules.
    with import_module("tests.spark.shared_session").shared_session() as session:
        yield session
