"""Values that callers may give for a queue, a receive, a batch and a send."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sqs_lease.sqs.client import client_config
from sqs_lease.sqs.validation import (
    QueueReference,
    check_batch,
    check_queue_url,
    check_receive,
    check_send,
    check_visibility,
    queue_reference,
)

URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
FIFO = f"{URL}.fifo"


@pytest.mark.parametrize(
    ("given", "reference"),
    [
        ("orders", QueueReference("orders")),
        ("Orders_2-x.fifo", QueueReference("Orders_2-x.fifo")),
        ("q" * 80, QueueReference("q" * 80)),
        ("q" * 75 + ".fifo", QueueReference("q" * 75 + ".fifo")),
        (
            "arn:aws:sqs:eu-west-1:123456789012:orders",
            QueueReference("orders", region="eu-west-1", account="123456789012"),
        ),
        (
            "arn:aws-us-gov:sqs:us-gov-west-1:123456789012:orders.fifo",
            QueueReference("orders.fifo", region="us-gov-west-1", account="123456789012"),
        ),
        (URL, QueueReference("orders", url=URL, region="eu-west-1")),
    ],
)
def test_a_queue_is_given_by_name_arn_or_url(given: str, reference: QueueReference) -> None:
    assert queue_reference(given) == reference


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("sqs.eu-west-1.amazonaws.com", "eu-west-1"),
        ("sqs.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("sqs-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("sqs.us-east-2.api.aws", "us-east-2"),
        ("sqs-fips.us-east-2.api.aws", "us-east-2"),
        ("vpce-0a1b-2c3d.sqs.us-east-1.vpce.amazonaws.com", "us-east-1"),
        ("eu-west-1.queue.amazonaws.com", "eu-west-1"),
        ("queue.amazonaws.com", "us-east-1"),
        ("sqs.eu-west-1.localhost.localstack.cloud", None),
        ("127.0.0.1", None),
        ("sqs.internal.example.com", None),
        ("sqs.us-east-1.amazonaws.com.example.com", None),
    ],
)
def test_the_region_is_read_from_hosts_of_aws_and_from_no_others(host: str, region: str | None) -> None:
    assert queue_reference(f"https://{host}:443/123456789012/orders").region == region


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("", "is not a queue name, ARN or URL"),
        ("   ", "is not a queue name, ARN or URL"),
        (None, "is not a queue name, ARN or URL"),
        ("my queue", "is not a queue name: "),
        ("orders.fifo2", "is not a queue name: "),
        (".fifo", "is not a queue name: "),
        ("q" * 81, "1 to 80 letters"),
        ("q" * 76 + ".fifo", "1 to 80 letters"),
        ("arn:aws:sns:eu-west-1:123456789012:orders", "is not the ARN of an SQS queue"),
        ("arn:aws:sqs:eu-west-1:1234:orders", "is not the ARN of an SQS queue"),
        ("arn:aws:sqs:eu-west-1:123456789012:or ders", "is not a queue name: "),
        ("https://sqs.eu-west-1.amazonaws.com", "is not the URL of an SQS queue"),
        ("sqs.eu-west-1.amazonaws.com/123456789012/orders", "is not the URL of an SQS queue"),
        ("ftp://host/123456789012/orders", "is not the URL of an SQS queue"),
        ("http://host:99999/123456789012/orders", "is not the URL of an SQS queue"),
        ("http://host:port/123456789012/orders", "is not the URL of an SQS queue"),
        ("http://[::1/123456789012/orders", "is not the URL of an SQS queue"),
        ("arn:aws:sqs:eu-west-1:" + "\u0661" * 12 + ":orders", "is not the ARN of an SQS queue"),
        (f"{URL}?Action=SendMessage", "is not the URL of an SQS queue"),
        ("https://host/123456789012/or%20ders", "is not a queue name: "),
    ],
)
def test_a_name_of_no_queue_is_refused(given: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        queue_reference(given)


@pytest.mark.parametrize(
    "given",
    [
        "https://user:hunter2@sqs.eu-west-1.amazonaws.com/123456789012/orders",
        "https://user:hunter2@host:port/orders",
        "https://user:hunt/hunter2@host/orders",
        "https://hunter2@host",
        "user:hunter2@host/orders",
        "http://[user:hunter2@host/orders",
    ],
)
@pytest.mark.parametrize("read", [queue_reference, check_queue_url])
def test_a_password_in_a_url_is_refused_and_not_shown(read: Callable[[str], object], given: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the text is compared below
        read(given)
    assert "hunter2" not in str(refused.value)
    assert "leave out" in str(refused.value)


@pytest.mark.parametrize("given", ["orders", "arn:aws:sqs:eu-west-1:123456789012:orders", None])
def test_where_a_url_is_needed_a_name_is_not_enough(given: Any) -> None:
    with pytest.raises(ValueError, match="is not a queue URL"):
        check_queue_url(given)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"max_messages": 0}, "max_messages must be an integer from 1 to 10, not 0"),
        ({"max_messages": 11}, "from 1 to 10, not 11"),
        ({"max_messages": True}, "from 1 to 10, not True"),
        ({"wait_seconds": -1}, "from 0 to 20, not -1"),
        ({"wait_seconds": 21}, "from 0 to 20, not 21"),
        ({"wait_seconds": 1.5}, r"from 0 to 20, not 1\.5"),
        ({"visibility_seconds": -1}, "visibility timeout must be an integer from 0 to 43200"),
        ({"visibility_seconds": 43_201}, "from 0 to 43200, not 43201"),
        ({"queue_url": URL}, "for FIFO queues only"),
        ({"attempt_id": ""}, "1 to 128"),
        ({"attempt_id": "x" * 129}, "1 to 128"),
        ({"attempt_id": "with space"}, "1 to 128"),
    ],
)
def test_the_arguments_of_a_receive_are_checked(changed: dict[str, Any], text: str) -> None:
    good: dict[str, Any] = {
        "queue_url": FIFO,
        "max_messages": 10,
        "wait_seconds": 20,
        "visibility_seconds": 43_200,
        "attempt_id": "x" * 128,
    }
    check_receive(**good)
    with pytest.raises(ValueError, match=text) as raised:
        check_receive(**good | changed)
    assert URL in str(raised.value)


def test_a_visibility_timeout_of_a_message_that_is_held_is_at_least_a_second() -> None:
    check_visibility(0, "releasing")
    with pytest.raises(ValueError, match="receiving: the visibility timeout must be an integer from 1"):
        check_visibility(0, "receiving", minimum=1)


def test_a_batch_has_ten_entries_at_most() -> None:
    check_batch(range(10), URL)
    with pytest.raises(ValueError, match=r"11 entries in one batch call on .*orders: split them, 10 at most"):
        check_batch(range(11), URL)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"queue_url": URL, "body": ""}, "and not empty"),
        ({"queue_url": FIFO}, "message_group_id is required"),
        ({"queue_url": URL, "deduplication_id": "x"}, "deduplication_id is for FIFO queues only"),
        ({"queue_url": URL, "message_group_id": "a group"}, "message_group_id .* must be 1 to 128"),
        ({"queue_url": FIFO, "message_group_id": "g", "deduplication_id": "é"}, "deduplication_id .* must be 1 to 128"),
    ],
)
def test_the_arguments_of_a_send_are_checked(arguments: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"body": "text", "message_group_id": None, "deduplication_id": None}
    with pytest.raises(ValueError, match=text):
        check_send(**defaults | arguments)


def test_messages_that_a_queue_of_each_kind_takes_may_be_sent() -> None:
    check_send(URL, "text", message_group_id=None, deduplication_id=None)
    check_send(URL, "text", message_group_id="tenant", deduplication_id=None)
    check_send(FIFO, "text", message_group_id="group", deduplication_id=None)
    check_send(FIFO, "text", message_group_id="group", deduplication_id="1")


def test_the_recommended_configuration_waits_longer_than_a_long_poll_and_leaves_retries_to_us() -> None:
    config: Any = client_config(6)
    assert config.read_timeout > 20
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 6
    with pytest.raises(ValueError, match="at least 2"):
        client_config(1)
