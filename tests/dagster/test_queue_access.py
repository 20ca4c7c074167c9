"""How a queue resource reaches AWS: by the region of its queue, and with errors that say what is missing."""

from pathlib import Path

import dagster as dg
import pytest

from sqs_lease.dagster import SqsQueueResource
from sqs_lease.sqs import errors

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
