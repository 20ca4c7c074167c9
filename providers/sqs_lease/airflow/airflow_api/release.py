"""The releases of Airflow that the package works on, and the interface that older ones lack.

Since 3.3 a trigger is told that a user acted on its task (``BaseTrigger.on_kill``), and can list variables by prefix
(``Variable.keys``).

Since 3.2 the triggerer gives each answer to the question that it belongs to (``TriggerCommsDecoder`` has a reader).
Triggers give up questions that are not answered in time, and Airflow ends triggers in the middle of a question. Before
3.2 the late answer went to the next question, which failed ("Response read out of order"). So did every later one, of
other triggers and of the triggerer itself.

This module imports nothing else: it must load on every Airflow beside which the base install works.
"""

from __future__ import annotations

from typing import Final

from airflow import __version__

OLDEST: Final = (3, 3)
"""The oldest release that the package works on."""


def release_of(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version."""
    return tuple(map(int, version.split(".")[:2]))


def is_supported(version: str = __version__) -> bool:
    """Whether the package works on a release of Airflow; the one that is installed, by default."""
    return release_of(version) >= OLDEST


def require_supported(version: str = __version__) -> None:
    """Refuse a release that is too old.

    Args:
        version: The release; the one that is installed, by default.

    Raises:
        ImportError: It is too old, with the interface that it lacks.
    """
    if is_supported(version):
        return
    if release_of(version) < (3, 0):
        missing = "the Task SDK (airflow.sdk)"
    elif release_of(version) < (3, 2):
        missing = "a triggerer that gives each answer to the trigger that asked (TriggerCommsDecoder.start_reader)"
    else:
        missing = "triggers that hear of what users do (BaseTrigger.on_kill)"
    raise ImportError(
        f"sqs_lease.airflow needs Airflow {'.'.join(map(str, OLDEST))} or newer, because Airflow {version} lacks "
        f"{missing}; `from sqs_lease import lease` works there, within one task"
    )
