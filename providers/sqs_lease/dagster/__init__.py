"""SQS leases in Dagster: messages stay invisible while an asset or job works on them, and are settled by its end."""

from __future__ import annotations

from sqs_lease.blocking import LeasedBatch
from sqs_lease.core.failure_rules import MessageFailed
from sqs_lease.dagster.backlog import Backlog
from sqs_lease.dagster.backlog_sensor import build_sqs_backlog_sensor
from sqs_lease.dagster.executor import sqs_lease_executor
from sqs_lease.dagster.ingestion_component import SqsIngestionComponent
from sqs_lease.dagster.lease_metadata import lease_metadata
from sqs_lease.dagster.lease_sensor import build_sqs_lease_sensor
from sqs_lease.dagster.queue_checks import build_sqs_backlog_check, build_sqs_lease_check
from sqs_lease.dagster.queue_resource import SqsQueueResource
from sqs_lease.dagster.resumed_runs import ResumedRunError
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG, RunBatch, leased_batch
from sqs_lease.dagster.spark_ingestion import ingest_by_job, reported_result, settle_ingestion, stored_batch
from sqs_lease.ingestion.job import JobError, job_arguments

__all__ = [
    "BATCH_TAG",
    "Backlog",
    "JobError",
    "LeasedBatch",
    "MessageFailed",
    "ResumedRunError",
    "RunBatch",
    "SqsIngestionComponent",
    "SqsQueueResource",
    "build_sqs_backlog_check",
    "build_sqs_backlog_sensor",
    "build_sqs_lease_check",
    "build_sqs_lease_sensor",
    "ingest_by_job",
    "job_arguments",
    "lease_metadata",
    "leased_batch",
    "reported_result",
    "settle_ingestion",
    "sqs_lease_executor",
    "stored_batch",
]
