"""A forecast whether Dagster tries failed work again, and the rules for failed messages.

Dagster repeats a step by ``RetryPolicy`` or ``RetryRequested``; it says so itself, by the event ``STEP_UP_FOR_RETRY``.
It repeats a *run* by run retries. The daemon decides on these after the run has failed, in another process. When a step
has failed for good, the leases end at once, so this module forecasts the decision from the same settings and tags.

A user's failure rule is for the last attempt. Before that, messages are visible again at once, so that the next attempt
receives them. If it is not known whether there is a next attempt, they are made visible, too: a released message can
still be dead-lettered later, but a dead letter does not come back by itself. It is not known

- on Dagster+, where run retries are a setting of the deployment. User code sees the settings of the local
  ``dagster.yaml``, which do not have it (read in dagster-cloud 1.13.27). The tag ``dagster/max_retries`` counts there,
  too, so a run with that tag is known;
- if the daemon cannot request the retry because the code server is away: Dagster then writes the tag
  ``dagster/will_retry: false``, after the step has failed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

import dagster as dg

from sqs_lease.core.failure_rules import (
    ByExceptionRule,
    DeadLetter,
    FailureRule,
    ReleaseRule,
    Settlement,
)
from sqs_lease.core.specs import OnFailure, resolve_failure_rule
from sqs_lease.dagster._internals import run_retry_settings
from sqs_lease.ingestion.job import JobError

logger = logging.getLogger(__name__)

MAX_RETRIES_TAG: Final = "dagster/max_retries"
RETRY_NUMBER_TAG: Final = "dagster/retry_number"
RETRY_ON_STEP_FAILURE_TAG: Final = "dagster/retry_on_asset_or_op_failure"

_FALSE: Final = frozenset({"false", "none", "0", ""})
"""Values of a tag that Dagster takes for no."""

DAGSTER_PLUS_VARIABLE: Final = "DAGSTER_CLOUD_DEPLOYMENT_NAME"
"""The environment variable that Dagster+ sets in all processes of a deployment."""

_JOB_ERROR: Final = f"{JobError.__module__}.{JobError.__qualname__}"


class Repetition(Enum):
    """Whether Dagster repeats a run."""

    NO = "no"
    UNKNOWN = "unknown"
    YES = "yes"


def repetition(
    instance: dg.DagsterInstance, run: dg.DagsterRun, *, environment: Mapping[str, str] = os.environ
) -> Repetition:
    """Forecast whether Dagster repeats a run after a step of it has failed for good."""
    on_step_failure = run.tags.get(RETRY_ON_STEP_FAILURE_TAG)
    if on_step_failure is not None and on_step_failure.lower() in _FALSE:
        return Repetition.NO
    most = run.tags.get(MAX_RETRIES_TAG)
    if DAGSTER_PLUS_VARIABLE in environment:
        return Repetition.UNKNOWN if most is None else _repetition(run, most)
    try:
        settings = run_retry_settings(instance)
    except Exception:
        # A message that is given back can still be dead-lettered later.
        logger.exception("It is not known whether run %s is repeated: on_failure is not applied", run.run_id)
        return Repetition.UNKNOWN
    if not settings.enabled or not (settings.on_step_failure or on_step_failure is not None):
        return Repetition.NO
    return _repetition(run, str(settings.max_retries) if most is None else most)


def _repetition(run: dg.DagsterRun, most: str) -> Repetition:
    """Whether a run may be repeated once more. Dagster does not repeat runs with a tag that is not a number."""
    try:
        retries_left = int(most)
    except ValueError:
        return Repetition.NO
    with suppress(ValueError):
        retries_left -= int(run.tags.get(RETRY_NUMBER_TAG, "0"))
    return Repetition.YES if retries_left > 0 else Repetition.NO


def exception_of_work(error: BaseException) -> BaseException:
    """Return the exception behind a ``RetryRequested``, which failure rules are about; others as they are.

    A ``RetryPolicy`` also makes a ``RetryRequested`` of the last attempt's exception.
    """
    return error.__cause__ if isinstance(error, dg.RetryRequested) and error.__cause__ is not None else error


@dataclass(frozen=True, slots=True)
class NoDeadLetterForJobErrors(FailureRule):
    """A failure rule that does not dead-letter messages because a Spark job failed.

    A :class:`JobError <sqs_lease.ingestion.job.JobError>` says that the job could not do its work: all executors were
    lost, or the table was locked. Messages are not at fault, so a rule that would dead-letter them makes them visible
    again. Only ``by_exception`` that names ``JobError`` itself is followed exactly.

    Attributes:
        rule: The user's rule.
        is_job_error: Whether a job failed.
    """

    rule: FailureRule
    is_job_error: bool = False

    def settlement(self, *, receive_count: int, reason: str, random: Random) -> Settlement:
        """Settle by the user's rule; if a job failed, release in place of a dead letter."""
        settlement = self.rule.settlement(receive_count=receive_count, reason=reason, random=random)
        if self.is_job_error and isinstance(settlement, DeadLetter):
            return ReleaseRule().settlement(receive_count=receive_count, reason=reason, random=random)
        return settlement

    @property
    def may_dead_letter(self) -> bool:
        """Whether the user's rule may."""
        return self.rule.may_dead_letter

    def matching(self, errors: Sequence[str]) -> FailureRule:
        """Return the user's rule for the exception, without dead letters if a job failed."""
        is_named = isinstance(self.rule, ByExceptionRule) and _JOB_ERROR in dict(self.rule.rules)
        is_job_error = _JOB_ERROR in errors and not is_named
        return NoDeadLetterForJobErrors(self.rule.matching(errors), is_job_error=is_job_error)


def failure_rule(on_failure: OnFailure | None) -> FailureRule:
    """Return the failure rule that a user described, without dead letters if a Spark job failed.

    Args:
        on_failure: A rule, its name, or a mapping of its kind and arguments; None for ``release()``.

    Raises:
        ValueError: There is no rule of that name, or an argument is out of range.
        TypeError: It is of another type, or an argument is unknown.
    """
    return NoDeadLetterForJobErrors(resolve_failure_rule(on_failure))
