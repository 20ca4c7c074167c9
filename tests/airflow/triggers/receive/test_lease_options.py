"""The receivers of Airflow have the defaults and checks of all leases, as far as they have their options."""

from __future__ import annotations

from typing import Any

from sqs_lease.airflow.sensor import SqsLeaseSensor
from sqs_lease.airflow.triggers.receive import ReceiveOptions
from sqs_lease.core.failure_rules import dead_letter
from sqs_lease.core.policies import Growing
from sqs_lease.core.specs import encode_failure_rule, encode_policy
from tests.keeper.refused_options import assert_refuses, other_defaults, refused


def sensor(**options: Any) -> SqsLeaseSensor:
    return SqsLeaseSensor(task_id="orders", queue_url="orders", **options)


@refused("max_messages", "linger", "policy", "visibility")
def test_impossible_options_are_refused_as_everywhere_while_the_dag_is_parsed(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    assert_refuses(sensor, options, error, text)


def test_the_defaults_of_the_signature_are_those_of_the_options() -> None:
    assert other_defaults(SqsLeaseSensor.__init__) == {}


def test_the_arguments_of_a_trigger_are_read_as_the_options_of_a_lease() -> None:
    told = ReceiveOptions(
        queue="orders",
        batch_id="b1",
        connection={},
        policy=encode_policy(Growing(visibility=300)),
        max_messages=7,
        linger_seconds=2.0,
        expires_at=0.0,
        skip_when_expired=False,
        keeper_task_id="orders_keeper",
        handoff_timeout_seconds=600.0,
        mapped_over=False,
        on_failure=encode_failure_rule(dead_letter()),
    )
    lease = told.lease()
    assert (lease.max_messages, lease.linger_seconds, lease.on_failure) == (7, 2.0, dead_letter())
    assert encode_policy(lease.policy) == told.policy
