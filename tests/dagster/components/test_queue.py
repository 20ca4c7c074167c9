"""A queue that is declared in YAML once, and a sensor of its backlog: what is made of them, and what is wrong."""

import dagster as dg
import pytest

from sqs_lease.dagster import SqsQueueComponent, SqsQueueResource
from sqs_lease.testing import LeasedQueues
from tests.dagster.components.shop import FUNCTION, QUEUE, SENSOR, Shop, refused


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


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("other", QUEUE.replace("{name: orders}", "{component: queues/orders}"), "give the queue's name here"),
        ("sensor", SENSOR.replace("min_messages: 2", "min_messages: 0"), "min_messages must be at least 1, not 0"),
    ],
)
def test_a_wrong_setting_is_named_by_its_key_when_the_folder_is_loaded(
    shop: Shop, name: str, text: str, said: str
) -> None:
    shop.write(f"{name}/defs.yaml", text)
    assert said in refused(shop)


def test_a_component_of_another_kind_is_not_taken_for_a_queue(shop: Shop) -> None:
    shop.write("orders/defs.yaml", FUNCTION.replace("{component: queues/orders}", "{name: orders}"))
    shop.write("sensor/defs.yaml", SENSOR.replace("queues/orders", "orders"))
    assert "'orders' is a SqsFunctionComponent, not a SqsQueueComponent" in refused(shop)


class OtherAccount(SqsQueueComponent):
    """A queue that is reached in another way."""

    def get_resource(self) -> SqsQueueResource:
        return super().get_resource().model_copy(update={"region_name": "eu-west-3"})


def test_a_subclass_says_how_a_queue_is_reached() -> None:
    made = OtherAccount.resolve_from_dict({"resource_key": "orders_queue", "queue": {"name": "orders"}})
    definitions = made.build_defs(dg.ComponentTree.for_test().load_context)
    resource = (definitions.resources or {})["orders_queue"]
    assert (resource.queue, resource.region_name) == ("orders", "eu-west-3")
