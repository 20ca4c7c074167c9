"""The metadata of a lease with an asset, for people: counts that are not 0, and one row for the rest."""

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest

from sqs_lease import Fixed
from sqs_lease.dagster import SqsQueueResource
from sqs_lease.dagster.metadata import LeaseNumbers
from sqs_lease.testing import AuditKind, LeasedQueue, LeasedQueues
from tests.dagster.eventually import eventually

ORDERS = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
RETURNS = "https://sqs.eu-west-1.amazonaws.com/123456789012/returns"


def numbers(queue_url: str, sent_at: datetime | None = None, **counts: int) -> LeaseNumbers:
    return LeaseNumbers({"received": 0, **counts}, sent_at, (queue_url,))


@pytest.fixture
def messages(leased_queues: LeasedQueues) -> LeasedQueue:
    return leased_queues.create("orders", "a", "b", visibility_seconds=600)


def rows(asset: dg.AssetsDefinition) -> tuple[dict[str, object], dict[str, object]]:
    """The rows of a materialization of an asset, and of the observation at the end of its step, without the link."""
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([asset], instance=instance, resources={"queue": SqsQueueResource(queue="orders")})
        (made,) = result.asset_materializations_for_node("orders")
        (record,) = instance.fetch_observations(dg.AssetKey("orders"), limit=10).records
        assert record.asset_observation is not None
        return tuple(  # type: ignore[return-value]
            {key: value.value for key, value in each.items() if key != "sqs/console"}
            for each in (made.metadata, record.asset_observation.metadata)
        )


def test_a_batch_that_went_well_has_no_counts_of_what_did_not_happen(messages: LeasedQueue) -> None:
    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            pass

    materialized, observed = rows(orders)
    assert materialized.pop("sqs/oldest_age_seconds") is not None
    assert observed.pop("sqs/oldest_age_seconds") is not None
    assert materialized == {"sqs/received": 2, "sqs/queue": messages.url}
    assert observed == {"sqs/received": 2, "sqs/deleted": 2, "sqs/queue": messages.url}


def test_failures_are_counted_and_one_row_has_the_queue_the_calls_and_the_messages_of_others(
    messages: LeasedQueue, leased_queues: LeasedQueues
) -> None:
    def extensions() -> int:
        return sum(entry.kind is AuditKind.CHANGED for entry in leased_queues.sqs.trail().entries())

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        policy = Fixed(visibility=600, every=0.2)
        with queue.lease(context, max_messages=1, wait=0, linger=0, policy=policy) as batch:
            leased_queues.sqs.receive(messages.url, max_messages=1, visibility_seconds=600, caller="another")
            messages.send("c")
            eventually(lambda: extensions() > 0, "the message is extended")
            batch.fail(next(iter(batch)), "it is bad")

    _, observed = rows(orders)
    counts = {key.removeprefix("sqs/"): value for key, value in observed.items() if isinstance(value, int)}
    extended = counts.pop("extensions")
    # The message that failed is visible again.
    assert counts == {"received": 1, "deleted": 0, "released": 1, "failed": 1, "left_visible": 2}
    assert observed["sqs/queue"] == f"{messages.url}; {extended} calls that extended leases; 1 left in flight"


def test_an_empty_batch_says_that_nothing_came(leased_queues: LeasedQueues) -> None:
    url = leased_queues.create("orders").url

    @dg.asset
    def orders(context: dg.AssetExecutionContext, queue: SqsQueueResource) -> None:
        with queue.lease(context, wait=0, linger=0):
            pass

    materialized, observed = rows(orders)
    assert materialized == {"sqs/received": 0, "sqs/queue": url}
    assert observed == {"sqs/received": 0, "sqs/deleted": 0, "sqs/queue": url}


def test_a_queue_on_aws_has_a_link_to_the_console() -> None:
    link = numbers(ORDERS).metadata()["sqs/console"]
    assert isinstance(link, dg.UrlMetadataValue)
    assert str(link.value).startswith("https://eu-west-1.console.aws.amazon.com/sqs/v3/home?region=eu-west-1#/queues/")


def test_a_queue_elsewhere_has_no_link_to_the_console() -> None:
    assert "sqs/console" not in numbers("http://127.0.0.1:4566/000000000000/orders").metadata()


def test_leases_of_one_step_are_added_up_and_of_several_queues_the_last_one_is_linked() -> None:
    now = datetime.now(UTC)
    first, last = numbers(ORDERS, now - timedelta(hours=1), failed=1), numbers(RETURNS, now, failed=2, lost=1)
    both = (first + last + numbers(ORDERS)).metadata()
    assert both["sqs/queue"].value == f"{ORDERS}, {RETURNS}"
    assert both["sqs/console"] == last.metadata()["sqs/console"]
    assert (both["sqs/failed"].value, both["sqs/lost"].value) == (3, 1)
    age = both["sqs/oldest_age_seconds"].value
    assert isinstance(age, float)
    assert age >= 3600
