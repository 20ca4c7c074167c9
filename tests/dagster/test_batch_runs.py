"""What becomes of a batch whose runs are such and such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster.lease_sensor.runs import RETRY_TAG_SECONDS, Decision, Fate, decide

Status = dg.DagsterRunStatus
BATCH = "the-batch"
DEADLINE = 600.0


def run(number: int, status: Status, *, parent: int | None = None, **more: Any) -> dg.DagsterRun:
    """A run that the sensor asked for, or one that repeats another."""
    tags = {"dagster/run_key": BATCH, **more.pop("tags", {})}
    return dg.DagsterRun(
        "job",
        run_id=str(number),
        status=status,
        tags=tags,
        parent_run_id=None if parent is None else str(parent),
        root_run_id=None if parent is None else "1",
        **more,
    )


def resumed(number: int, status: Status, parent: int, **more: Any) -> dg.DagsterRun:
    """A run of what was not done before it. That has no tag to say so where it was started in Python."""
    return run(number, status, parent=parent, tags=more, step_keys_to_execute=["what was not done"])


def leaves_out(run: dg.DagsterRun, before: Sequence[dg.DagsterRun]) -> bool:
    assert all(each.is_finished for each in before)
    return run.asset_selection is not None or run.step_keys_to_execute not in (None, ["what was not done"])


def after(*oldest_first: dg.DagsterRun, quiet: float = 0.0, retries: bool = False) -> Decision:
    return decide(
        BATCH,
        oldest_first[::-1],
        quiet_seconds=quiet,
        run_deadline_seconds=DEADLINE,
        retries_enabled=retries,
        leaves_out=leaves_out,
    )


PROMISED = {"dagster/will_retry": "true"}
FINAL = {"dagster/will_retry": "false"}


def repeated_by(number: int) -> dict[str, str]:
    return {**PROMISED, "dagster/auto_retry_run_id": str(number)}


@pytest.mark.parametrize("status", [Status.STARTING, Status.STARTED, Status.CANCELING])
def test_a_batch_is_held_while_a_run_is_under_way_however_long_that_takes(status: Status) -> None:
    assert after(run(1, status), quiet=10 * DEADLINE).fate is Fate.WORKING


def test_a_batch_whose_run_is_not_there_waits_for_it_until_the_deadline() -> None:
    assert after(quiet=DEADLINE - 1).fate is Fate.REQUESTED
    late = after(quiet=DEADLINE)
    assert (late.fate, late.run_id) == (Fate.GIVEN_BACK, None)
    assert "600 s" in late.reason


def test_a_run_that_was_made_and_never_launched_is_waited_for_until_the_deadline() -> None:
    assert after(run(1, Status.NOT_STARTED), quiet=DEADLINE - 1).fate is Fate.REQUESTED
    assert after(run(1, Status.NOT_STARTED), quiet=DEADLINE).fate is Fate.GIVEN_BACK


def test_a_run_that_succeeded_decides_and_is_named() -> None:
    assert after(run(1, Status.SUCCESS)) == Decision(Fate.SUCCEEDED, "run 1 succeeded", "1")


def test_a_run_that_failed_is_the_end_where_nothing_is_repeated() -> None:
    assert after(run(1, Status.FAILURE)).fate is Fate.FAILED
    assert after(run(1, Status.FAILURE, tags=FINAL), retries=True).fate is Fate.FAILED


def test_a_run_that_was_canceled_is_no_failure() -> None:
    assert after(run(1, Status.CANCELED), retries=True).fate is Fate.GIVEN_BACK


def test_a_failed_run_is_looked_at_again_until_dagster_says_whether_it_is_repeated() -> None:
    failed = run(1, Status.FAILURE)
    assert after(failed, retries=True).fate is Fate.WORKING
    assert after(failed, retries=True, quiet=RETRY_TAG_SECONDS).fate is Fate.FAILED


def test_a_failed_run_that_is_going_to_be_repeated_is_not_the_end() -> None:
    failed = run(1, Status.FAILURE, tags=PROMISED)
    assert after(failed, retries=True, quiet=DEADLINE - 1).fate is Fate.WORKING
    assert after(failed, retries=True, quiet=DEADLINE).fate is Fate.FAILED


def test_the_run_that_repeats_it_decides() -> None:
    failed = run(1, Status.FAILURE, tags=repeated_by(2))
    assert after(failed, retries=True).fate is Fate.WORKING
    assert after(failed, run(2, Status.NOT_STARTED, parent=1), retries=True).fate is Fate.REQUESTED
    assert after(failed, run(2, Status.STARTED, parent=1), retries=True).fate is Fate.WORKING
    assert after(failed, run(2, Status.SUCCESS, parent=1), retries=True).fate is Fate.SUCCEEDED
    assert after(failed, run(2, Status.CANCELED, parent=1), retries=True).fate is Fate.GIVEN_BACK
    assert after(failed, run(2, Status.FAILURE, parent=1, tags=FINAL), retries=True) == Decision(
        Fate.FAILED, "run 2 failed", "2"
    )


def test_a_run_that_resumes_the_work_from_its_failure_completes_it() -> None:
    failed = run(1, Status.FAILURE, tags=repeated_by(2))
    assert after(failed, resumed(2, Status.SUCCESS, 1)).fate is Fate.SUCCEEDED
    again = resumed(2, Status.FAILURE, 1, **repeated_by(3))
    assert after(failed, again, retries=True).fate is Fate.WORKING
    assert after(failed, again, resumed(3, Status.SUCCESS, 2), retries=True).fate is Fate.SUCCEEDED


def test_the_success_of_some_selected_steps_or_assets_is_not_that_of_the_work() -> None:
    failed = run(1, Status.FAILURE, tags=FINAL)
    of_steps = run(2, Status.SUCCESS, parent=1, step_keys_to_execute=["a"])
    of_assets = run(2, Status.SUCCESS, parent=1, asset_selection={dg.AssetKey("a")})
    assert after(failed, of_steps, retries=True).fate is Fate.FAILED
    assert after(failed, of_assets, retries=True).fate is Fate.FAILED
    assert after(failed, of_steps, resumed(3, Status.SUCCESS, 2), retries=True).fate is Fate.SUCCEEDED


def test_the_batch_is_held_as_long_as_somebody_repeats_some_of_its_steps() -> None:
    selected = run(2, Status.STARTED, parent=1, step_keys_to_execute=["a"])
    assert after(run(1, Status.FAILURE, tags=FINAL), selected).fate is Fate.WORKING
    assert after(run(1, Status.SUCCESS), selected).fate is Fate.WORKING


def test_a_success_is_not_undone_by_a_run_that_repeats_it() -> None:
    assert after(run(1, Status.SUCCESS), run(2, Status.FAILURE, parent=1)).fate is Fate.SUCCEEDED


def test_a_run_that_somebody_started_with_a_copied_tag_does_not_count() -> None:
    assert after(run(7, Status.SUCCESS, tags={"dagster/run_key": "another"})).fate is Fate.REQUESTED
    assert after(run(1, Status.FAILURE), run(7, Status.SUCCESS)).fate is Fate.FAILED
    orphan = resumed(2, Status.SUCCESS, 1)
    assert after(orphan, quiet=DEADLINE).fate is Fate.GIVEN_BACK
