"""Answers of Dagster's GraphQL API about code locations, runs, assets and sensors, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Location:
    """The code location as the web server sees it."""

    server_id: str | None
    """The id of the code server: another one after each reload; `None` while there is no answer."""
    error: str | None
    """Why its definitions could not be loaded; `None` when they are."""
    is_unreachable: bool
    """Whether the reason is that no code server answers, which passes when one is started."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run as Dagster reports it; times are in seconds since the epoch, `None` before they came."""

    run_id: str
    job: str
    state: str
    """For example QUEUED, STARTING, STARTED, CANCELING, SUCCESS, FAILURE, CANCELED."""
    tags: Mapping[str, str]
    config: str
    """Its run configuration, as YAML."""
    parent_run_id: str | None
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True, slots=True)
class Event:
    """A line of the event log of a run."""

    event_type: str | None
    """For example STEP_FAILURE; `None` for what the code logged itself."""
    step: str | None
    """The key of the step, which may have an index; `None` for events of the run."""
    at: float
    """When, in seconds since the epoch."""
    level: str
    message: str
    error: str | None
    """The error with its causes, without their stack traces."""
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Materialization:
    """One materialization of an asset."""

    run_id: str
    at: float
    """When, in seconds since the epoch."""
    partition: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One result of an asset check."""

    run_id: str
    status: str
    """IN_PROGRESS, SUCCEEDED, FAILED, EXECUTION_FAILED or SKIPPED."""
    severity: str | None
    """WARN or ERROR; `None` while there is no result."""
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tick:
    """One evaluation of a sensor by the daemon."""

    status: str
    """STARTED, SKIPPED, SUCCESS or FAILURE."""
    at: float
    """When, in seconds since the epoch."""
    run_ids: Sequence[str]
    run_keys: Sequence[str]
    skip_reason: str | None
    error: str | None
    cursor: str | None


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A run that a tested sensor would have started."""

    run_key: str | None
    tags: Mapping[str, str]
    config: str
    """The run configuration, as YAML."""
    assets: Sequence[str]
    """The keys of the selected assets, their parts joined by slashes."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of testing a sensor."""

    run_requests: Sequence[RunRequest]
    skip_reason: str | None
    error: str | None
    cursor: str | None
