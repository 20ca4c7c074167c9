"""The cost of a store of objects for a task that is not the first of its process, and the name of its calls."""

from __future__ import annotations

import sqs_lease
from sqs_lease.spark.sources.s3_events.object_store import ObjectStore


def test_the_store_of_a_second_task_reads_no_data_file_of_botocore_again(read_by_botocore: list[str]) -> None:
    assert ObjectStore(connections=1, region="eu-west-1").client
    read_by_botocore.clear()
    assert ObjectStore(connections=1, region="eu-west-1").client
    assert read_by_botocore == []


def test_its_calls_name_the_package_and_its_version() -> None:
    store = ObjectStore(connections=1, region="eu-west-1")
    assert store.client.meta.config.user_agent_extra == f"sqs-lease/{sqs_lease.__version__}"
