"""`sqs-lease plan`: what the renewal policies would cost, counted by holding a batch in virtual time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.ledger import calls_in_an_hour
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from tests.cli.commands import sqs_lease


def planned(*arguments: str) -> dict[str, Any]:
    ran = sqs_lease("plan", "--json", *arguments)
    assert (ran.exit_code, ran.err) == (0, "")
    answer: dict[str, Any] = json.loads(ran.out)
    answer["policies"] = {one["policy"]: one for one in answer["policies"]}
    return answer


def calls(answer: dict[str, Any]) -> dict[str, int]:
    return {name: one["calls"]["total"] for name, one in answer["policies"].items()}


def test_it_counts_the_calls_that_the_documentation_names() -> None:
    # docs/how-it-works.md, "Extending: renewal policies".
    assert calls(planned("--messages", "1000", "--work", "1h", "--visibility", "30")) == {
        "growing": 1_600,
        "threshold": 14_500,
        "buffered": 12_200,
        "fixed": 24_100,
        "never": 200,
    }


@pytest.mark.parametrize(
    "policy",
    [
        Growing(visibility=30),
        Threshold(visibility=30),
        Buffered(visibility=30),
        Fixed(visibility=30, every=15),
        Never(visibility=30),
    ],
    ids=lambda policy: type(policy).__name__,
)
def test_one_message_in_virtual_time_tells_about_many(policy: RenewalPolicy) -> None:
    name = type(policy).__name__.lower()

    # There, the ledger holds all of them.
    assert calls(planned("--messages", "100"))[name] == calls_in_an_hour(policy, count=100)


def test_the_wait_after_a_crash_is_the_longest_extension_and_grows_with_the_work() -> None:
    def wait(work: str) -> float:
        seconds: float = planned("--work", work)["policies"]["growing"]["visible_within_seconds_after_crash"]
        return seconds

    # At most as long as was worked, and never longer than the ceiling of 15 minutes.
    assert 60 <= wait("5m") <= 300
    assert wait("1h") == wait("11h") == 900


def test_work_within_the_visibility_timeout_costs_a_receive_and_a_delete_for_ten_messages() -> None:
    answer = planned("--messages", "25", "--work", "10", "--visibility", "60")

    assert set(calls(answer).values()) == {6}
    assert answer["policies"]["never"]["visible_while_working_after_seconds"] is None


def test_a_policy_that_does_not_hold_the_messages_is_named() -> None:
    policies = planned("--work", "13h", "--messages", "10", "--visibility", "15m")["policies"]

    assert policies["never"]["visible_while_working_after_seconds"] == 900
    # SQS itself ends every lease 12 hours after the receive.
    assert policies["growing"]["visible_while_working_after_seconds"] == pytest.approx(12 * 3_600, abs=10)
    ran = sqs_lease("plan", "--work", "13h", "--messages", "10", "--visibility", "15m")
    assert "never: the messages are visible again after 15 min, while the work goes on" in " ".join(ran.out.split())
    assert "SQS keeps a message invisible for 12 h after its receive at most" in " ".join(ran.out.split())
    assert "longer than 12 h" not in sqs_lease("plan", "--work", "1h").out


def test_a_months_price_follows_from_how_often_there_is_a_batch() -> None:
    one = planned("--every", "1d", "--price", "0.5")["policies"]["growing"]

    assert one["requests_a_month"] == 30 * 1_600
    assert one["dollars_a_month"] == 0.024
    assert planned("--price", "0")["policies"]["growing"]["dollars_a_month"] == 0


@pytest.mark.parametrize("columns", [50, 80, 120])
def test_no_figure_is_cut_in_any_width(columns: int) -> None:
    ran = sqs_lease("plan", "--messages", "20000", columns=columns)

    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= columns


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--work", "soon"], "--work: 'soon' is not a duration; write 90, 30s, 15m, 1h30m or 2d"),
        (["--work", "0"], "--work must be longer than 0 seconds"),
        (["--every", "0"], "--every must be longer than 0 seconds"),
        (["--visibility", "13h"], "--visibility must be 1 second to 12 hours, not 13 h"),
        (["--messages", "0"], "Invalid value for '--messages'"),
        (["--price", "inf"], "Invalid value for '--price'"),
        (["--work", "9" * 400], "--work must not be longer than 3,650 days"),
    ],
)
def test_input_that_it_cannot_use_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    ran = sqs_lease("plan", *arguments)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_an_hour_is_counted_at_the_shortest_visibility_timeout() -> None:
    extensions = {
        name: one["calls"]["extend"]
        for name, one in planned("--visibility", "1", "--work", "1h", "--messages", "10")["policies"].items()
    }

    # Twice a second, and none is extended more often.
    assert extensions["fixed"] == pytest.approx(3_600 * 2, rel=0.001)
    assert max(extensions.values()) == pytest.approx(3_600 * 2, rel=0.001)
