"""Large batches on a real object store: S3 as the SQS server serves it, through Airflow's own paths and connection."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import boto3
import pytest

from demo.sqs_server import REGION, SqsServer
from sqs_lease.airflow import read_messages
from sqs_lease.airflow.handover import PayloadError
from sqs_lease.airflow.payload import load_lease, publishable, remove_files
from sqs_lease.core.messages import Lease, Message, Receipt
from sqs_lease.testing import VirtualClock, run_virtual
from tests.airflow.handed import handed_lease
from tests.airflow.virtual_triggerer import RECEIVE

pytestmark = pytest.mark.processes

MESSAGES = [Message(Receipt(f"m{number}", f"handle-{number}"), f"body {number} ä") for number in range(500)]
HANDED = handed_lease([Lease(m.receipt, 1.0, 31.0) for m in MESSAGES])


@pytest.fixture
def bucket(server: SqsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", server.airflow_connection)
    resource = boto3.resource(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    return resource.create_bucket(Bucket=f"leases-{uuid4()}")


def names_in(bucket: Any) -> list[str]:
    return sorted(entry.key for entry in bucket.objects.all())


def test_a_batch_is_written_read_and_removed_through_the_connection_in_the_path(bucket: Any) -> None:
    async def scenario() -> None:
        stored, lease, value = await publishable(f"s3://store@{bucket.name}/a/folder", HANDED, MESSAGES, RECEIVE)
        assert names_in(bucket) == ["a/folder/batch.leases", "a/folder/batch.parquet"]
        assert "handle-7" not in json.dumps([lease, value])
        assert [message["Body"] for message in read_messages(value)] == [message.body for message in MESSAGES]
        assert (await load_lease(lease, RECEIVE)).leases == HANDED.leases
        await remove_files(stored)
        assert names_in(bucket) == []

    run_virtual(scenario, clock=VirtualClock())


def test_a_bucket_that_is_not_there_is_an_error_with_the_remedy(bucket: Any) -> None:
    async def scenario() -> None:
        with pytest.raises(PayloadError, match="cannot be stored at payload='s3://store@nowhere'"):
            await publishable("s3://store@nowhere", HANDED, MESSAGES, RECEIVE)

    run_virtual(scenario, clock=VirtualClock())
