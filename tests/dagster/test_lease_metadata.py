"""What a lease leaves as metadata links to its queue."""

from __future__ import annotations

import dagster as dg

from sqs_lease.dagster.metadata import combined_metadata, work_metadata

ORDERS = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
RETURNS = "https://sqs.eu-west-1.amazonaws.com/123456789012/returns"


def test_a_queue_on_aws_has_a_link_to_the_console() -> None:
    link = work_metadata([], ORDERS, 0)["sqs/console"]
    assert isinstance(link, dg.UrlMetadataValue)
    assert str(link.value).startswith("https://eu-west-1.console.aws.amazon.com/sqs/v3/home?region=eu-west-1#/queues/")


def test_a_queue_elsewhere_has_none() -> None:
    assert "sqs/console" not in work_metadata([], "http://127.0.0.1:4566/000000000000/orders", 0)


def test_of_several_queues_the_last_one_is_linked() -> None:
    both = combined_metadata(work_metadata([], ORDERS, 1), work_metadata([], RETURNS, 2))
    assert both["sqs/queue"].value == f"{ORDERS}, {RETURNS}"
    assert both["sqs/console"] == work_metadata([], RETURNS, 0)["sqs/console"]
    assert both["sqs/failed"].value == 3
