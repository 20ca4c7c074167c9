"""Arguments that a triggerer cannot use end the trigger that they are for, not the triggerer with all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger
from sqs_lease.core.failure_rules import release
from sqs_lease.core.specs import encode_failure_rule
from tests.airflow.handed import handed_lease
from tests.airflow.virtual_triggerer import RECEIVE

KEEPER: Final = SqsLeaseKeeperTrigger(
    lease=handed_lease([], batch_id="b1", queue_url="q").encode(RECEIVE),
    receive_task_id="orders",
    work=[],
    on_failure=encode_failure_rule(release()),
    handoff_timeout_seconds=60.0,
)


def started(trigger: BaseTrigger, change: Callable[[dict[str, Any]], None] = lambda _: None) -> BaseException:
    """Why Airflow's triggerer gave a stored trigger up; it must go on itself.

    Args:
        trigger: The trigger that is stored.
        change: The arguments that another release stored differently.
    """
    classpath, kwargs = trigger.serialize()
    change(kwargs)
    runner: Any = TriggerRunner()  # type: ignore[no-untyped-call]
    runner.to_create.append(RunTrigger(id=1, classpath=classpath, encrypted_kwargs=Trigger.encrypt_kwargs(kwargs)))
    asyncio.run(runner.create_triggers())
    ((trigger_id, error),) = runner.failed_triggers
    assert trigger_id == 1
    assert isinstance(error, BaseException)
    return error


def test_a_watcher_with_a_pace_of_another_release_fails_alone() -> None:
    error = started(SqsLeaseTrigger("orders"), lambda kwargs: kwargs.update(poll_interval=0.0))
    assert isinstance(error, TypeError)
    assert "poll_interval must be at least 1 seconds" in str(error)
    assert "the same release" in str(error)


def test_a_watcher_with_an_argument_of_another_release_fails_alone() -> None:
    error = started(SqsLeaseTrigger("orders"), lambda kwargs: kwargs.update(batches=4))
    assert isinstance(error, TypeError)
    assert "batches" in str(error)


def test_a_keeper_with_an_argument_of_another_release_fails_alone() -> None:
    error = started(KEEPER, lambda kwargs: kwargs.update(holder="a1"))
    assert isinstance(error, TypeError)
    assert "holder" in str(error)


def test_an_author_sees_the_error_itself_where_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="poll_interval must be at least 1 seconds"):
        SqsLeaseTrigger("orders", poll_interval=0, botocore_config={"read_timeout": 5})
