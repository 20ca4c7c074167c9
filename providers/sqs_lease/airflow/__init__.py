"""Airflow: a sensor that receives without deleting, a keeper beside the work, and the context that makes both.

``from sqs_lease.airflow import sqs_lease`` is all that most DAGs need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sqs_lease.airflow.context import sqs_lease
    from sqs_lease.airflow.held_guard import require_held, still_held
    from sqs_lease.airflow.operators import SqsLeaseKeeperOperator
    from sqs_lease.airflow.payload import read_messages
    from sqs_lease.airflow.sensor import SqsLeaseSensor
    from sqs_lease.airflow.spark_operator import SqsToSparkOperator
    from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger
    from sqs_lease.core.failure_rules import MessageFailed

__all__ = [
    "MessageFailed",
    "SqsLeaseKeeperOperator",
    "SqsLeaseSensor",
    "SqsLeaseTrigger",
    "SqsToSparkOperator",
    "read_messages",
    "require_held",
    "sqs_lease",
    "still_held",
]

_MODULES: Final = {
    "MessageFailed": "sqs_lease.core.failure_rules",
    "SqsLeaseKeeperOperator": "sqs_lease.airflow.operators",
    "SqsLeaseSensor": "sqs_lease.airflow.sensor",
    "SqsLeaseTrigger": "sqs_lease.airflow.triggers.watch",
    "SqsToSparkOperator": "sqs_lease.airflow.spark_operator",
    "read_messages": "sqs_lease.airflow.payload",
    "require_held": "sqs_lease.airflow.held_guard",
    "sqs_lease": "sqs_lease.airflow.context",
    "still_held": "sqs_lease.airflow.held_guard",
}


def __getattr__(name: str) -> Any:
    # Imported when asked for: every Airflow command loads this package for its provider metadata.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sqs_lease.airflow.airflow_api.release import require_supported

        require_supported()
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        error.add_note('sqs_lease.airflow needs an extra: pip install "sqs-lease[airflow]"')
        raise
