"""Arguments that a triggerer cannot use end the trigger that they are for, not the triggerer with all the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, Final

import pytest
from airflow.executors.workloads.trigger import RunTrigger
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseTrigger

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.triggers.keep import SqsLeaseKeeperTrigger
from sqs_lease.batch_files import manifest_extra
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
        change: What another release stored differently.
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


def test_a_watcher_that_stores_batches_fails_alone_in_a_triggerer_without_pyarrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watcher = SqsLeaseTrigger("orders", payload="s3://aws@bucket/batches")
    monkeypatch.setattr(manifest_extra, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name))
    error = started(watcher)
    assert isinstance(error, TypeError)
    assert 'pip install "sqs-lease[airflow,manifest]"' in str(error)


def _renewed_otherwise(kwargs: dict[str, Any]) -> None:
    policy: Mapping[str, Any] = kwargs["policy"]
    kwargs["policy"] = {**policy, "policy": "shrinking"}


def test_a_watcher_whose_policy_a_newer_release_stored_fails_alone() -> None:
    error = started(SqsLeaseTrigger("orders"), _renewed_otherwise)
    assert isinstance(error, TypeError)
    assert "shrinking" in str(error)
    assert "the same release" in str(error)


def test_a_keeper_whose_lease_another_release_stored_fails_alone() -> None:
    error = started(KEEPER, lambda kwargs: kwargs["lease"].pop("queue_url"))
    assert isinstance(error, TypeError)
    assert "queue_url" in str(error)


def test_an_author_sees_the_error_itself_where_the_dag_is_parsed() -> None:
    with pytest.raises(ValueError, match="max_messages must be an integer from 1"):
        SqsLeaseTrigger("orders", max_messages=0)
