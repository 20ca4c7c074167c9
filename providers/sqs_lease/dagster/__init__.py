"""SQS leases in Dagster: messages stay invisible while an asset or job works on them, and its end settles them."""

from __future__ import annotations

try:
    import dagster  # noqa: F401 - so that an error names what to install
except ModuleNotFoundError as missing:
    missing.add_note('sqs_lease.dagster needs an extra: pip install "sqs-lease[dagster]"')
    raise

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.failure_rules import MessageFailed
from sqs_lease.dagster._internals import register_library
from sqs_lease.dagster.backlog_sensor import Backlog, build_sqs_backlog_sensor
from sqs_lease.dagster.checks import build_sqs_backlog_check, build_sqs_lease_check, sqs_lease_check_result
from sqs_lease.dagster.components.leased_asset import (
    LeasedAssetComponent,
    SqsFunctionComponent,
    SqsIngestionComponent,
)
from sqs_lease.dagster.components.queue import SqsBacklogSensorComponent, SqsQueueComponent
from sqs_lease.dagster.dispatch import DispatchError
from sqs_lease.dagster.executor import ResumedRunError, sqs_lease_executor
from sqs_lease.dagster.metadata import lease_metadata
from sqs_lease.dagster.resource import SqsQueueResource
from sqs_lease.dagster.router import RouterError, build_sqs_router
from sqs_lease.dagster.run_batch.batch_of_run import BATCH_TAG
from sqs_lease.dagster.spark import ingest_with_spark, reported_result, settle_ingestion, stored_batch
from sqs_lease.ingestion.job import JobError, job_arguments

__all__ = [
    "BATCH_TAG",
    "Backlog",
    "DispatchError",
    "JobError",
    "LeasedAssetComponent",
    "LeasedBatch",
    "MessageFailed",
    "ResumedRunError",
    "RouterError",
    "SqsBacklogSensorComponent",
    "SqsFunctionComponent",
    "SqsIngestionComponent",
    "SqsQueueComponent",
    "SqsQueueResource",
    "build_sqs_backlog_check",
    "build_sqs_backlog_sensor",
    "build_sqs_lease_check",
    "build_sqs_router",
    "ingest_with_spark",
    "job_arguments",
    "lease_metadata",
    "reported_result",
    "settle_ingestion",
    "sqs_lease_check_result",
    "sqs_lease_executor",
    "stored_batch",
]

register_library()
