"""The step that a context belongs to: its key, metadata for what it makes, and whether it is tried again."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import dagster as dg
from dagster._core.events import AssetObservationData, EngineEventData, RunFailureReason
from dagster._core.execution.plan.compute_generator import validate_and_coerce_op_result_to_iterator
from dagster._core.execution.retries import auto_reexecution_should_retry_run

if TYPE_CHECKING:
    from dagster._core.definitions.job_base import IJob
    from dagster._core.execution.context.system import PlanOrchestrationContext

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


def warn_in_log(instance: dg.DagsterInstance, seen: dg.EventLogEntry, text: str) -> None:
    """Add a warning to a run's log, from a listener of the instance's events: Dagster's loggers take nothing then.

    Args:
        instance: The instance.
        seen: The event that it is about.
        text: What the log says.
    """
    warning = dg.EventLogEntry(  # type: ignore[no-untyped-call]
        error_info=None,
        level=logging.WARNING,
        user_message=text,
        run_id=seen.run_id,
        timestamp=time.time(),
        step_key=seen.step_key,
        job_name=seen.job_name,
    )
    instance.handle_new_event(warning)


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


def output_events(context: Context, result: object) -> Iterator[Any]:
    """Yield what a step's function returned, as if it had yielded it: Dagster does so with every function.

    Args:
        context: The context of the asset or op, in a step.
        result: What the function returned: values, outputs, results, or a generator of them.
    """
    yield from validate_and_coerce_op_result_to_iterator(result, context, context.op_def.output_defs)


def _only_partition(context: dg.AssetExecutionContext) -> str | None:
    """The partition that is made; None without partitions, or with several at once."""
    keys = context.partition_keys if context.has_partition_key or context.has_partition_key_range else []
    return keys[0] if len(keys) == 1 else None


_MAPPING_KEY: Final = re.compile(r"\[[^]]*\]")


def without_mapping_key(step_key: str) -> str:
    """Return the key of the step that a step of a dynamic output is made of; other keys are as they were."""
    return _MAPPING_KEY.sub("", step_key)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step of a run's plan.

    Attributes:
        upstream: The keys of the steps that it waits for.
        assets: The keys of the assets that it makes.
        is_executed: Whether the run executes it.
    """

    upstream: frozenset[str]
    assets: frozenset[dg.AssetKey]
    is_executed: bool


def planned_steps(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dict[str, PlannedStep]:
    """Return the steps of a run by key, those of dynamic outputs by the key of the step they are made of."""
    if run.execution_plan_snapshot_id is None:
        return {}
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    executed = set(map(without_mapping_key, plan.step_keys_to_execute))
    steps: dict[str, PlannedStep] = {}
    for step in plan.steps:
        key = without_mapping_key(step.key)
        upstream = {without_mapping_key(each) for value in step.inputs for each in value.upstream_step_keys}
        made = [output.properties.asset_key for output in step.outputs if output.properties is not None]
        assets = frozenset(asset for asset in made if asset is not None)
        steps[key] = PlannedStep(frozenset(upstream), assets, key in executed)
    return steps


@dataclass(frozen=True, slots=True)
class JobParts:
    """What a run leaves out of its job as it is defined.

    Attributes:
        left_out_steps: The keys of steps.
        left_out_assets: The assets of steps that it executes.
        is_implicit: Whether nobody defined the job: it is the one by which Dagster materializes any assets.
    """

    left_out_steps: Collection[str]
    left_out_assets: Collection[str]
    is_implicit: bool


def parts_left_out(job: IJob, executed: Collection[str]) -> JobParts:
    """Compare what a run executes with its job.

    Of the job that nobody defined, only what is connected with something executed belongs to the work.

    Args:
        job: The job of the run, with the selection of the run.
        executed: The keys of the steps that the run executes.
    """
    # A job without a selection: the one that is defined.
    whole, selected = job.get_subset().get_definition(), job.get_definition()
    is_implicit = whole.name == _IMPLICIT_JOB
    done = set(map(without_mapping_key, executed))
    left_out = set(_steps_of(whole.graph)) - done
    if is_implicit:
        near = _connected_nodes(whole.graph, {key.partition(".")[0] for key in done})
        left_out = {key for key in left_out if key.partition(".")[0] in near}
    layer = whole.asset_layer
    assets = {
        key.to_user_string()
        for key in layer.selected_asset_keys - selected.asset_layer.selected_asset_keys
        if str(layer.get_op_output_handle(key).node_handle) in done
    }
    return JobParts(left_out, assets, is_implicit)


_IMPLICIT_JOB: Final = "__ASSET_JOB"


def _steps_of(graph: dg.GraphDefinition, prefix: str = "") -> Iterator[str]:
    for node in graph.nodes:
        if isinstance(node.definition, dg.GraphDefinition):
            yield from _steps_of(node.definition, f"{prefix}{node.name}.")
        else:
            yield f"{prefix}{node.name}"


def _connected_nodes(graph: dg.GraphDefinition, chosen: Collection[str]) -> set[str]:
    """The nodes before and after some, near and far."""
    before = {
        node.name: {
            output.node_name
            for outputs in graph.dependency_structure.input_to_upstream_outputs_for_node(node.name).values()
            for output in outputs
        }
        for node in graph.nodes
    }
    after: dict[str, set[str]] = {}
    for name, several in before.items():
        for each in several:
            after.setdefault(each, set()).add(name)
    found: set[str] = set()
    for start in chosen:
        found |= reached(before, start) | reached(after, start)
    return found


def reached(edges: Mapping[str, Collection[str]], start: str) -> set[str]:
    """Return what can be reached from a start over edges, near and far."""
    found: set[str] = set()
    waiting = list(edges.get(start, ()))
    while waiting:
        if (key := waiting.pop()) not in found:
            found.add(key)
            waiting.extend(edges.get(key, ()))
    return found


def orchestrated_by(plan_context: PlanOrchestrationContext, executor: dg.Executor) -> PlanOrchestrationContext:
    """Return the context of a run for an executor that another one hands the steps to.

    Executors may look for themselves there: Celery's asks ``plan_context.executor`` for its broker. There is no public
    way to say so. Where Dagster builds its context differently, this fails when the run starts, before a message is
    received.

    Args:
        plan_context: The context that the outer executor was given.
        executor: The executor that runs the steps.
    """
    return type(plan_context)(
        plan_context.plan_data,
        plan_context.log,
        executor,
        plan_context.output_capture,
        plan_context.resume_from_failure,
    )


def materialized_by(
    instance: dg.DagsterInstance, run: dg.DagsterRun, steps: Collection[str]
) -> list[tuple[dg.AssetKey, str | None]]:
    """Return the assets that some steps of a run materialized, once for each partition.

    Args:
        instance: The instance that has the run.
        run: The run, under way or over.
        steps: The keys of the steps.
    """
    made: dict[tuple[dg.AssetKey, str | None], None] = {}
    for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION):
        event = entry.dagster_event
        if event is not None and event.step_key in steps:
            materialization = event.step_materialization_data.materialization
            made[materialization.asset_key, materialization.partition] = None
    return list(made)


def observe(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: Iterable[tuple[dg.AssetKey, str | None]],
    metadata: Metadata,
) -> None:
    """Add an observation to some assets of a run, from outside of its steps.

    Dagster has a public way for observations that belong to no run only (``report_runless_asset_event``). Events of a
    run are written by ``report_dagster_event``, which the daemon and the launchers use as well.

    Args:
        instance: The instance that has the run.
        run: The run, under way or over.
        assets: Their keys and partitions.
        metadata: By key.
    """
    for key, partition in assets:
        observation = dg.AssetObservation(key, metadata=metadata, partition=partition)
        event = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_OBSERVATION.value,
            run.job_name,
            event_specific_data=AssetObservationData(observation),
        )
        instance.report_dagster_event(event, run.run_id)
