"""How a queue resource reaches AWS: by the region of its queue, and with errors that say what is missing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from botocore.exceptions import ClientError
from dagster._core.definitions.reconstruct import ReconstructableJob

from sqs_lease.dagster import (
    SqsIngestionComponent,
    SqsQueueResource,
    build_sqs_backlog_check,
    build_sqs_backlog_sensor,
    build_sqs_router,
    sqs_lease_executor,
)
from sqs_lease.dagster.resource import access_to
from sqs_lease.sqs import classification, errors
from sqs_lease.testing import LeasedQueues
from tests.dagster import executor_jobs
from tests.dagster.executor_runs import failure, runs_in

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

    resource = SqsQueueResource(queue=QUEUE, profile_name="absent")
    with pytest.raises(errors.ConfigurationError, match=r"orders: the AWS profile does not exist.*absent"):
        dg.materialize([orders], resources={"queue": resource})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"region": "eu"}, r"'region' \('region_name'\?\)"), ({"aws_access_key_id": "AKIA"}, "There are no keys")],
    ids=["another name", "a key"],
)
def test_a_setting_that_there_is_not_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=said) as refused:
        SqsQueueResource(queue=QUEUE, **wrong)
    assert "AKIA" not in str(refused.value)


# Errors in Dagster's words


@dg.asset
def unreached(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
    with queue.lease(context):
        raise AssertionError("there is nothing to receive with")


def error_of_a_lease(queue: SqsQueueResource, directory: Path) -> str:
    result = dg.materialize([unreached], resources={"queue": queue}, raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    return failed.step_failure_data.error_display_string


def error_of_a_backlog_sensor(queue: SqsQueueResource, directory: Path) -> str:
    sensor = build_sqs_backlog_sensor("backlog", queue, unreached)
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        with pytest.raises(errors.SqsError) as raised:
            sensor.evaluate_tick(context)
        return str(raised.value)


def error_of_a_router(queue: SqsQueueResource, directory: Path) -> str:
    sensor = build_sqs_router("leasing", queue, working, workspace=str(directory), wait=0)
    with dg.DagsterInstance.ephemeral() as instance, dg.build_sensor_context(instance) as context:
        with pytest.raises(errors.SqsError) as raised:
            sensor.evaluate_tick(context)
        return str(raised.value)


def error_of_a_check(queue: SqsQueueResource, directory: Path) -> str:
    result = dg.materialize([without_queue, build_sqs_backlog_check(without_queue, queue)])
    (evaluation,) = result.get_asset_check_evaluations()
    assert not evaluation.passed
    return str(evaluation.description)


@dg.op
def nothing() -> None: ...


@dg.job
def working() -> None:
    nothing()


def held() -> dg.JobDefinition:
    """A job whose executor reaches the queue of a test."""

    @dg.job(executor_def=sqs_lease_executor(HELD[0], workspace=os.environ["ORDERS_WORKSPACE"]))
    def holding() -> None:
        nothing()

    return holding


HELD: list[SqsQueueResource] = []


def error_of_an_executor(queue: SqsQueueResource, directory: Path) -> str:
    HELD[:] = [queue]
    # Dagster keeps the job that it made last.
    ReconstructableJob.get_repository_definition.cache_clear()
    ReconstructableJob.get_definition.cache_clear()
    with runs_in(directory) as runs:
        return failure(runs.execute(held))


def error_of_a_component(queue: SqsQueueResource, directory: Path) -> str:
    settings = {"name": queue.queue, "region_name": queue.region_name, "profile_name": queue.profile_name}
    component = SqsIngestionComponent.resolve_from_dict(
        {
            "queue": {name: value for name, value in settings.items() if value is not None},
            "source": {"kind": "text"},
            "sink": {"kind": "delta", "path": str(directory)},
            "workspace": str(directory),
            "asset": {"key": "orders"},
        }
    )
    (asset,) = component.build_defs(dg.ComponentTree.for_test().load_context).assets or []
    assert isinstance(asset, dg.AssetsDefinition)
    result = dg.materialize([asset], raise_on_error=False)
    (failed,) = (event for event in result.all_events if event.is_step_failure)
    return failed.step_failure_data.error_display_string


@dg.asset
def without_queue() -> None: ...


USERS = [
    error_of_a_lease,
    error_of_a_backlog_sensor,
    error_of_a_router,
    error_of_a_check,
    error_of_an_executor,
    error_of_a_component,
]
SETTINGS = "Settings of the resource are given in Definitions(resources=...) or under queue in a component's YAML"


@pytest.mark.parametrize("error_of", USERS)
def test_a_missing_region_is_told_in_dagsters_words(
    error_of: Callable[[SqsQueueResource, Path], str], tmp_path: Path
) -> None:
    said = error_of(SqsQueueResource(queue="orders"), tmp_path)
    assert "queue orders: no AWS region is configured. Set region_name of SqsQueueResource" in said
    assert said.count(SETTINGS) == said.count("no AWS region is configured")


@pytest.mark.parametrize("error_of", USERS)
def test_an_unknown_profile_is_told_in_dagsters_words(
    error_of: Callable[[SqsQueueResource, Path], str], tmp_path: Path
) -> None:
    said = error_of(SqsQueueResource(queue=QUEUE, profile_name="nobody"), tmp_path)
    assert "orders: the AWS profile does not exist. Correct profile_name of SqsQueueResource" in said
    assert SETTINGS in said


@pytest.mark.parametrize("error_of", USERS)
def test_missing_credentials_are_told_in_dagsters_words(
    error_of: Callable[[SqsQueueResource, Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    said = error_of(SqsQueueResource(queue=QUEUE), tmp_path)
    assert "orders: no usable credentials. Set profile_name of SqsQueueResource" in said
    assert SETTINGS in said
    assert "connection" not in said


class DeniedQueue(SqsQueueResource):
    """A queue in memory that denies all its calls."""

    def client(self) -> Any:
        def denied(**_: object) -> None:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "GetQueueUrl")

        client = super().client()
        client.get_queue_url = denied  # type: ignore[method-assign,assignment]
        return client


@pytest.mark.parametrize("error_of", USERS[:-1])
def test_denied_access_is_told_with_what_the_queue_is_reached_by(
    error_of: Callable[[SqsQueueResource, Path], str], tmp_path: Path
) -> None:
    said = error_of(DeniedQueue(queue="orders", region_name="eu-west-1"), tmp_path)
    assert "queue orders: access denied. Allow sqs:GetQueueUrl" in said
    assert "reached by queue, region_name, endpoint_url, profile_name and role_arn of DeniedQueue" in said
    assert said.count(SETTINGS) == said.count("access denied")


def test_a_missing_queue_is_told_with_what_it_is_reached_by(leased_queues: LeasedQueues) -> None:
    with pytest.raises(errors.QueueNotFoundError, match="reached by queue, region_name") as raised:
        SqsQueueResource(queue="missing", region_name="eu-west-1").attributes()
    assert SETTINGS in str(raised.value)


def test_an_error_of_the_work_is_as_it_was(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "a")
    other = errors.AccessDeniedError("another queue, of the work's own", queue="other")

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0):
            raise other

    with pytest.raises(errors.AccessDeniedError) as raised:
        dg.materialize([orders], resources={"queue": SqsQueueResource(queue="orders", region_name="eu-west-1")})
    assert raised.value is other


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
    assert set(TENANTS) == {"shop"}


def test_the_executor_reaches_a_queue_as_its_subclass_says(
    tenants_queue: TenantsQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = dg.in_process_executor.executor_creation_fn
    monkeypatch.setattr(dg.multiprocess_executor, "_executor_creation_fn", here)
    monkeypatch.setattr(executor_jobs, "QUEUE", tenants_queue)
    with runs_in(tmp_path) as runs:
        assert runs.execute(executor_jobs.tenants).success
    assert set(TENANTS) == {"shop"}


def test_a_variable_that_is_set_to_nothing_is_told_wherever_the_queue_is_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "")
    queue = SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE")).process_config_and_initialize()
    reached: list[Callable[[], object]] = [
        queue.client,
        queue.attributes,
        lambda: queue.lease(dg.build_asset_context()),
    ]
    for reach in reached:
        with pytest.raises(ValueError, match=r"queue of SqsQueueResource is empty.*environment variable"):
            reach()


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORDERS_QUEUE", raising=False)
    sensor = build_sqs_backlog_sensor("backlog", SqsQueueResource(queue=dg.EnvVar("ORDERS_QUEUE")), leasing)
    with (
        dg.DagsterInstance.ephemeral() as instance,
        dg.build_sensor_context(instance) as context,
        pytest.raises(dg.DagsterInvalidConfigError, match='environment variable "ORDERS_QUEUE" which is not set'),
    ):
        sensor.evaluate_tick(context)


@pytest.mark.parametrize("name", sorted(classification._BY_EXCEPTION))
def test_no_error_about_access_speaks_of_another_orchestrator(name: str) -> None:
    kind: type[Exception] = type(name, (Exception,), {})
    error = classification.error_from_exception(kind("no"), operation="ReceiveMessage", queue=QUEUE)
    assert error is not None
    with pytest.raises(errors.SqsError) as raised, access_to(SqsQueueResource(queue=QUEUE)):
        raise error
    assert "Airflow" not in str(raised.value)
