"""A queue, a sensor and the work of an asset, declared in YAML: what is made of a folder of them, and what is wrong."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from demo.processes import ROOT
from sqs_lease.dagster import (
    LeasedAssetComponent,
    LeasedBatch,
    SqsQueueComponent,
    SqsQueueResource,
)
from sqs_lease.testing import LeasedQueues

WORK = """
import dagster as dg

worked = []

def load(messages):
    worked.append([message.body for message in messages])

def load_with_context(context, messages):
    return dg.MaterializeResult(metadata={"bodies": [message.body for message in messages], "run": context.run_id})

def fail(messages):
    raise RuntimeError("no")

def value(messages):
    return [message.body for message in messages]

def checked(messages):
    return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=False, check_name="complete")])

def of_another(messages):
    return dg.MaterializeResult(asset_key="other")

def generator(messages):
    yield 1

async def asynchronous(messages):
    pass

def without():
    pass

class Work:
    pass
"""

QUEUE = """
type: sqs_lease.dagster.SqsQueueComponent
attributes:
  resource_key: orders_queue
  queue: {name: orders}
"""

FUNCTION = """
type: sqs_lease.dagster.SqsFunctionComponent
attributes:
  function: shop_of_tests.work.load
  queue: {component: queues/orders}
  lease: {max_messages: 2, wait_seconds: 0, linger_seconds: 0}
  asset: {key: orders}
"""

SENSOR = """
type: sqs_lease.dagster.SqsBacklogSensorComponent
attributes:
  name: orders_waiting
  queue: {component: queues/orders}
  target: orders
  min_messages: 2
  run_tags: {team: shop}
  running: true
"""


class Shop:
    """A code location with a folder of definitions."""

    def __init__(self, root: Path) -> None:
        self.package = root / "shop_of_tests"
        self.defs = self.package / "defs"
        self.write("../work.py", WORK)
        self.write("../__init__.py", "")
        self.write("queues/orders/defs.yaml", QUEUE)

    def write(self, name: str, text: str) -> None:
        file = self.defs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (self.defs / name).write_text(text)

    def definitions(self) -> dg.Definitions:
        return dg.load_from_defs_folder(path_within_project=self.package)

    def run(self, *, raise_on_error: bool = True) -> dg.ExecuteInProcessResult:
        job = self.definitions().resolve_implicit_global_asset_job_def()
        return job.execute_in_process(raise_on_error=raise_on_error)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop_of_tests"\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shop_of_tests" / "defs").mkdir(parents=True)
    yield Shop(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop_of_tests"]:
        del sys.modules[name]


def test_a_function_works_on_batches_of_a_queue_that_is_declared_once(leased_queues: LeasedQueues, shop: Shop) -> None:
    queue = leased_queues.create("orders", "body 0", "body 1", "body 2")
    shop.write("orders/defs.yaml", FUNCTION)
    result = shop.run()
    assert sys.modules["shop_of_tests.work"].worked == [["body 0", "body 1"]]
    assert queue.visible == ["body 2"]
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/received"].value == 2
    assert queue.deleted == 2


def test_the_function_is_not_called_without_messages(leased_queues: LeasedQueues, shop: Shop) -> None:
    leased_queues.create("orders")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", "work.fail"))
    assert shop.run().success


def test_what_the_function_returns_is_on_the_materialization(leased_queues: LeasedQueues, shop: Shop) -> None:
    leased_queues.create("orders", "body 0")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", "work.load_with_context"))
    result = shop.run()
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["bodies"].value == ["body 0"]
    assert materialization.metadata["run"].value == result.run_id


@pytest.mark.parametrize("function", ["fail", "value", "checked", "of_another"])
def test_messages_are_given_back_where_the_work_is_not_done_or_its_result_is_none_that_the_asset_has(
    leased_queues: LeasedQueues, shop: Shop, function: str
) -> None:
    queue = leased_queues.create("orders", "body 0")
    shop.write("orders/defs.yaml", FUNCTION.replace("work.load", f"work.{function}"))
    assert not shop.run(raise_on_error=False).success
    assert queue.visible == ["body 0"]


def test_the_work_of_a_failed_attempt_is_tried_again_before_messages_are_dead_lettered(
    leased_queues: LeasedQueues, shop: Shop
) -> None:
    queue = leased_queues.create("orders", "body 0")
    retried = FUNCTION.replace("work.load", "work.fail").replace("wait_seconds: 0", "wait_seconds: 5")
    retried = retried.replace("linger_seconds: 0", "linger_seconds: 0, on_failure: dead_letter")
    shop.write("orders/defs.yaml", f"{retried}  retries: {{max_retries: 1}}\n")
    result = shop.run(raise_on_error=False)
    assert [event for event in result.all_events if event.is_step_restarted]
    assert queue.dead_letters == ["body 0"]


def test_python_code_takes_the_queue_as_a_resource(leased_queues: LeasedQueues, shop: Shop) -> None:
    queue = leased_queues.create("orders", "body 0")
    shop.write(
        "orders.py",
        "import dagster as dg\nfrom sqs_lease.dagster import SqsQueueResource\n\n\n@dg.asset\n"
        "def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> None:\n"
        "    with orders_queue.lease(context, wait=0, linger=0):\n        pass\n",
    )
    (materialization,) = shop.run().asset_materializations_for_node("orders")
    assert materialization.metadata["sqs/received"].value == 1
    assert (queue.deleted, queue.visible) == (1, [])


def test_a_sensor_starts_runs_of_the_assets_that_it_selects(leased_queues: LeasedQueues, shop: Shop) -> None:
    leased_queues.create("orders", "body 0", "body 1")
    shop.write("orders/defs.yaml", FUNCTION)
    shop.write("sensor/defs.yaml", SENSOR)
    definitions = shop.definitions()
    sensor = definitions.get_repository_def().get_sensor_def("orders_waiting")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance, sensor_name=sensor.name, definitions=definitions)
        (request,) = sensor.evaluate_tick(context).run_requests or []
    assert request.tags["team"] == "shop"


def refused(shop: Shop) -> str:
    """Why the folder cannot be loaded: Dagster's own error, and what it was raised from."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - it differs by the release of Dagster
        shop.definitions().get_repository_def()
    causes: list[str] = []
    error: BaseException | None = raised.value
    while error is not None:
        causes.append(str(error))
        error = error.__cause__ or error.__context__
    return "\n".join(causes)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("orders", FUNCTION.replace("queues/orders", "queues/other"), "there is no component at 'queues/other'"),
        ("orders", FUNCTION.replace("work.load", "work.lod"), "'shop_of_tests.work.lod' cannot be imported"),
        ("orders", FUNCTION.replace("work.load", "work.generator"), "is a generator or asynchronous"),
        ("orders", FUNCTION.replace("work.load", "work.asynchronous"), "is a generator or asynchronous"),
        ("orders", FUNCTION.replace("work.load", "work.without"), "cannot be called with the messages of a batch"),
        ("orders", FUNCTION.replace("work.load", "work.Work"), "is not a function"),
        ("orders", FUNCTION.replace("{component: ", "{name: orders, component: "), "remove name"),
        ("orders", FUNCTION.replace("{component: queues/orders}", "{}"), "queue needs name"),
        ("other", QUEUE.replace("{name: orders}", "{component: queues/orders}"), "give the queue's name here"),
        ("sensor", SENSOR.replace("min_messages: 2", "min_messages: 0"), "min_messages must be at least 1, not 0"),
    ],
)
def test_what_is_wrong_is_said_by_its_key_when_the_folder_is_loaded(
    shop: Shop, name: str, text: str, said: str
) -> None:
    shop.write(f"{name}/defs.yaml", text)
    assert said in refused(shop)


def test_a_component_of_another_kind_is_no_queue(shop: Shop) -> None:
    shop.write("orders/defs.yaml", FUNCTION.replace("{component: queues/orders}", "{name: orders}"))
    shop.write("sensor/defs.yaml", SENSOR.replace("queues/orders", "orders"))
    assert "'orders' is a SqsFunctionComponent, not a SqsQueueComponent" in refused(shop)


def test_the_folder_that_the_page_describes_can_be_loaded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    page = (ROOT / "docs" / "dagster-components.md").read_text()
    queue, function, sensor = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (work,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shop.write("../page.py", work)
    shop.write("queues/orders/defs.yaml", queue)
    shop.write("orders/defs.yaml", function.replace("shop.work.load", "shop_of_tests.page.load"))
    shop.write("sensor/defs.yaml", sensor)
    made = shop.definitions().get_repository_def()
    assert {sensor.name for sensor in made.sensor_defs} == {"orders_backlog", "orders_waiting"}
    assert "orders_queue" in made.get_top_level_resources()


class OtherAccount(SqsQueueComponent):
    """A queue that is reached in another way."""

    def get_resource(self) -> SqsQueueResource:
        return super().get_resource().model_copy(update={"region_name": "eu-west-3"})


class Counting(LeasedAssetComponent):
    """An asset with work and a specification of its own."""

    def get_asset_spec(self) -> dg.AssetSpec:
        return super().get_asset_spec().merge_attributes(owners=["team:shop"])

    def execute(self, context: dg.AssetExecutionContext, batch: LeasedBatch) -> dg.MaterializeResult[Any]:
        return dg.MaterializeResult(metadata={"bodies": len(batch)})


def test_a_subclass_says_what_the_work_and_the_asset_are(leased_queues: LeasedQueues) -> None:
    leased_queues.create("orders", "body 0")
    made = Counting.resolve_from_dict(
        {"queue": {"name": "orders"}, "lease": {"wait_seconds": 0, "linger_seconds": 0}, "asset": {"key": "orders"}}
    )
    definitions = made.build_defs(dg.ComponentTree.for_test().load_context)
    result = definitions.resolve_implicit_global_asset_job_def().execute_in_process()
    (materialization,) = result.asset_materializations_for_node("orders")
    assert materialization.metadata["bodies"].value == 1
    (spec,) = (
        spec for asset in definitions.assets or [] if isinstance(asset, dg.AssetsDefinition) for spec in asset.specs
    )
    assert spec.owners == ["team:shop"]


def test_a_subclass_says_how_a_queue_is_reached() -> None:
    made = OtherAccount.resolve_from_dict({"resource_key": "orders_queue", "queue": {"name": "orders"}})
    definitions = made.build_defs(dg.ComponentTree.for_test().load_context)
    resource = (definitions.resources or {})["orders_queue"]
    assert (resource.queue, resource.region_name) == ("orders", "eu-west-3")
