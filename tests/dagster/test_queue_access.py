"""How a queue resource reaches AWS: by the region of its queue, and with errors that say what is missing."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from sqs_lease.dagster import SqsQueueResource, build_sqs_backlog_check, build_sqs_backlog_sensor
from sqs_lease.sqs import errors
from sqs_lease.testing import LeasedQueues
from tests.dagster import executor_jobs
from tests.dagster.executor_runs import runs_in

QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"


@pytest.fixture(autouse=True)
def _without_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials, but no region anywhere."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.mark.parametrize("queue", [QUEUE, "arn:aws:sqs:eu-west-1:123456789012:orders"])
def test_a_resource_without_a_region_calls_the_queues_own(queue: str) -> None:
    assert SqsQueueResource(queue=queue).client().meta.region_name == "eu-west-1"
    assert SqsQueueResource(queue=queue, region_name="eu-west-3").client().meta.region_name == "eu-west-3"


def test_a_resource_passes_on_what_dagsters_own_resources_take(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("sqs_lease.sqs.client.make_client", lambda access, *, queue: asked.append((access, queue)))
    settings: dict[str, Any] = {
        "region_name": "eu-west-3",
        "endpoint_url": "https://sqs.example",
        "profile_name": "shop",
        "role_arn": "arn:aws:iam::123456789012:role/reader",
        "use_ssl": False,
        "verify": False,
    }
    SqsQueueResource(queue=QUEUE, **settings).client()
    ((access, queue),) = asked
    assert {name: getattr(access, name) for name in settings} == settings
    assert queue == QUEUE


def test_a_queue_given_by_its_name_needs_a_region() -> None:
    with pytest.raises(errors.ConfigurationError, match=r"queue orders: no AWS region .* Set region_name"):
        SqsQueueResource(queue="orders").client()


def test_an_asset_with_an_unknown_profile_fails_with_the_queue_and_the_remedy_named() -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context):
            raise AssertionError("there is no client to receive with")

    resource = SqsQueueResource(queue=QUEUE, profile_name="nobody")
    with pytest.raises(errors.ConfigurationError, match=r"orders: the AWS profile does not exist.*nobody"):
        dg.materialize([orders], resources={"queue": resource})


class TenantsQueue(SqsQueueResource):
    """A queue that is reached in a way of its own, which takes a setting of its own."""

    tenant: str

    def client(self) -> Any:
        TENANTS.append(self.tenant)
        return super().client()


TENANTS: list[str] = []
"""For whom each client was made."""


@pytest.fixture
def tenants_queue(leased_queues: LeasedQueues, monkeypatch: pytest.MonkeyPatch) -> TenantsQueue:
    monkeypatch.setenv("TENANT", "shop")
    TENANTS.clear()
    leased_queues.create("orders", "a")
    return TenantsQueue(queue="orders", region_name="us-east-1", tenant=dg.EnvVar("TENANT"))


@dg.asset
def leasing(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context, wait=0):
        pass


def test_an_asset_and_its_checks_reach_a_queue_as_its_subclass_says(tenants_queue: TenantsQueue) -> None:
    check = build_sqs_backlog_check(leasing, tenants_queue)
    dg.materialize([leasing], resources={"queue": tenants_queue})
    made_for_the_asset = len(TENANTS)
    result = dg.materialize([leasing, check], resources={"queue": tenants_queue})
    assert [each.passed for each in result.get_asset_check_evaluations()] == [True]
    assert len(TENANTS) > 2 * made_for_the_asset > 0
    assert set(TENANTS) == {"shop"}


def test_a_sensor_reaches_a_queue_as_its_subclass_says(tenants_queue: TenantsQueue) -> None:
    sensor = build_sqs_backlog_sensor("backlog", tenants_queue, leasing)
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        assert len(sensor.evaluate_tick(context).run_requests or []) == 1
    assert TENANTS == ["shop"]


def test_the_executor_reaches_a_queue_as_its_subclass_says(
    tenants_queue: TenantsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = dg.in_process_executor.executor_creation_fn
    monkeypatch.setattr(dg.multiprocess_executor, "_executor_creation_fn", here)
    monkeypatch.setattr(executor_jobs, "QUEUE", tenants_queue)
    with runs_in(tmp_path) as runs:
        assert runs.execute(executor_jobs.tenants).success
    assert TENANTS == ["shop"]


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_QUEUE", raising=False)
    sensor = build_sqs_backlog_sensor("backlog", SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE")), leasing)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance) as context,
        pytest.raises(dg.DagsterInvalidConfigError, match='environment variable "ORDERS_QUEUE" which is not set'),
    ):
        sensor.evaluate_tick(context)
