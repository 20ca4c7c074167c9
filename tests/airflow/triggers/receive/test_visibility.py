"""The default visibility timeout and the warning about one that is too short follow from the time of a takeover."""

from __future__ import annotations

import asyncio
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG

from sqs_lease.airflow import SqsLeaseSensor
from sqs_lease.airflow.triggers.receive import (
    LOADED_TAKEOVER_MARGIN_SECONDS,
    ShortVisibilityWarning,
    default_visibility_seconds,
    takeover_risk,
    takeover_seconds,
    with_visibility,
)
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.policies import Buffered, Fixed, Growing, Never, RenewalPolicy, Threshold, seconds_left_at_worst
from sqs_lease.testing import AuditKind
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms

THRESHOLD = "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD"


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("shop", schedule=None) as opened:
        yield opened


def test_at_airflows_settings_the_default_is_three_times_a_takeover_on_a_busy_machine() -> None:
    assert takeover_seconds() == 60
    assert takeover_seconds(LOADED_TAKEOVER_MARGIN_SECONDS) == 150
    assert default_visibility_seconds(Growing()) == 450


def test_a_longer_threshold_makes_both_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THRESHOLD, "90")
    assert takeover_seconds() == 120
    assert with_visibility(Growing()).visibility == 630
    assert takeover_risk(Growing(visibility=180)) is not None


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        (Growing(), 450),
        (Growing(margin=0.5), 300),
        (Growing(margin=0.001), MAX_VISIBILITY_SECONDS),
        (Fixed(every=600), 750),
        (Threshold(), 450),
        (Buffered(), 450),
        (Never(), 450),
    ],
    ids=repr,
)
def test_the_default_leaves_the_time_of_a_takeover_where_the_policy_can(policy: RenewalPolicy, seconds: int) -> None:
    assert with_visibility(policy).visibility == seconds


def test_the_queues_own_timeout_is_taken_where_it_is_longer() -> None:
    assert with_visibility(Growing(), 600).visibility == 600
    assert with_visibility(Growing(), 30).visibility == 450


def test_a_timeout_that_was_given_is_left_as_it_is() -> None:
    assert with_visibility(Growing(visibility=30), 300).visibility == 30


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (Growing(visibility=30), "20 s at worst"),
        (Growing(visibility=179), "59.6667 s at worst"),
        (Threshold(visibility=600), "5 s at worst"),
        (Buffered(visibility=600), "10 s at worst"),
        (Fixed(visibility=100, every=50), "50 s at worst"),
    ],
    ids=repr,
)
def test_a_policy_that_leaves_too_little_is_told_with_the_numbers(policy: RenewalPolicy, left: str) -> None:
    risk = takeover_risk(policy)
    assert risk is not None
    assert left in risk
    assert "needs up to 60 s" in risk
    assert "at least 180 s" in risk


@pytest.mark.parametrize(
    "policy", [Growing(visibility=180), Fixed(visibility=100, every=40), Never(visibility=10)], ids=repr
)
def test_a_policy_that_leaves_enough_or_never_extends_is_not_a_risk(policy: RenewalPolicy) -> None:
    assert takeover_risk(policy) is None


def test_a_sensor_with_too_short_a_timeout_warns_once_while_the_dag_is_parsed(dag: DAG) -> None:
    with pytest.warns(ShortVisibilityWarning, match="'orders': a visibility timeout of 30 s") as caught:
        SqsLeaseSensor(task_id="orders", queue_url="orders", visibility=30)
    assert len(caught) == 1


@pytest.mark.parametrize("visibility", [None, 180])
def test_a_sensor_with_a_safe_timeout_does_not_warn(dag: DAG, visibility: int | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SqsLeaseSensor(task_id="orders", queue_url="orders", visibility=visibility)


def test_a_lease_at_the_default_outlives_a_triggerer_that_dies_just_before_it_would_have_extended(
    supervisor: ScriptedComms,
) -> None:
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        first = world.triggerer("first")
        await world.receive(first, Growing())
        world.keep(first)
        await asyncio.sleep(default_visibility_seconds(Growing()) * 2 / 3 - 2)
        await first.kill()
        await asyncio.sleep(takeover_seconds(LOADED_TAKEOVER_MARGIN_SECONDS) - 2)
        world.keep(world.triggerer("second"))
        await asyncio.sleep(300)
        assert world.message_states() == ALL_HELD

    world.run(scenario)
    assert not world.events(AuditKind.EXPIRED)


ROW = re.compile(r"^\| (\d+) s(?: \(default\))? \| (\d+) s \| (-|\d+ s) \| (-|\d+ s) \| after (\d+) s", re.MULTILINE)


def test_the_page_says_which_power_cut_costs_nothing() -> None:
    rows = ROW.findall(Path("docs/airflow.md").read_text())
    assert [int(row[0]) for row in rows] == [30, 180, default_visibility_seconds(Growing()), 900]
    for visibility, left, free, busy, all_visible in rows:
        left_at_worst = seconds_left_at_worst(Growing(visibility=int(visibility)))
        assert left_at_worst == int(left)
        for shown, restart_seconds in ((free, 40), (busy, 111)):
            longest = int(left) - restart_seconds
            assert shown == (f"{longest} s" if longest > 0 else "-")
        assert all_visible == visibility
