"""A guard for work tasks: it stops work that comes too late, when the messages of a lease are no longer held.

The keeper ends when all of its messages are settled. A work task that is cleared after that runs again, but its
messages are deleted by then, or visible and perhaps received by another consumer, and a keeper no longer settles them.
Work that must not be done twice begins with::

    require_held("orders", message["MessageId"])

To work on messages again, clear the sensor with its downstream tasks: it receives the messages that are visible then.

Both functions ask Airflow twice, which takes about a tenth of a second. The answer is as fresh as the keeper's last
note of it, which it leaves before it settles anything; a lease that was lost is noted within about two seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow.sdk import XComArg, get_current_context
from airflow.sdk.exceptions import AirflowFailException

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY
from sqs_lease.airflow.operators import SqsLeaseKeeperOperator, keepers_of
from sqs_lease.airflow.payload import read_messages
from sqs_lease.airflow.settlement.rules import ENDED
from sqs_lease.airflow.settlement.settler import PROGRESS_KEY, Progress


def still_held(lease: str) -> frozenset[str]:
    """Return the ids of the messages that a lease of this run still holds; to be called in a task.

    Args:
        lease: The lease's name: the task id of its sensor, with or without the prefix of its task group.

    Returns:
        The messages that are neither settled nor lost; none once the keeper ended.

    Raises:
        ValueError: The DAG has no such lease, or more than one.
        TypeError: ``lease`` is not a name.
        RuntimeError: It is called outside a task.
    """
    if not isinstance(lease, str):
        raise TypeError(f"lease must be the name of an sqs_lease() of this DAG, not {type(lease).__name__}")
    task_instance: Any = get_current_context()["ti"]
    keeper = _keeper(task_instance.task.dag, lease)
    settled = _settled(task_instance, keeper)
    if settled is None:
        return frozenset()
    received = task_instance.xcom_pull(task_ids=keeper.receive_task_id, key=RETURN_VALUE_KEY)
    messages = enumerate(read_messages(received or []))
    return frozenset(message["MessageId"] for position, message in messages if position not in settled)


def require_held(lease: str, message_ids: str | Iterable[str]) -> None:
    """Fail the task, without a retry, unless messages are still held; to be called in a task.

    Args:
        lease: As for :func:`still_held`.
        message_ids: The ``MessageId`` of the messages that the task is about to work on, or of one.

    Raises:
        AirflowFailException: One of them is no longer held.
        ValueError: The DAG has no lease of that name, or more than one.
        TypeError: ``lease`` is not a name, or ``message_ids`` are not ids.
        RuntimeError: It is called outside a task.
    """
    wanted = _ids(message_ids)
    if gone := wanted - still_held(lease):
        shown = ", ".join(sorted(gone)[:5])
        raise AirflowFailException(
            f"{len(gone)} of {len(wanted)} messages of the lease {lease!r} are no longer held ({shown}): they were "
            "settled or lost, and this work would be done twice. Clear the sensor, with its downstream tasks, to "
            "receive messages again"
        )


def _ids(message_ids: object) -> set[str]:
    if isinstance(message_ids, str):
        return {message_ids}
    # A message is a mapping, whose keys are strings too.
    if isinstance(message_ids, Iterable) and not isinstance(message_ids, Mapping):
        ids = list(message_ids)
        if all(isinstance(one, str) for one in ids):
            return set(ids)
    # Not the value itself: it may be a message, with its body.
    raise TypeError(
        "message_ids must be the id of a message or a list of ids, as message['MessageId'] is, not "
        f"a {type(message_ids).__name__} of other values"
    )


def any_held(task_instance: Any, keeper: SqsLeaseKeeperOperator, messages: int) -> bool:
    """Whether a keeper still holds any of its messages; the messages are not read.

    Args:
        task_instance: The task instance of any task of the same run.
        keeper: The keeper.
        messages: How many messages the batch has.
    """
    settled = _settled(task_instance, keeper)
    return settled is not None and len(settled) < messages


def keeper_of_work(dag: Any, task_id: str, messages: XComArg) -> SqsLeaseKeeperOperator | None:
    """Find the keeper of the messages that a task works on; None if the messages do not come from a lease.

    Args:
        dag: The DAG.
        task_id: The task.
        messages: The value that the task was given.
    """
    sources = {operator.task_id for operator, _ in XComArg.iter_xcom_references(messages)}
    found = (one for one in keepers_of(dag) if one.receive_task_id in sources and task_id in one.work_task_ids)
    return next(found, None)


def _settled(task_instance: Any, keeper: SqsLeaseKeeperOperator) -> Mapping[int, Any] | None:
    """Read the settlements that a keeper noted, by position; None once it ended."""
    place = {"dag_id": task_instance.dag_id, "run_ids": [task_instance.run_id], "task_ids": [keeper.task_id]}
    states = task_instance.get_task_states(**place).get(task_instance.run_id, {})
    if states.get(keeper.task_id, "removed") in ENDED:
        return None
    return Progress.decode(task_instance.xcom_pull(task_ids=keeper.receive_task_id, key=PROGRESS_KEY)).settled


def _keeper(dag: Any, lease: str) -> SqsLeaseKeeperOperator:
    keepers = keepers_of(dag)
    exact = [keeper for keeper in keepers if keeper.receive_task_id == lease]
    found = exact or [keeper for keeper in keepers if keeper.receive_task_id.endswith(f".{lease}")]
    if len(found) != 1:
        names = ", ".join(sorted(keeper.receive_task_id for keeper in keepers)) or "none"
        raise ValueError(f"DAG {dag.dag_id!r} has {len(found)} leases named {lease!r}; its leases: {names}")
    return found[0]
