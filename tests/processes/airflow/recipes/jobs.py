"""A DAG whose work is a deferrable operator, as in the recipe deferrable_jobs.py, with jobs that need no service."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import BaseOperator, dag

from sqs_lease.airflow import sqs_lease


class Job(BaseOperator):
    """Defers until a job elsewhere has ended, as operators of jobs do, and then fails if the job did."""

    def __init__(self, *, body: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.body = body

    def execute(self, context: Any) -> None:
        """Wait in the triggerer."""
        self.defer(trigger=TimeDeltaTrigger(timedelta(seconds=0.1)), method_name="ended")

    def ended(self, context: Any, event: Any = None) -> None:
        """Resume."""
        if self.body == "bad":
            raise RuntimeError("the job failed")


def body_of(message: Any) -> Any:
    """Return the argument of a message's job."""
    return message["Body"]


@dag(schedule=None)
def jobs_elsewhere() -> None:
    """Receive jobs, and run each."""
    with sqs_lease("jobs", queue_url="jobs", timeout=5) as messages:
        Job.partial(task_id="job").expand(body=messages.map(body_of))


jobs_elsewhere()
