"""Asset checks of the outcome of leases, and of the backlog of a queue.

Neither fails the run: if the queue cannot be read, the check's result says so.
"""

# No postponed annotations here: Dagster reads the annotations of the checks' functions when they are defined.

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dagster as dg

from sqs_lease.blocking import LeasedBatch, OwnLeasedBatch
from sqs_lease.dagster._internals import (
    asset_of_event,
    event_metadata,
    run_events,
    steps_of_asset,
    without_mapping_key,
)
from sqs_lease.dagster.backlog_sensor import runs_of_assets
from sqs_lease.dagster.metadata import ENDS, HELD, PREFIX, QUEUE, UNSAFE, LeaseNumbers, counts_of
from sqs_lease.dagster.resource import SqsQueueResource, check_queue_resource
from sqs_lease.dagster.run_batch.leased_batch import RunBatch
from sqs_lease.dagster.step_lease import RecordingBatch
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import QueueAttributes

Asset: TypeAlias = dg.AssetsDefinition | dg.AssetKey | str | Sequence[str]


def build_sqs_lease_check(
    asset: Asset,
    *,
    max_failed: int = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    name: str = "sqs_lease",
) -> dg.AssetChecksDefinition:
    """Make a check that no messages failed or were lost when an asset was last materialized.

    It reads the metadata that :meth:`SqsQueueResource.lease` left with the materialization. Leases that were lost, late
    or not settled always fail the check: others may have worked on those messages too.

    If an executor holds the messages, they are settled after the step. A check in the same run is then
    about the messages that the asset's step failed; a later one is about the outcome of all messages.

    In a run that materializes the asset, the check is about that run, partitions included; alone, it is about the
    newest materialization of any partition. If the last run that was to materialize the asset failed before it did, the
    check fails, and tells the outcome of the messages. An asset that no run was to materialize passes.

    The check is about the last attempt at the step. A later attempt or another run works on messages that earlier
    attempts gave back. Messages of an attempt that was killed are named, and do not fail the check: they come back.

    Args:
        asset: The asset; of a multi-asset, the key of one.
        max_failed: How many messages may have failed; 0 by default.
        severity: The severity of a failed check; a warning by default.
        name: The check's name; with several checks of this kind on one asset, each needs its own.

    Raises:
        ValueError: ``max_failed`` is negative.
    """
    _check_limit("max_failed", max_failed)

    @dg.asset_check(
        asset=asset,
        name=name,
        description=f"At most {max_failed} messages failed, and no lease was lost, late or left unsettled.",
    )
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        (check_key,) = context.selected_asset_check_keys
        passed, description, shown = _lease_judged(context, check_key.asset_key, max_failed)
        return dg.AssetCheckResult(passed=passed, severity=severity, description=description, metadata=shown)

    return check


def _lease_judged(
    context: dg.AssetCheckExecutionContext, key: dg.AssetKey, max_failed: int
) -> tuple[bool, str, dict[str, Any]]:
    """Decide whether the last lease of an asset passes, why, and what to show."""
    failed = _last_failure(context, key)
    if failed is not None:
        counts = _ends_of_leases(context.instance, failed, key)
        said = _counts_text(counts)
        leased = f"; of the messages that its step leased: {said}" if said else ""
        description = f"Run {failed.run_id} failed before it materialized the asset{leased}.{_killed_text(counts)}"
        return False, description, {"run": failed.run_id}
    run_id = _run_that_made(context, key)
    if run_id is None:
        return True, "Not materialized yet.", {}
    numbers = _lease_numbers(context.instance, run_id, key)
    if numbers is None:
        description = (
            f"Run {run_id} left no numbers of a lease. This check is for assets that work on messages in every run, "
            "with SqsQueueResource.lease(context)."
        )
        return False, description, {"run": run_id}
    passed, description, shown = _judged(numbers, max_failed)
    run = context.instance.get_run_by_id(run_id)
    killed = "" if run is None else _killed_text(_ends_of_leases(context.instance, run, key))
    return passed, f"{description}{killed}", {"run": run_id, **shown}


def sqs_lease_check_result(
    batch: LeasedBatch,
    *,
    asset_key: dg.AssetKey | str | Sequence[str] | None = None,
    max_failed: int = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    name: str = "sqs_lease",
) -> dg.AssetCheckResult:
    """Make the result of such a check in the op or asset that worked on the messages.

    ::

        @dg.asset(check_specs=[dg.AssetCheckSpec("sqs_lease", asset="orders")])
        def orders(context: dg.AssetExecutionContext, orders_queue: SqsQueueResource) -> dg.MaterializeResult:
            with orders_queue.lease(context) as batch:
                ...
            return dg.MaterializeResult(check_results=[sqs_lease_check_result(batch)])

    It is about the messages that failed so far: they are settled when the step has ended, or when the run has ended if
    an executor holds them.

    Args:
        batch: The batch that ``lease`` gave.
        asset_key: The asset, if the step makes several.
        max_failed: How many messages may have failed; 0 by default.
        severity: The severity of a failed check; a warning by default.
        name: The check's name in its spec.

    Raises:
        ValueError: ``max_failed`` is negative.
    """
    _check_limit("max_failed", max_failed)
    is_open = isinstance(batch, OwnLeasedBatch) and batch.is_open
    counts = LeaseNumbers.of(batch).counts
    if isinstance(batch, RunBatch):
        counts = LeaseNumbers.of_work(batch, len(batch.failed())).counts
    elif isinstance(batch, RecordingBatch) and is_open:
        # Held messages are settled when the step has ended; until then, failures are only noted.
        counts = {**counts, "unsettled": 0, "failed": batch.count_failed()}
    passed, description, shown = _judged(counts, max_failed, is_open=is_open)
    return dg.AssetCheckResult(
        passed=passed,
        asset_key=None if asset_key is None else dg.AssetKey.from_coercible(asset_key),
        check_name=name,
        severity=severity,
        description=description,
        metadata=shown,
    )


def _judged(numbers: Mapping[str, int], max_failed: int, *, is_open: bool = False) -> tuple[bool, str, dict[str, int]]:
    """Decide whether the counts of a lease pass, why, and which of them to show; the lease may still be open."""
    unsafe = {name: numbers.get(name, 0) for name in UNSAFE}
    failed = numbers.get("failed", 0)
    parts = [f"{failed} messages failed"]
    parts += [f"{number} {name}" for name, number in unsafe.items() if number]
    said = ", ".join(parts)
    if is_open:
        said += " so far; the messages are settled later"
    elif not numbers.keys() & {"deleted", *UNSAFE}:
        said += " by the asset's step; the messages are settled later"
    shown = {"received": numbers.get("received", 0), "failed": failed, **unsafe}
    metadata = {f"{PREFIX}{name}": number for name, number in shown.items() if number or name == "received"}
    return failed <= max_failed and not any(unsafe.values()), f"{said}.", metadata


def build_sqs_backlog_check(
    asset: Asset,
    queue: SqsQueueResource,
    *,
    max_visible: int | None = None,
    max_dead_letters: int | None = 0,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    name: str = "sqs_backlog",
) -> dg.AssetChecksDefinition:
    """Make a check of the messages that wait in a queue now, and in its dead-letter queue.

    It reads the queues' attributes when it runs; the counts are approximate. If the queue cannot be read, the check
    fails. A missing dead-letter queue, or one that cannot be read, does not fail it.

    Args:
        asset: The asset; of a multi-asset, the key of one.
        queue: The queue. Its ``EnvVar``s are read when the check runs.
        max_visible: How many messages may wait to be received; None, the default, for any number.
        max_dead_letters: How many messages may be in the dead-letter queue; 0 by default, None for any number.
        severity: The severity of a failed check; a warning by default.
        name: The check's name; with several queues for one asset, each needs its own.

    Raises:
        ValueError: A limit is negative, or no limit is given.
        TypeError: ``queue`` is not a queue.
    """
    check_queue_resource(queue, f"check {name!r}")
    if max_visible is None and max_dead_letters is None:
        raise ValueError(f"check {name!r} needs max_visible or max_dead_letters: without both it never fails")
    for limit, value in (("max_visible", max_visible), ("max_dead_letters", max_dead_letters)):
        if value is not None:
            _check_limit(limit, value)
    limits = {"visible": max_visible, "dead_letters": max_dead_letters}
    shown = [f"{limit} {what.replace('_', ' ')}" for what, limit in limits.items() if limit is not None]

    @dg.asset_check(asset=asset, name=name, description=f"Messages in the queue: at most {' and '.join(shown)}.")
    def check(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        resolved = queue.process_config_and_initialize()
        try:
            attributes = resolved.attributes()
        except SqsError as error:
            return dg.AssetCheckResult(passed=False, severity=severity, description=str(error))
        counts: dict[str, int] = {
            "visible": attributes.visible,
            "in_flight": attributes.in_flight,
            "delayed": attributes.delayed,
        }
        dead_letters, said = _dead_letters(context, resolved, attributes)
        if dead_letters is not None:
            counts["dead_letters"] = dead_letters
        over = [
            f"{counts[what]} {what.replace('_', ' ')}, more than {limit}"
            for what, limit in limits.items()
            if limit is not None and counts.get(what, 0) > limit
        ]
        return dg.AssetCheckResult(
            passed=not over,
            severity=severity,
            description=f"{'; '.join(over) or 'Within the limits'}{said}.",
            metadata={QUEUE: resolved.queue, **{f"{PREFIX}{what}": number for what, number in counts.items()}},
        )

    return check


def _dead_letters(
    context: dg.AssetCheckExecutionContext, queue: SqsQueueResource, attributes: QueueAttributes
) -> tuple[int | None, str]:
    """Count the messages in the dead-letter queue; None, and the reason, if that is not known."""
    if attributes.dead_letter_arn is None:
        return None, ", and there is no dead-letter queue"
    try:
        return queue.model_copy(update={"queue": attributes.dead_letter_arn}).attributes().visible, ""
    except SqsError as error:
        context.log.warning("The dead-letter queue is not counted: %s", error)
        return None, ", and the dead-letter queue cannot be read (the log says why)"


def _run_that_made(context: dg.AssetCheckExecutionContext, key: dg.AssetKey) -> str | None:
    """Return this run, if it materialized the asset, or else the last one that did."""
    if _events(context.instance, context.run.run_id, key, {dg.DagsterEventType.ASSET_MATERIALIZATION}):
        return context.run.run_id
    latest = context.instance.get_latest_materialization_event(key)
    return None if latest is None else latest.run_id


def _last_failure(context: dg.AssetCheckExecutionContext, key: dg.AssetKey) -> dg.DagsterRun | None:
    """Find the last run before this one that was to materialize an asset, if it failed and did not."""
    record = next(iter(runs_of_assets(context.instance, [key], most=1)), None)
    if record is None:
        return None
    run = record.dagster_run
    if run.run_id == context.run.run_id or run.status is not dg.DagsterRunStatus.FAILURE:
        return None
    made = _events(context.instance, run.run_id, key, {dg.DagsterEventType.ASSET_MATERIALIZATION})
    return None if made else run


def _ends_of_leases(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey) -> Counter[str]:
    """Sum the counts at the beginnings and ends of an asset's leases over all attempts, from the run's log."""
    steps = steps_of_asset(instance, run, key)
    counts: Counter[str] = Counter()
    for event in run_events(instance, run.run_id, {dg.DagsterEventType.ENGINE_EVENT}):
        if event.step_key is not None and without_mapping_key(event.step_key) in steps:
            numbers = event_metadata(event)
            counts.update(counts_of(numbers) if QUEUE in numbers or HELD in numbers else {})
    return counts


def _killed_text(counts: Counter[str]) -> str:
    """Return a sentence about leases that never ended; empty if all ended."""
    held = counts["held"] - counts["received"]
    if held <= 0:
        return ""
    return f" An attempt that was killed held {held} messages: they come back when their last extension ends."


def _counts_text(counts: Mapping[str, int]) -> str:
    said = ((counts.get(name, 0), name.replace("_", "-")) for name in ("received", *ENDS))
    return ", ".join(f"{number} {what}" for number, what in said if number)


def _lease_numbers(instance: dg.DagsterInstance, run_id: str, key: dg.AssetKey) -> dict[str, int] | None:
    """Read the counts that the leases of an asset left in a run; None without counts."""
    # The newest event: the outcome is observed when the step or the run has ended.
    types = {dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION}
    left = next((each for each in _events(instance, run_id, key, types) if QUEUE in each), None)
    return None if left is None else counts_of(left)


def _events(
    instance: dg.DagsterInstance, run_id: str, key: dg.AssetKey, types: set[dg.DagsterEventType]
) -> list[Mapping[str, Any]]:
    """Yield the metadata of a run's events of an asset, the newest first."""
    events = run_events(instance, run_id, types, newest_first=True)
    return [event_metadata(event) for event in events if asset_of_event(event) == key]


def _check_limit(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0 on, not {value!r}")
