"""A terminal or a notebook shows how far an ingestion is, and nothing else does."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

from sqs_lease.spark import progress
from sqs_lease.spark.progress import ProgressBar, progress_bar, watched_jobs
from tests.spark.job.test_progress import RELEASED, Hands, run_until
from tests.spark.samples import Place, good


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_screen(written: str) -> str:
    """What a terminal of one line shows of a text: a carriage return goes back to its start, and nothing is erased."""
    line: list[str] = []
    position = 0
    for character in written:
        if character == "\r":
            position = 0
        else:
            line[position : position + 1] = character
            position += 1
    return "".join(line).rstrip()


def test_the_line_says_what_is_done_and_how_many_tasks_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    screen, clock = Terminal(), Hands()
    bar = ProgressBar("batch 0123456789abcdef0123456789abcdef", screen, clock)

    bar.show("parsing and writing rows", [(3, 3, 8), (4, 0, 4)])
    assert on_screen(screen.getvalue()) == (
        "batch 0123456789abcde...: parsing and writing rows [=======>                      ] 3 of 12 tasks, 0 s"
    )
    clock.seconds = 75.9
    bar.show("committing", [])
    assert on_screen(screen.getvalue()) == "batch 0123456789abcde...: committing, 75 s"
    bar.show("", [(5, 4, 4)])
    assert "[==============================] 4 of 4 tasks" in on_screen(screen.getvalue())
    bar.clear()
    assert on_screen(screen.getvalue()) == ""


def test_the_line_is_no_longer_than_the_terminal_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen = Terminal()
    ProgressBar("batch 17", screen).show("committing", [])
    assert on_screen(screen.getvalue()) == "batch 17: committin"


def test_a_terminal_that_is_gone_stops_nothing() -> None:
    screen = Terminal()
    bar = ProgressBar("batch 17", screen)
    bar.show("committing", [])
    screen.close()
    bar.show("committing", [])
    bar.clear()


def test_there_is_a_bar_in_terminals_and_notebooks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ipykernel = ModuleType("ipykernel.iostream")
    of_a_notebook = type("OutStream", (io.StringIO,), {"__module__": ipykernel.__name__})
    shown = []
    for stream in (Terminal(), of_a_notebook(), io.StringIO(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        shown.append(progress_bar("batch 17") is not None)
    assert shown == [True, True, False, False]


@pytest.mark.processes
def test_the_stages_that_spark_runs_are_shown_and_the_line_is_gone_afterwards(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.05)
    monkeypatch.setenv("COLUMNS", "120")
    released = tmp_path / RELEASED

    class Releasing(Terminal):
        """Lets the task go once its progress was shown."""

        def write(self, text: str) -> int:
            if "counting [" in text and "1 of 2 tasks" in text:
                released.touch()
            return super().write(text)

    screen = Releasing()
    with watched_jobs(spark, "batch a", bar=ProgressBar("batch a", screen)) as watch:
        watch.begin_step("counting")
        assert run_until(spark, released) == 2
    assert on_screen(screen.getvalue()) == ""


@pytest.mark.processes
def test_an_ingestion_shows_its_steps(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "TICK_SECONDS", 0.001)
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)

    assert place.ingest(good([1]), progress=True).ingested == 1

    for step in ("opening the table", "parsing and writing rows"):
        assert f": {step}" in screen.getvalue()
    assert on_screen(screen.getvalue()) == ""
    place.ingest(good([2]))
    assert on_screen(screen.getvalue()) == ""
