"""What the host of a lease sensor is told, and what it tells an evaluation of the sensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqs_lease.dagster.lease_sensor.dispatch import Destination
from sqs_lease.keeper.options import LeaseOptions

FENCE_SECONDS: Final = 5.0
"""How long a host that took over settles nothing: until the former owner has looked, and its last calls are over."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What a host does, as the sensor says.

    Attributes:
        sensor: The sensor's name.
        uri: The sensor's directory, a URI or an absolute path.
        options: How batches are received and kept; a policy without a visibility timeout gets one that outlives a
            takeover.
        max_batches: Most batches that are not settled.
        run_deadline_seconds: How long a run is waited for that does not appear.
        queue: The queue's name, ARN or URL; where that is in the environment, it is known at the first evaluation.
        deployment: Names the Dagster instance and code location, known then, too: no other may use the directory.
        look_seconds: How often the owner is looked at; batches' runs half as often.
        fence_seconds: How long nothing is settled after a takeover.
    """

    sensor: str
    uri: str
    options: LeaseOptions
    max_batches: int
    run_deadline_seconds: float
    queue: str = ""
    deployment: str = ""
    look_seconds: float = 1.0
    fence_seconds: float = FENCE_SECONDS


@dataclass(frozen=True, slots=True)
class Request:
    """A run that is to be started.

    Attributes:
        batch_id: The batch; also the run key.
        uri: The batch's directory.
        messages: How many messages it has.
        destination: Which run it is to be; None for what the sensor says of all runs.
    """

    batch_id: str
    uri: str
    messages: int
    destination: Destination | None = None


@dataclass(frozen=True, slots=True)
class Tick:
    """What an evaluation found.

    Attributes:
        requests: The runs to start; one that was asked for before is among them until it is there.
        waiting: What each other batch waits for, for people.
        received: How many messages were received now.
        news: What happened since the last one, for people.
        failures: What went wrong since the last one that asked for no run, for people.
    """

    requests: Sequence[Request]
    waiting: Sequence[str]
    received: int
    news: Sequence[str] = ()
    failures: Sequence[str] = ()
