"""All uses of Dagster beyond its public interface, each with the nearest public name.

A name is public if the module ``dagster`` exports it and Dagster documents it. All other names here were seen on
Dagster 1.11.16, 1.12.22, 1.13.27 and 1.13.29. ``make versions ROOM=dagster`` tests the oldest and the newest. So there
are no fallbacks for releases that lack a name: the call fails, and the messages are given back.

Private modules are imported only when a name of them is needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import re
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

import dagster as dg

if TYPE_CHECKING:
    from dagster._core.definitions.job_base import IJob
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
    from dagster._core.execution.context.system import PlanOrchestrationContext
    from dagster._core.execution.plan.plan import ExecutionPlan
    from dagster._core.execution.retries import RetryMode
    from dagster._core.execution.step_dependency_config import StepDependencyConfig

    # Parameters and results of public functions; the types themselves are not public.
    AssetJob: TypeAlias = UnresolvedAssetJobDefinition
    __all__ = ["ExecutionPlan", "PlanOrchestrationContext", "RetryMode", "StepDependencyConfig"]

logger = logging.getLogger(__name__)

Context: TypeAlias = dg.AssetExecutionContext | dg.OpExecutionContext | dg.AssetCheckExecutionContext
Metadata: TypeAlias = Mapping[str, dg.MetadataValue]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _private(module: str, name: str) -> Any:
    """Import a name from a private module of Dagster."""
    return getattr(importlib.import_module(f"dagster._core.{module}"), name)


def preview(explanation: str) -> Callable[[_Function], _Function]:
    """Return a decorator for a function that may change in any release: Dagster warns about its use.

    The mark is not public; docstrings say the same.
    """

    def mark(function: _Function) -> _Function:
        annotations = importlib.import_module("dagster._annotations")
        marked: _Function = annotations.preview(function, additional_warn_text=explanation)
        return marked

    return mark


def register_library() -> None:
    """Make Dagster list this package among the libraries of a code location, with its version.

    Dagster's own integrations do the same, by this undocumented module.
    """
    registry = importlib.import_module("dagster_shared.libraries").DagsterLibraryRegistry
    registry.register("sqs-lease", importlib.metadata.version("sqs-lease"), is_dagster_package=False)


# Steps


def step_key(context: Context) -> str | None:
    """Return the key of the step under way; None where the function is called directly, as in a test.

    The public context knows its op, and not its step; ``HookContext.step_key`` is public, in a hook.
    """
    try:
        return str(context.op_execution_context.get_step_execution_context().step.key)
    except dg.DagsterError:
        return None


def add_metadata(context: Context, metadata: Metadata) -> None:
    """Add metadata to the materializations of the step's assets, or to the outputs of an op.

    Dynamic outputs, and outputs that were yielded before, get no metadata; earlier metadata under other keys stays. The
    public context does not know the yielded outputs. If the function is called directly, nothing is done.
    """
    if step_key(context) is None:
        return
    if isinstance(context, dg.AssetExecutionContext):
        step = context.op_execution_context.get_step_execution_context()
        for key in context.selected_asset_keys:
            if not step.has_seen_output(context.assets_def.get_output_name_for_asset_key(key)):
                context.add_asset_metadata(metadata, asset_key=key)
        return
    # The context of an asset check has these methods only here.
    op_context = context.op_execution_context
    for output in op_context.op_def.output_defs:
        if output.is_dynamic:
            continue
        # Dagster refuses it if the output was yielded already.
        with suppress(dg.DagsterInvariantViolationError):
            op_context.add_output_metadata(metadata, output.name)


def report_event(context: Context, text: str, metadata: Metadata) -> None:
    """Add an event of a step to the run's log, also from a listener of the instance's events.

    All public events are about an asset, an output or an expectation.
    """
    data = _private("events", "EngineEventData")(metadata=metadata)
    context.instance.report_engine_event(text, context.run, data, step_key=step_key(context))


def step_exception(context: Context) -> BaseException | None:
    """Return the exception of a failed step, once Dagster reports the failure; None before.

    Public is ``HookContext.op_exception``, in a hook of the op.
    """
    error: BaseException | None = context.op_execution_context.get_step_execution_context().step_exception
    return error


def warn_in_log(instance: dg.DagsterInstance, seen: dg.EventLogEntry, text: str) -> None:
    """Add a warning to a run's log, from a listener of the instance's events: Dagster's loggers do not work there.

    Only the loggers are public.
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


class Listener(Protocol):
    """An object that takes the events of a run."""

    def see(self, instance: dg.DagsterInstance, entry: dg.EventLogEntry) -> None:
        """Take an event. An exception fails the step or run that is about to be reported."""


_Listening = TypeVar("_Listening", bound=Listener)


def listening(context: Context, made: _Listening) -> _Listening:
    """Return the listener of the attempt at a step, which gets the events of its run in this process.

    It is kept with the step's context, which lasts until the step's end is reported; the public contexts end before the
    IO managers store its values. Public hooks run in the process of the step as well, but a user has to add them to
    each job.
    """
    step = context.op_execution_context.get_step_execution_context()
    kept: _Listening = vars(step).setdefault("sqs_lease_listener", made)
    if kept is made:
        instance = context.instance
        # A weak reference, because Dagster keeps the function for as long as the instance, which may outlast many runs.
        heard = weakref.ref(made)

        def hear(entry: dg.EventLogEntry) -> None:
            if (listener := heard()) is not None:
                listener.see(instance, entry)

        instance.add_event_listener(context.run.run_id, hear)
    return kept


@dataclass(frozen=True, slots=True)
class RunRetrySettings:
    """Whether an instance repeats failed runs.

    Attributes:
        enabled: Whether it does.
        max_retries: How often, for runs without a tag of their own.
        on_step_failure: Whether also where a step failed, and not only where the run worker did.
    """

    enabled: bool
    max_retries: int
    on_step_failure: bool


def run_retry_settings(instance: dg.DagsterInstance) -> RunRetrySettings:
    """Return an instance's settings of run retries, which are public in ``dagster.yaml`` only."""
    return RunRetrySettings(
        instance.run_retries_enabled,
        instance.run_retries_max_retries,
        instance.run_retries_retry_on_asset_or_op_failure,
    )


# Components


def component_at(context: dg.ComponentLoadContext, path: str) -> object:
    """Load another component of the same defs folder.

    It is public, under a name that changed after Dagster 1.11.

    Raises:
        Exception: There is no component.
    """
    load = getattr(context, "load_component", None) or getattr(context, "load_component_at_path")  # noqa: B009
    loaded: object = load(path)
    return loaded


# Events of runs


def run_events(
    instance: dg.DagsterInstance, run_id: str, types: Collection[dg.DagsterEventType], *, newest_first: bool = False
) -> Iterator[dg.DagsterEvent]:
    """Yield events of a run of some types, the oldest first by default.

    Public are only those of assets, and not by run (``fetch_materializations``).
    """
    cursor, has_more = None, True
    while has_more:
        found = instance.get_records_for_run(
            run_id, cursor=cursor, of_type=set(types), limit=_EVENTS_AT_ONCE, ascending=not newest_first
        )
        for record in found.records:
            if record.event_log_entry.dagster_event is not None:
                yield record.event_log_entry.dagster_event
        cursor, has_more = found.cursor, found.has_more


_EVENTS_AT_ONCE: Final = 1000


def event_metadata(event: dg.DagsterEvent) -> Mapping[str, Any]:
    """Return the metadata of an event: of an output, a materialization, an observation or a report.

    The data of an event is not public.
    """
    data: Any = event.event_specific_data
    if data is None:
        return {}
    for name in ("materialization", "asset_observation"):
        data = getattr(data, name, data)
    metadata: Mapping[str, Any] = data.metadata or {}
    return metadata


def asset_of_event(event: dg.DagsterEvent) -> dg.AssetKey | None:
    """Return the asset of an event, which is not public; None for events without an asset."""
    return event.asset_key


def error_names(event: dg.DagsterEvent) -> frozenset[str]:
    """Return the names of the exception by which a step failed, or is tried again, and of its causes.

    Public is ``HookContext.op_exception``, in a hook of the step.
    """
    names = set()
    data: Any = event.event_specific_data
    error: Any = data.error
    while error is not None:
        names.add(str(error.cls_name))
        error = error.cause
    return frozenset(names)


def is_interruption(event: dg.DagsterEvent) -> bool:
    """Whether an event says that an executor was told to terminate, and ends its steps.

    The multiprocess executor's sign is not public: ``steps_interrupted`` among the metadata of an engine event.
    """
    if event.event_type is dg.DagsterEventType.STEP_FAILURE:
        return dg.DagsterExecutionInterruptedError.__name__ in error_names(event)
    return event.event_type is dg.DagsterEventType.ENGINE_EVENT and "steps_interrupted" in event_metadata(event)


def add_run_tags(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run that is under way. Public are the tags of a run that is to be started."""
    instance.add_run_tags(run_id, tags)


def executor_events(
    plan_context: PlanOrchestrationContext, text: str, metadata: Metadata | None = None
) -> Iterator[dg.DagsterEvent]:
    """Yield an event of a run for its executor to yield. Executors are public, their events are not."""
    yield dg.DagsterEvent.engine_event(plan_context, text, _private("events", "EngineEventData")(metadata=metadata))


# Plans of runs


_MAPPING_KEY: Final = re.compile(r"\[[^]]*\]")


def without_mapping_key(step_key: str) -> str:
    """Return the key of the step that a step of a dynamic output is made of; other keys are as they were."""
    return _MAPPING_KEY.sub("", step_key)


def steps_of_asset(instance: dg.DagsterInstance, run: dg.DagsterRun, key: dg.AssetKey) -> set[str]:
    """Return the keys of the steps of a run that make an asset. Plans of runs are not public."""
    if run.execution_plan_snapshot_id is None:
        return set()
    plan = instance.get_execution_plan_snapshot(run.execution_plan_snapshot_id)
    return {
        without_mapping_key(step.key)
        for step in plan.steps
        for output in step.outputs
        if output.properties is not None and output.properties.asset_key == key
    }


def awaited_steps(plan: ExecutionPlan) -> Mapping[str, Collection[str]]:
    """Return the steps that each step of a plan waits for. Executors are public, their plans are not."""
    return plan.get_all_step_deps()


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts of a defined job that a run leaves out.

    Attributes:
        left_out_steps: The keys of steps.
        left_out_assets: The assets of steps that it executes.
        is_implicit: Whether the job is Dagster's own, with which it materializes any assets.
    """

    left_out_steps: Collection[str]
    left_out_assets: Collection[str]
    is_implicit: bool


def parts_left_out(job: IJob, executed: Collection[str]) -> JobParts:
    """Compare the steps that a run executes with its job. An executor's knowledge of its job is not public.

    In Dagster's own job of all assets, only assets connected with executed ones belong to the work. The job is that of
    the run, with the selection of the run.
    """
    # A job without a selection: the one that is defined.
    whole, selected = job.get_subset().get_definition(), job.get_definition()
    is_implicit = whole.name == _IMPLICIT_JOB
    done = set(map(without_mapping_key, executed))
    left_out = set(_steps_of(whole.graph)) - done
    if is_implicit:
        # All that is before or after a node, as an op selection names it.
        near = _private("selector.subset_selector", "parse_op_queries")(
            whole.graph, [f"*{name}*" for name in {key.partition(".")[0] for key in done}]
        )
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


# Sensors


def is_tick_of_the_daemon(context: dg.SensorEvaluationContext) -> bool:
    """Whether the daemon evaluates a sensor, and not a person who tests it in the web UI or in a unit test.

    There is no public sign of it. The daemon names the log of an evaluation by the number of its tick; other logs are
    named by the time, or have no name.
    """
    log_key = context.log_key
    return bool(log_key and log_key[-1].isdigit())


def name_of_sensor(name: str, context: dg.SensorEvaluationContext) -> str:
    """Return a sensor's name with that of its code location: sensors of other code locations may have the same name.

    The public context knows the repository only. It is the plain name if the sensor is evaluated by hand.
    """
    origin = context.code_location_origin
    return name if origin is None else f"{name}@{origin.location_name}"


def is_asset_job(target: object) -> bool:
    """Whether an object is a result of ``define_asset_job``; the type is not public."""
    return isinstance(target, type(dg.define_asset_job("any")))


# Runs that sensors ask for


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions by which Dagster refuses arguments: its errors, and those of its argument checks.

    Those of the checks are not public.
    """
    return dg.DagsterError, importlib.import_module("dagster._check").CheckError


def assets_of_job(job: dg.JobDefinition) -> frozenset[dg.AssetKey]:
    """Return the assets that a job makes. The documented interface does not have them."""
    return frozenset(job.asset_layer.selected_asset_keys)


def job_of_assets(job: dg.JobDefinition, assets: Collection[dg.AssetKey]) -> dg.JobDefinition:
    """Return a job with some of its assets only, as a run of them has it. It is not documented.

    Raises:
        dagster.DagsterError: They cannot be made without others.
    """
    return job.get_subset(asset_selection=set(assets))


def dynamic_partitions(partitions: dg.PartitionsDefinition[str], key: str) -> dict[str, str]:
    """Return the dynamic partitions that a key stands for: keys by the names of partitions definitions.

    The dimensions of partitions are not documented.

    Raises:
        Exception: One of :func:`refusals`: it cannot be a key.
    """
    if isinstance(partitions, dg.DynamicPartitionsDefinition):
        return {} if partitions.name is None else {partitions.name: key}
    if not isinstance(partitions, dg.MultiPartitionsDefinition):
        return {}
    keys = partitions.get_partition_key_from_str(key).keys_by_dimension
    dimensions = [dynamic_partitions(each.partitions_def, keys[each.name]) for each in partitions.partitions_defs]
    return {name: value for found in dimensions for name, value in found.items()}


def with_partition(
    sensor: dg.SensorDefinition,
    context: dg.SensorEvaluationContext,
    request: dg.RunRequest,
    added: Sequence[dg.AddDynamicPartitionsRequest],
) -> dg.RunRequest:
    """Return the request of a run of a partition with the tags and the configuration that Dagster gives to it.

    It is done when an evaluation has ended, in a way that is not documented, for all of its runs or for none.

    Raises:
        Exception: One of :func:`refusals`: there is no such partition.
    """
    (resolved,) = sensor.resolve_run_requests([request], context, None, list(added))
    return resolved


def wrong_config(error: dg.DagsterInvalidConfigError) -> list[str]:
    """Return the errors of a run configuration, without its values, which the exception's text may quote.

    It is not documented.
    """
    return sorted({f"{':'.join(each.stack.levels) or 'the top'}: {each.reason.value.lower()}" for each in error.errors})


# Assets of runs


def runs_planned_for(instance: dg.DagsterInstance, key: dg.AssetKey, most: int) -> list[str]:
    """Return the ids of runs that were to materialize an asset, the newest first, once for each partition.

    Public is ``fetch_materializations``, of those that did materialize it.
    """
    planned = instance.fetch_planned_materializations(key, limit=most).records
    return [record.run_id for record in planned]


def materialized_by(
    instance: dg.DagsterInstance, run: dg.DagsterRun, steps: Collection[str]
) -> list[tuple[dg.AssetKey, str | None]]:
    """Return the assets that some steps of a run materialized, once for each partition.

    Public is ``fetch_materializations``, by asset and not by run.
    """
    made: dict[tuple[dg.AssetKey, str | None], None] = {}
    for event in run_events(instance, run.run_id, {dg.DagsterEventType.ASSET_MATERIALIZATION}):
        if event.step_key in steps and (key := asset_of_event(event)) is not None:
            made[key, event.step_materialization_data.materialization.partition] = None
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
    """
    for key, partition in assets:
        observation = dg.AssetObservation(key, metadata=metadata, partition=partition)
        event = dg.DagsterEvent(
            dg.DagsterEventType.ASSET_OBSERVATION.value,
            run.job_name,
            event_specific_data=_private("events", "AssetObservationData")(observation),
        )
        instance.report_dagster_event(event, run.run_id)
