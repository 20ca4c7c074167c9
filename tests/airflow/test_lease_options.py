"""What receives in Airflow has the defaults and the checks of all leases, as far as it has their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from sqs_lease.airflow.receiving.collector import ReceiveOptions
from sqs_lease.airflow.sensor import SqsLeaseSensor
from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import decode_policy, encode_failure_rule, encode_policy
from sqs_lease.keeper.options import LeaseOptions
from tests.keeper.refused_options import assert_refuses, other_defaults, refused


def sensor(**options: Any) -> SqsLeaseSensor:
    return SqsLeaseSensor(task_id="orders", queue_url="orders", **options)


def trigger(**options: Any) -> SqsLeaseTrigger:
    return SqsLeaseTrigger("orders", **options)


@pytest.mark.parametrize("ask", [sensor, trigger])
@refused("max_messages", "linger", "policy", "visibility")
def test_what_cannot_be_is_refused_as_everywhere_while_the_dag_is_parsed(
    ask: Callable[..., object], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    assert_refuses(ask, options, error, text)


@pytest.mark.parametrize("ask", [SqsLeaseSensor, SqsLeaseTrigger])
def test_the_defaults_of_a_signature_are_those_of_the_options(ask: type[object]) -> None:
    assert other_defaults(ask.__init__) == {}


def test_an_asset_is_watched_by_short_polls() -> None:
    assert trigger().lease == LeaseOptions.of(wait=5.0)


def test_a_trigger_is_stored_by_the_plain_values_of_its_options() -> None:
    made = trigger(max_messages=7, linger=timedelta(seconds=2), policy="growing", visibility=timedelta(minutes=5))
    stored = made.serialize()[1]
    assert {name: stored[name] for name in ("max_messages", "linger", "policy")} == {
        "max_messages": 7,
        "linger": 2.0,
        "policy": encode_policy(Growing(visibility=300)),
    }
    again = SqsLeaseTrigger(**stored)
    assert again.serialize() == made.serialize()
    assert again.lease == replace(made.lease, policy=decode_policy(stored["policy"]))


def test_what_a_sensor_told_its_trigger_is_read_as_the_options_of_a_lease() -> None:
    told = ReceiveOptions(
        queue="orders",
        batch_id="b1",
        connection={},
        policy=encode_policy(Growing(visibility=300)),
        max_messages=7,
        linger_seconds=2.0,
        deferred_at=0.0,
        expires_at=0.0,
        skip_when_expired=False,
        keeper_task_id="orders_keeper",
        handoff_timeout_seconds=600.0,
        mapped_over=False,
        on_failure=encode_failure_rule(dead_letter()),
    )
    lease = told.collecting().lease
    assert (lease.max_messages, lease.linger_seconds, lease.on_failure) == (7, 2.0, dead_letter())
    assert encode_policy(lease.policy) == told.policy
