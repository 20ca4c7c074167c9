"""Work that takes longer than 12 hours, second way: it stops in time, gives its message back, and goes on later.

Each step is written down under the message's id. After 11 of the 12 hours the task names its message as failed and
succeeds, so the message is visible again, and the next run that receives it goes on where this one stopped. A step must
take less than the hour that is left.

Each such round is one more receive: let `maxReceiveCount` of the queue's redrive policy be larger than the rounds that
the longest work takes. The queue's retention period (4 days by default, at most 14) counts from when the message was
sent, and rounds do not extend it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import ObjectStoragePath, Param, dag, task

from sqs_lease.airflow import sqs_lease


@dag(
    schedule=None,  # a real one: schedule="@hourly", catchup=False
    max_active_runs=4,
    params={"hours": Param(11.0, type="number", description="how long after its start a run gives messages back")},
)
def simulations() -> None:
    """Receive simulations, and calculate each of them for a while."""

    @task(retries=2)
    def calculate(message: Any, directory: str, params: Any = None, dag_run: Any = None) -> dict[str, Any]:
        # The run began before its messages were received, so this is early enough, also after a retry.
        until = dag_run.start_date + timedelta(hours=params["hours"])
        checkpoint = ObjectStoragePath(directory) / f"{message['MessageId']}.json"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        step = json.loads(checkpoint.read_text())["step"] if checkpoint.exists() else 0
        steps = json.loads(message["Body"])["steps"]
        while step < steps:
            print(f"calculating step {step} of {steps}")
            step += 1
            checkpoint.write_text(json.dumps({"step": step}))
            if step < steps and datetime.now(UTC) >= until:
                reason = f"to be continued at step {step} of {steps}"
                return {"batchItemFailures": [{"itemIdentifier": message["MessageId"], "reason": reason}]}
        return {"batchItemFailures": []}

    with sqs_lease(
        "simulations", queue_url="simulations", max_messages=20, linger=5, timeout=10, soft_fail=True
    ) as messages:
        calculate.partial(directory="{{ var.value.get('simulations_directory', 'file:///tmp/simulations') }}").expand(
            message=messages
        )


simulations()
