"""`sqs-lease plan`: what the renewal policies would cost, counted by holding a batch in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from sqs_lease.cli.forecast import MOST_EXTENSIONS, forecast
from sqs_lease.cli.plan import SIMULATED_MESSAGES
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold
from tests.cli.commands import sqs_lease

PNG = b"\x89PNG\r\n\x1a\n"


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
def test_a_few_messages_in_virtual_time_tell_about_many(policy: RenewalPolicy) -> None:
    few = forecast(policy, messages=20, work_seconds=900)
    many = forecast(policy, messages=1_000, work_seconds=900)

    assert (many.receives, many.extends, many.deletes) == (few.receives * 50, few.extends * 50, few.deletes * 50)
    assert many.longest_wait_seconds == few.longest_wait_seconds
    # Of a hundred calls at one moment, some wait until others were answered.
    if few.least_left_seconds is not None and many.least_left_seconds is not None:
        assert many.least_left_seconds == pytest.approx(few.least_left_seconds, abs=1)


def test_the_wait_after_a_crash_is_the_longest_extension_and_grows_with_the_work() -> None:
    def wait(work: str) -> float:
        seconds: float = planned("--work", work)["policies"]["growing"]["visible_within_seconds_after_crash"]
        return seconds

    # At most as long as was worked, and never longer than the ceiling of 15 minutes.
    assert 60 <= wait("5m") <= 300
    assert wait("1h") == wait("11h") == 900


def test_a_takeover_has_what_is_left_when_an_extension_is_due() -> None:
    policies = planned("--visibility", "3m")["policies"]

    assert policies["growing"]["seconds_for_takeover"] == pytest.approx(60)
    assert policies["threshold"]["seconds_for_takeover"] == pytest.approx(5)
    assert policies["fixed"]["seconds_for_takeover"] == pytest.approx(90)
    assert policies["never"]["seconds_for_takeover"] is None


def test_work_within_the_visibility_timeout_costs_a_receive_and_a_delete_for_ten_messages() -> None:
    answer = planned("--messages", "25", "--work", "10", "--visibility", "60")

    assert set(calls(answer).values()) == {6}
    assert answer["policies"]["never"]["visible_while_working_after_seconds"] is None


def test_what_does_not_hold_the_messages_is_said() -> None:
    policies = planned("--work", "13h", "--messages", "10", "--visibility", "15m")["policies"]

    assert policies["never"]["visible_while_working_after_seconds"] == 900
    # SQS itself ends every lease 12 hours after the receive.
    assert policies["growing"]["visible_while_working_after_seconds"] == pytest.approx(12 * 3_600, abs=10)
    ran = sqs_lease("plan", "--work", "13h", "--messages", "10", "--visibility", "15m")
    assert "never: the messages are visible again after 15 min, while the work goes on" in " ".join(ran.out.split())
    assert "SQS keeps no message invisible for longer than 12 h" in " ".join(ran.out.split())
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
        (["--plot", "plan.txt"], "--plot takes a file that ends in .png or .svg, not 'plan.txt'"),
        (["--plot", "nowhere/plan.png"], "--plot: there is no directory 'nowhere'"),
    ],
)
def test_what_it_cannot_use_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    ran = sqs_lease("plan", *arguments)

    assert (ran.exit_code, ran.out) == (2, "")
    assert says in ran.err
    assert ran.err.count("\n") == 1


def test_more_calls_than_it_counts_are_refused_and_not_counted_for_minutes() -> None:
    ran = sqs_lease("plan", "--visibility", "1", "--work", "12h", "--json")

    assert (ran.exit_code, ran.out) == (2, "")
    assert "threshold would make more than 20,000 calls to extend 20 messages" in ran.err
    assert "with a visibility timeout of 1 s, --work can be up to 1 h 23 min" in ran.err
    assert ran.err.count("\n") == 1


def test_twelve_hours_are_counted_from_a_visibility_timeout_of_ten_seconds_on() -> None:
    held = forecast(Threshold(visibility=10), messages=SIMULATED_MESSAGES, work_seconds=12 * 3_600)

    assert 17_000 < held.extends < MOST_EXTENSIONS


def test_it_draws_a_png_and_an_svg(tmp_path: Path) -> None:
    for name in ("plan.png", "plan.svg"):
        ran = sqs_lease("plan", "--work", "5m", "--plot", str(tmp_path / name), columns=200)
        assert ran.exit_code == 0
        assert f"Drawn: {tmp_path / name}\n" in ran.out

    assert (tmp_path / "plan.png").read_bytes().startswith(PNG)
    drawing = ET.parse(tmp_path / "plan.svg").getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"


def test_json_stays_json_with_a_drawing(tmp_path: Path) -> None:
    assert planned("--work", "5m", "--plot", str(tmp_path / "plan.png"))["messages"] == 1_000
    assert (tmp_path / "plan.png").exists()


def test_a_drawing_without_matplotlib_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['matplotlib'] = None; from sqs_lease.cli.__main__ import main; main()"
    command = [sys.executable, "-c", code, "plan", "--plot", str(tmp_path / "plan.png")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        'Error: --plot needs Matplotlib, which is not installed: pip install "sqs-lease[cli,plot]"\n'
    )
