"""Drivers that are killed, and several drivers on one table: each message is in it once all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.spark.driver import (
    AFTER_THE_ADMISSION,
    AFTER_THE_APPLICATION,
    AFTER_THE_RETURN,
    BEFORE_THE_COMMIT,
    BEFORE_WRITING,
)
from tests.spark.samples import Place, good, named_files, staged_files, stored_ids

pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[3]
MOMENTS = [BEFORE_WRITING, BEFORE_THE_COMMIT, AFTER_THE_ADMISSION, AFTER_THE_APPLICATION, AFTER_THE_RETURN]


class OtherDriver:
    """A process of ``tests/spark/driver.py``; started when it is first needed, and again when it died."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str] | None = None

    def order(self, root: Path, batches: Sequence[Sequence[int]], *, die: str = "", wait: bool = False) -> None:
        self._say(json.dumps({"root": str(root), "batches": batches, "die": die, "wait": wait}))

    def go_on(self) -> None:
        self._say("")

    def answer(self) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("@"):
            assert line, f"the other driver ended with {process.wait()}"
        answer: dict[str, Any] = json.loads(line[1:])
        return answer

    def exit_code(self) -> int:
        """Wait for its end."""
        code = self._running().wait()
        self.stop()
        return code

    def stop(self) -> None:
        if self._process is not None:
            # It leads a process group of its own, in which its JVM is too.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _say(self, line: str) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver"],
                cwd=self._directory,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'providers'}{os.pathsep}{ROOT}",
                    # A killed process leaves files.
                    "JDK_JAVA_OPTIONS": f'-XX:TieredStopAtLevel=1 "-Djava.io.tmpdir={self._directory}"',
                    "TMPDIR": str(self._directory),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        return self._process


@pytest.fixture(scope="module")
def other_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtherDriver]:
    driver = OtherDriver(tmp_path_factory.mktemp("driver"))
    try:
        yield driver
    finally:
        driver.stop()


def test_a_driver_that_was_overtaken_by_another_process_stores_only_the_rest(
    place: Place, other_driver: OtherDriver
) -> None:
    other_driver.order(place.root, [[1, 2, 3]], wait=True)
    assert other_driver.answer() == {"at": "before the commit"}
    assert place.ingest(good([2, 3, 4])).ingested == 3
    other_driver.go_on()

    theirs = other_driver.answer()

    assert theirs["calls"] == ["commit", "conflict", "commit"]
    assert (theirs["ingested"], theirs["duplicates"], theirs["table_version"]) == (1, 2, 2)
    assert stored_ids(place.table) == ["m1", "m2", "m3", "m4"]


def test_two_drivers_with_overlapping_batches_on_one_table_store_each_message_once(
    place: Place, other_driver: OtherDriver
) -> None:
    starts = range(100, 500, 100)
    other_driver.order(place.root, [list(range(start, start + 60)) for start in starts])
    ours, theirs = [], []

    for start in starts:
        assert other_driver.answer() == {"at": "a batch"}
        ours.append(place.ingest(good(range(start + 40, start + 100))))
        theirs.append(other_driver.answer())

    assert stored_ids(place.table) == [f"m{number}" for number in range(100, 500)]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.ingested + other["ingested"] == 100
        assert mine.duplicates + other["duplicates"] == 20


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_is_killed_and_each_message_is_in_the_table_once_all_the_same(
    place: Place, other_driver: OtherDriver, moment: str
) -> None:
    other_driver.order(place.root, [[1, 2]], die=moment)
    assert other_driver.exit_code() == -signal.SIGKILL
    is_in_the_table = moment in {AFTER_THE_APPLICATION, AFTER_THE_RETURN}
    assert stored_ids(place.table) == (["m1", "m2"] if is_in_the_table else [])

    others = place.ingest(good([3]))

    # From its admission on, any driver may finish the batch: the next one does.
    was_admitted = is_in_the_table or moment == AFTER_THE_ADMISSION
    assert others.ingested == 1
    assert stored_ids(place.table) == (["m1", "m2", "m3"] if was_admitted else ["m3"])

    again = place.ingest(good([1, 2]))
    redelivered = place.ingest(good([1, 2], receive_count=2))

    assert (again.ingested, again.duplicates, again.rows) == (2, 0, 0 if was_admitted else 2)
    assert (redelivered.ingested, redelivered.duplicates) == (0, 2)
    assert stored_ids(place.table) == ["m1", "m2", "m3"]
    assert staged_files(place.table) == named_files(place.table)
    assert list(place.workspace.iterdir()) == []
