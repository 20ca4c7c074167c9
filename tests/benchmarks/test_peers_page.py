"""The page of peers says what the results file says, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.peers import page
from benchmarks.peers.__main__ import merged
from benchmarks.peers.programs import PEERS
from benchmarks.peers.results import FailingWork, Held, LongWork, Outage, Results, Row, Sizes, Throughput, load


def row(
    name: str,
    *,
    requests: int = 10,
    processor_percent: float = 10.0,
    a_second: int = 100,
    microseconds: float | None = 200.0,
) -> Row:
    return Row(
        name=name,
        title=name.title(),
        version="1.0",
        how="by itself",
        ran_on="2026-11-24",
        sizes=Sizes(),
        load=0.1,
        long_work=LongWork(1, 0, requests - 2, 1, 0, deliveries=3, again=0, done=7),
        failing_work=FailingWork(lost=0, delivered_before=0, visible_after_seconds=0.1),
        outages=(Outage(5, deliveries=10, done=0, survived=True),),
        held=Held(1_000, processor_percent, 40.0, 60.0, deliveries=0),
        throughput=Throughput(
            5_000, 1.0, 5_000 / a_second, None if microseconds is None else 5_000 * microseconds / 1e6
        ),
    )


def test_the_tables_of_the_page_are_those_of_the_results_file() -> None:
    text = page.PAGE.read_text()

    assert page.with_results(text, load()) == text


def test_a_peer_that_is_clearly_better_is_named_as_such() -> None:
    rows = [row("ours"), row("other", requests=5, a_second=200, microseconds=50.0)]

    assert list(page.better(rows)) == [
        "Requests for long work: Other 5; Ours 10.",
        "Processor time a message without work: Other 50 µs; Ours 200 µs.",
        "Messages a second: Other 200; Ours 100.",
    ]


def test_without_work_the_consumer_is_what_others_are_compared_with() -> None:
    rows = [row("ours", a_second=10), row("consumer", a_second=300), row("other", requests=5, a_second=200)]

    assert list(page.better(rows)) == ["Requests for long work: Other 5; Ours 10."]


def test_a_row_from_before_processor_time_was_measured_is_not_compared_by_it() -> None:
    rows = (row("ours", microseconds=None), row("other", microseconds=50.0))

    text = page.tables(Results("a machine", rows))

    assert "| Ours | 1000 of 10000 | 10.00 % | 40 MB | 60 | 1.0 s | 100 | - |" in text
    assert "| Other | 1000 of 10000 | 10.00 % | 40 MB | 60 | 1.0 s | 100 | 50 µs |" in text
    assert not list(page.better(rows))


def test_a_peer_that_has_no_long_work_is_not_in_its_table() -> None:
    text = page.tables(Results("a machine", (row("boto3"), replace(row("boto3-10"), long_work=None))))

    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| Boto3")] == [
        "| Boto3",
        "| Boto3",
        "| Boto3-10",
        "| Boto3",
        "| Boto3-10",
    ]


def all_held(found: Row) -> Row:
    return replace(found, sizes=replace(found.sizes, held=1_000))


def test_the_ratios_are_of_the_least_that_a_consumer_does_the_fastest_other_and_the_same_calls() -> None:
    rows = [
        all_held(row("boto3-10", microseconds=100.0, a_second=100)),
        all_held(row("sqs-consumer", microseconds=300.0, a_second=200)),
        all_held(row("consumer", microseconds=107.0, a_second=204, processor_percent=1.1)),
        all_held(row("ours", microseconds=150.0, a_second=100, processor_percent=1.15)),
        all_held(row("same-calls", a_second=1, processor_percent=1.0)),
    ]

    assert list(page.ratios(rows)) == [
        "consumer: processor time a message 1.07 x boto3-10; messages a second 1.02 x the best other (sqs-consumer)",
        "ours: processor time a message 1.50 x boto3-10; messages a second 0.50 x the best other (sqs-consumer)",
        "consumer holding 1000: 1.10 x same-calls",
        "ours holding 1000: 1.15 x same-calls",
    ]


def test_a_ratio_of_holding_says_so_where_the_requests_were_not_the_same() -> None:
    calls = all_held(row("same-calls"))
    assert calls.held is not None
    slow = replace(calls, held=replace(calls.held, requests_a_minute=48.0))

    assert list(page.ratios([all_held(row("ours")), slow])) == [
        "ours: messages a second 1.00 x the best other (same-calls)",
        "ours holding 1000: 1.00 x same-calls, with 1.25 x its requests",
    ]


def test_a_run_without_the_others_has_no_ratios() -> None:
    assert not list(page.ratios([all_held(row("consumer")), all_held(row("ours"))]))


def test_a_peer_that_keeps_its_messages_in_an_outage_in_which_ours_does_not_is_named() -> None:
    kept = replace(row("other"), outages=(Outage(5, deliveries=0, done=10, survived=True),))

    assert list(page.better([row("ours"), kept])) == [
        "Messages that the second consumer was given in the outage that began at 5 s: Other 0; Ours 10."
    ]


def test_a_peer_that_is_better_by_less_than_a_tenth_is_not_named() -> None:
    assert not list(page.better([row("ours"), row("other", processor_percent=9.5)]))


def test_a_peer_that_holds_only_some_is_not_better_at_holding() -> None:
    few = replace(row("other"), held=Held(10, 0.1, 1.0, 1.0, deliveries=0))

    assert not list(page.better([row("ours"), few]))


def test_a_peer_that_could_not_be_measured_has_a_row_that_says_why() -> None:
    missing = replace(
        row("other"),
        problem="not installed: there is no Go",
        long_work=None,
        failing_work=None,
        outages=(),
        held=None,
        throughput=None,
    )
    text = page.tables(Results("a machine", (row("ours"), missing)))

    assert "| Other | - | - | - | - | - | - |" in text
    assert "Other: not installed: there is no Go." in text


def test_peers_that_were_never_run_are_named() -> None:
    text = page.tables(Results("a machine", tuple(row(name) for name in PEERS if name != "celery")))

    assert text.endswith("Not measured yet: Celery, SQS as its broker.")


def test_a_page_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="has lost the marks"):
        page.with_results("# Peers", Results())


def test_a_scenario_that_is_measured_again_leaves_the_figures_of_the_others() -> None:
    former = replace(row("ours", requests=7), sizes=Sizes(held=2_000, throughput=9_000))
    again = replace(row("ours", a_second=300), long_work=None, failing_work=None, outages=(), held=None)

    (found,) = merged(Results("a machine", (former,)), again, ["throughput"]).rows

    assert (found.long_work, found.held, found.throughput) == (former.long_work, former.held, again.throughput)
    assert (found.sizes.held, found.sizes.throughput) == (2_000, again.sizes.throughput)


def test_a_scenario_that_is_measured_again_leaves_the_problems_of_the_others() -> None:
    former = replace(row("ours"), problem="long work: it ended; no work: it was given 3 of 10 messages")
    again = replace(row("ours"), problem="")

    (found,) = merged(Results("a machine", (former,)), again, ["throughput"]).rows

    assert found.problem == "long work: it ended"
