"""A job elsewhere for each message, by a deferrable operator: it needs no worker slot, and its message stays invisible.

Any operator is work: this one runs a job on AWS Batch. KubernetesPodOperator, EmrServerlessStartJobOperator or
DatabricksSubmitRunOperator are used in the same way. A task that is deferred is not done, so its message is
held; it is deleted when the operator succeeded, and goes back when it has failed for good.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from airflow.providers.amazon.aws.operators.batch import BatchOperator
from airflow.sdk import dag

from sqs_lease.airflow import sqs_lease


def job_for(message: Any) -> dict[str, Any]:
    """Return the parameters of a message's job: its environment."""
    video = json.loads(message["Body"])
    return {"environment": [{"name": "VIDEO", "value": video["url"]}]}


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="*/5 * * * *", catchup=False
def videos_on_batch() -> None:
    """Receive videos, and transcode each of them by a job."""
    with sqs_lease("videos", queue_url="videos", max_messages=100, linger=5, timeout=10, soft_fail=True) as messages:
        BatchOperator.partial(
            task_id="transcode",
            job_name="transcode",
            job_definition="transcode",
            job_queue="videos",
            deferrable=True,
            retries=2,
            retry_delay=timedelta(minutes=1),
        ).expand(container_overrides=messages.map(job_for))


videos_on_batch()
