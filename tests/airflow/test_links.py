"""Tasks link to their queue in the AWS console."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sqs_lease.airflow.links import LINK_KEY, SqsQueueLink
from sqs_lease.sqs.console import console_link
from tests.airflow.leased_messages import LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import RECEIVE, RUN_ID


@pytest.mark.parametrize(
    ("queue_url", "console"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", "https://eu-west-1.console.aws.amazon.com/"),
        ("https://eu-west-1.queue.amazonaws.com/123456789012/orders", "https://eu-west-1.console.aws.amazon.com/"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/123456789012/o.fifo", "https://cn-north-1.console.amazonaws.cn/"),
        (
            "https://sqs.us-gov-west-1.amazonaws.com/123456789012/o",
            "https://us-gov-west-1.console.amazonaws-us-gov.com/",
        ),
    ],
)
def test_a_queue_on_aws_has_a_link_to_the_console_of_its_partition(queue_url: str, console: str) -> None:
    assert console_link(queue_url).startswith(console)


def test_the_link_names_region_and_queue() -> None:
    link = console_link("https://sqs.eu-west-1.amazonaws.com/123456789012/orders")
    _, _, place = link.partition("/sqs/v3/home?")
    assert place == ("region=eu-west-1#/queues/https%3A%2F%2Fsqs.eu-west-1.amazonaws.com%2F123456789012%2Forders")


@pytest.mark.parametrize(
    "queue_url",
    [
        "http://127.0.0.1:4566/000000000000/orders",
        "https://sqs.eu-west-1.amazonaws.com.evil.example/123456789012/orders",
        "orders",
        "",
    ],
)
def test_a_queue_elsewhere_has_no_link(queue_url: str) -> None:
    assert console_link(queue_url) == ""


def test_a_task_links_by_the_url_it_was_given_and_leaves_the_rest_to_its_trigger() -> None:
    link = SqsQueueLink()
    url = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    assert link.get_link(SimpleNamespace(queue_url=url), ti_key=None) == console_link(url)
    assert link.get_link(SimpleNamespace(queue_url="orders"), ti_key=None) == ""
    assert link.get_link(SimpleNamespace(), ti_key=None) == ""
    assert link.xcom_key == LINK_KEY


def test_a_trigger_publishes_the_link_of_a_queue_that_was_given_by_its_name(supervisor: ScriptedComms) -> None:
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        await world.receive(world.triggerer())

    world.run(scenario)
    assert supervisor.xcoms[RUN_ID, RECEIVE.task_id, -1, LINK_KEY] == console_link(world.url)
