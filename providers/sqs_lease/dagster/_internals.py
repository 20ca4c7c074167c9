"""The step that a context belongs to: its key, metadata for what it makes, and whether it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import dagster as dg
from dagster._core.events import EngineEventData, RunFailureReason
from dagster._core.execution.retries import auto_reexecution_should_retry_run

Context: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext
Metadata: TypeAlias = Mapping[str, dg.MetadataValue]
Combine: TypeAlias = Callable[[Mapping[str, Any], Metadata], Metadata]


def step_key(context: Context) -> str | None:
    """The key of the step under way; None where the function is called directly, as in a test."""
    try:
        return context.op_execution_context.get_step_execution_context().step.key
    except (AttributeError, dg.DagsterError):
        return None


def add_metadata(context: Context, metadata: Metadata, *, combine: Combine | None = None) -> None:
    """Add metadata to the materializations of the step's assets, or to the outputs of an op.

    An asset that was yielded before has its materialization already, so it gets an observation beside it. Outputs of
    ops that were yielded before, and dynamic ones, get nothing.

    Args:
        context: The context of the asset or op; where the function is called directly, nothing is done.
        metadata: By key; what was added before under other keys stays.
        combine: Makes one of what was added before and what is added now; by default what is added now replaces it.
    """
    if step_key(context) is None:
        return
    step = context.op_execution_context.get_step_execution_context()
    if isinstance(context, dg.AssetExecutionContext):
        for key in context.selected_asset_keys:
            if step.has_seen_output(context.assets_def.get_output_name_for_asset_key(key)):
                context.log_event(dg.AssetObservation(key, metadata=metadata, partition=_only_partition(context)))
            else:
                earlier = step.get_asset_metadata(key) or {}
                context.add_asset_metadata(combine(earlier, metadata) if combine else metadata, asset_key=key)
        return
    for output in context.op_def.output_defs:
        if not output.is_dynamic and not step.has_seen_output(output.name):
            earlier = step.get_output_metadata(output.name) or {}
            context.add_output_metadata(combine(earlier, metadata) if combine else metadata, output.name)


def report_event(context: Context, text: str, metadata: Metadata, *, is_listener: bool = False) -> None:
    """Add an event of a step to the run's log.

    Args:
        context: The context of the asset or op, in a step.
        text: What the log says.
        metadata: By key.
        is_listener: Whether a listener of the instance's events calls this. Dagster's loggers take nothing then.
    """
    data = EngineEventData(metadata=metadata)
    if is_listener:
        context.instance.report_engine_event(text, context.run, data, step_key=step_key(context))
    else:
        dg.DagsterEvent.engine_event(context.op_execution_context.get_step_execution_context(), text, data)


def is_tried_again(context: Context, error: Exception) -> bool:
    """Whether Dagster tries a step again that ends with an exception: the step itself, or its run.

    Args:
        context: The context of the asset or op, in a step.
        error: What the step is about to raise.
    """
    step = context.op_execution_context.get_step_execution_context()
    if not step.retry_mode.disabled:
        if isinstance(error, dg.RetryRequested):
            if step.previous_attempt_count < error.max_retries:
                return True
        elif not (isinstance(error, dg.DagsterError) or (isinstance(error, dg.Failure) and not error.allow_retries)):
            policy = step.op_retry_policy
            if policy is not None and step.previous_attempt_count < policy.max_retries:
                return True
    return is_run_tried_again(context.instance, context.run)


def is_run_tried_again(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster repeats a run if one of its steps fails for good.

    Args:
        instance: The instance that has the run.
        run: The run.
    """
    if not instance.run_retries_enabled:
        return False
    failed = run.with_status(dg.DagsterRunStatus.FAILURE)
    return bool(auto_reexecution_should_retry_run(instance, failed, RunFailureReason.STEP_FAILURE))


def _only_partition(context: dg.AssetExecutionContext) -> str | None:
    """The partition that is made; None without partitions, or with several at once."""
    keys = context.partition_keys if context.has_partition_key or context.has_partition_key_range else []
    return keys[0] if len(keys) == 1 else None
