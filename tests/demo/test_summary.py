"""When the figures at the end of the demo add up, and what is said when they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from demo.queues import Counts, Published
from demo.summary import BatchOutcome, Summary

BATCH = BatchOutcome("run 1", received=3, extensions=6, extension_calls=2, lost=0, retried=1)
RIGHT = Summary(
    published=Published(flights=frozenset({"a", "b", "c"}), malformed=frozenset({"x", "y"})),
    table_ids=["b", "a", "c"],
    dead_letter_ids=frozenset({"x", "y"}),
    left=Counts(visible=0, in_flight=0, delayed=0),
    batches=[BATCH, BatchOutcome("run 2", received=2, extensions=2, extension_calls=1, lost=0, retried=0)],
    failed_runs=[],
)


def test_figures_add_up_when_every_message_is_where_it_belongs() -> None:
    assert RIGHT.problems() == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (replace(RIGHT, table_ids=["a", "b", "c", "b"]), "1 rows of the table repeat a message"),
        (replace(RIGHT, table_ids=["a", "c"]), "1 published flights are missing from the table"),
        (replace(RIGHT, table_ids=["a", "b", "c", "x"]), "1 rows of the table are not published flights"),
        (
            replace(RIGHT, dead_letter_ids=frozenset({"x"})),
            "1 malformed messages are missing from the dead-letter queue",
        ),
        (
            replace(RIGHT, dead_letter_ids=frozenset({"x", "y", "a"})),
            "1 messages in the dead-letter queue are not malformed",
        ),
        (replace(RIGHT, left=Counts(1, 0, 0)), "1 messages are left in the queue"),
        (replace(RIGHT, left=Counts(0, 2, 0)), "2 messages are left in the queue"),
        (replace(RIGHT, left=Counts(0, 0, 3)), "3 messages are left in the queue"),
        (replace(RIGHT, batches=[replace(BATCH, lost=1)]), "1 leases were lost"),
        (
            replace(RIGHT, batches=[replace(BATCH, extensions=2)]),
            "the run run 1 extended 2 times for 3 messages",
        ),
        (replace(RIGHT, failed_runs=["run 7"]), "1 runs failed: run 7"),
        (
            replace(RIGHT, batches=[replace(BATCH, retried=0)]),
            "no task was tried again, although one was told to fail on its first try",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_figures_that_do_not_add_up_are_named(wrong: Summary, problem: str) -> None:
    assert wrong.problems() == [problem]


def test_the_summary_has_every_figure_on_a_line_of_its_own() -> None:
    wrong = replace(RIGHT, table_ids=["a", "a"], left=Counts(visible=4, in_flight=5, delayed=0))

    figures = {line[:18].strip(): line[18:].split()[0] for line in wrong.lines()}

    assert figures == {
        "published": "5",
        "in the table": "2",
        "duplicates": "1",
        "missing": "2",
        "extensions sent": "8",
        "retried": "1",
        "dead-lettered": "2",
        "left in the queue": "9",
    }
