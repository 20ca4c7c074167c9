"""How large the failover tests are: in a short form, and in the full form at Airflow's default settings.

``SQS_LEASE_CHAOS=1`` (``make chaos``) selects the full form. The short form has the same scenarios with fewer keepers,
and with a triggerer that counts as dead after 20 s instead of 30 s: not less, because on a loaded machine its first
answer takes 15 s, in which it sends no heartbeat. For the same reason its visibility timeouts are not as short as they
could be on a machine of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.form import FULL_FORM


@dataclass(frozen=True, slots=True)
class Size:
    """One of the two forms.

    Attributes:
        keepers: How many keepers the triggerer holds that is killed.
        messages: How many messages each of them holds.
        visibility_seconds: The visibility timeout of their DAG; None is the default.
        killed_after_seconds: How long after the first receive the first triggerer is killed. The full form does it
            just before the first renewal, which is due after two thirds of the default visibility timeout of 180 s:
            that leaves the other triggerer the least time. The short form does it when all are held.
        held_seconds: How long the messages are held at least after the last was received.
        stalled_seconds: How long a triggerer stands still.
        scheduler_stopped_seconds: How long the scheduler stands still between the receive and the keeper.
        handed_visibility_seconds: The visibility timeout of the messages that are received before that.
        settings: Airflow's settings, as environment variables.
    """

    keepers: int
    messages: int
    visibility_seconds: float | None
    killed_after_seconds: float
    held_seconds: float
    stalled_seconds: float
    scheduler_stopped_seconds: float
    handed_visibility_seconds: float
    settings: Mapping[str, str] = field(default_factory=dict)


SHORT: Final = Size(
    keepers=4,
    messages=10,
    visibility_seconds=120,
    killed_after_seconds=0,
    held_seconds=125,
    stalled_seconds=0,
    scheduler_stopped_seconds=36,
    handed_visibility_seconds=12,
    settings={
        "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
        "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    },
)

FULL: Final = Size(
    keepers=20,
    messages=10,
    visibility_seconds=None,
    killed_after_seconds=110,
    held_seconds=300,
    stalled_seconds=60,
    scheduler_stopped_seconds=90,
    handed_visibility_seconds=30,
)

SIZE: Final = FULL if FULL_FORM else SHORT
