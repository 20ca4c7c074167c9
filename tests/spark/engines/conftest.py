"""What is collected here: native Delta and Iceberg only on a Spark that their jars support."""

from __future__ import annotations

import os

import pyspark
import pytest

from sqs_lease.spark.sinks.jars import TESTED

# On another Spark, `test_table_formats` starts an environment that has the right one, and runs them there.
collect_ignore = [] if pyspark.__version__.rpartition(".")[0] in TESTED else ["table_formats"]

# On a cluster only in `make chaos`: drivers are killed at the same moments by `tests/spark/test_drivers.py`.
LONG = "driver_is_killed"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("SQS_LEASE_CHAOS") == "1":
        return
    left_out = [item for item in items if LONG in item.nodeid and "engines/test_cluster" in item.nodeid]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
