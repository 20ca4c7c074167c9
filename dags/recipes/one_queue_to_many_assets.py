"""One queue to many assets: each task takes the messages of its kind, and updates its asset if there are any.

All tasks work on the same batch, so a message is deleted when all of them are done, and a task that fails names its own
messages only. DAGs that are scheduled on one of the assets start when its task has succeeded.
"""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import Asset, ObjectStoragePath, dag, task
from airflow.sdk.exceptions import AirflowSkipException

from sqs_lease.airflow import MessageFailed, sqs_lease

KINDS = ("order", "refund", "complaint")


def kind_of(message: Any) -> str:
    """Return the kind of a message, by its message attribute."""
    return str(message["MessageAttributes"].get("kind", {}).get("StringValue"))


@dag(schedule=None, max_active_runs=1)  # a real one: schedule="*/5 * * * *", catchup=False
def events_to_assets() -> None:
    """Receive events of all kinds, and store each kind where it belongs."""

    @task
    def store(messages: Any, kind: str, directory: str, run_id: Any = None) -> dict[str, Any]:
        chosen = [message for message in messages if kind_of(message) == kind]
        if not chosen:
            raise AirflowSkipException(f"no {kind} this time")  # An asset is updated by success only.
        lines, failures = [], []
        for message in chosen:
            try:
                lines.append(f"{json.dumps(json.loads(message['Body']))}\n")
            except ValueError as error:
                # Only this message is named, so that it does not send the others of its kind back each time.
                failures.append({"itemIdentifier": message["MessageId"], "reason": f"not JSON: {error}"})
        if not lines:
            raise MessageFailed([failure["itemIdentifier"] for failure in failures])
        path = ObjectStoragePath(directory) / kind / f"{run_id.replace(':', '-')}.jsonl"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines))
        except OSError as error:
            # Without names, the events of all kinds would fail.
            raise MessageFailed([message["MessageId"] for message in chosen]) from error
        return {"batchItemFailures": failures}

    @task
    def refuse_others(messages: Any) -> dict[str, Any]:
        # Without this task they would be deleted, because no task failed on them. They go back to the queue, and its
        # redrive policy moves them to the dead-letter queue; on_failure=dead_letter() would do so at once.
        return {
            "batchItemFailures": [
                {"itemIdentifier": message["MessageId"], "reason": "no task is for its kind"}
                for message in messages
                if kind_of(message) not in KINDS
            ]
        }

    with sqs_lease(
        "events",
        queue_url="events-of-all-kinds",
        max_messages=500,
        linger=5,
        timeout=10,
        soft_fail=True,
    ) as messages:
        for kind in KINDS:
            store.override(task_id=f"store_{kind}", outlets=[Asset(f"{kind}s")])(
                messages, kind, directory="{{ var.value.get('events_directory', 'file:///tmp/events') }}"
            )
        refuse_others(messages)


events_to_assets()
