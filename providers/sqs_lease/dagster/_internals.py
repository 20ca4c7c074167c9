"""All that this package asks of Dagster beyond its public interface, and what it does where Dagster lacks it.

Public is what the module ``dagster`` exports, and of that what Dagster documents. All else that is used here was seen
on Dagster 1.11.16, 1.12.22, 1.13.27 and 1.13.29. ``make versions ROOM=dagster`` tests the oldest and the newest.

Each function says what the public interface lacks, and under "Without it" what happens on a release that has changed.
Nothing is imported from a private module before it is needed, so such a release costs that one thing. It is said in the
log of the process. Where messages could be deleted that nobody has worked on, the function raises
:class:`UnsupportedDagsterError` instead, and they are given back.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import multiprocessing
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import dagster as dg
from dagster_pipes import PipesContextData

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
Combine: TypeAlias = Callable[[Mapping[str, Any], Metadata], Metadata]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_REMEDY: Final = "Install a release of Dagster that docs/dagster.md names, or a newer release of sqs-lease"


class UnsupportedDagsterError(RuntimeError):
    """The installed release of Dagster lacks what messages cannot be kept safe without; the text says what."""

    def __init__(self, what: str, so: str) -> None:
        super().__init__(f"Dagster {dg.__version__} has no {what} that sqs-lease knows, so {so}. {_REMEDY}")


def _private(module: str, name: str) -> Any:
    """A name of a private module of Dagster; None where this release does not have it."""
    try:
        return getattr(importlib.import_module(f"dagster._core.{module}"), name, None)
    except ImportError:
        return None


def _warn(what: str, so: str) -> None:
    logger.warning("Dagster %s has no %s that sqs-lease knows, so %s. %s", dg.__version__, what, so, _REMEDY)


def preview(explanation: str) -> Callable[[_Function], _Function]:
    """Return a decorator for what may change in any release: Dagster warns where it is used.

    The mark is not public. Without it nobody is warned; docstrings say the same.

    Args:
        explanation: What else the warning says.
    """

    def mark(function: _Function) -> _Function:
        try:
            marked: _Function = importlib.import_module("dagster._annotations").preview(
                function, additional_warn_text=explanation
            )
        except (ImportError, AttributeError, TypeError):
            return function
        return marked

    return mark


def register_library() -> None:
    """Have Dagster list this package among the libraries of a code location, with its version.

    Integrations do it by a module that is not documented. Without it the list lacks this package.
    """
    try:
        registry = importlib.import_module("dagster_shared.libraries").DagsterLibraryRegistry
        registry.register("sqs-lease", importlib.metadata.version("sqs-lease"), is_dagster_package=False)
    except (ImportError, AttributeError, TypeError):
        logger.debug("Dagster %s does not list libraries as sqs-lease knows it", dg.__version__)


# Steps


def step_key(context: Context) -> str | None:
    """Return the key of the step under way; None where the function is called directly, as in a test.

    The public context knows its op, and not its step. Without it, the key is made of the op's name and of the mapping
    key of a dynamic output. Two steps of one op in a job have one key then.

    Args:
        context: The context of the op or asset.
    """
    op_context = context.op_execution_context
    try:
        return str(op_context.get_step_execution_context().step.key)
    except dg.DagsterError:
        return None
    except AttributeError:
        return _key_by_op(op_context)


def _key_by_op(context: dg.OpExecutionContext) -> str | None:
    try:
        job_name = context.job_name
    except dg.DagsterError:
        return None
    name, mapping_key = context.op_def.name, context.get_mapping_key()
    _warn("get_step_execution_context()", f"the step of {name!r} in job {job_name!r} goes by the name of its op")
    return name if mapping_key is None else f"{name}[{mapping_key}]"


def _step(context: Context) -> Any:
    """The context of the step; None where the function is called directly, or where Dagster does not tell it."""
    try:
        return context.op_execution_context.get_step_execution_context()
    except (AttributeError, dg.DagsterError):
        return None


def add_metadata(context: Context, metadata: Metadata, *, combine: Combine | None = None) -> None:
    """Add metadata to the materializations of the step's assets, or to the outputs of an op.

    What was yielded before, and dynamic outputs, get nothing. The public context does not tell what was yielded, nor
    what metadata was added before.

    Args:
        context: The context of the asset or op; where the function is called directly, nothing is done.
        metadata: By key; what was added before under other keys stays.
        combine: Makes one of what was added before and what is added now; by default what is added now replaces it.
    """
    if step_key(context) is None:
        return
    if isinstance(context, dg.AssetExecutionContext):
        for key in context.selected_asset_keys:
            if not _is_asset_yielded(context, key):
                earlier = _metadata_before(context, "get_asset_metadata", key)
                context.add_asset_metadata(combine(earlier, metadata) if combine else metadata, asset_key=key)
        return
    # The context of a check lacks what it leads to.
    op_context = context.op_execution_context
    for output in op_context.op_def.output_defs:
        if output.is_dynamic:
            continue
        earlier = _metadata_before(context, "get_output_metadata", output.name)
        # Dagster refuses it where the output was yielded.
        with suppress(dg.DagsterInvariantViolationError):
            op_context.add_output_metadata(combine(earlier, metadata) if combine else metadata, output.name)


def _is_asset_yielded(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    step = context.op_execution_context.get_step_execution_context()
    return bool(step.has_seen_output(context.assets_def.get_output_name_for_asset_key(key)))


def _metadata_before(context: Context, getter: str, key: dg.AssetKey | str) -> Mapping[str, Any]:
    get = getattr(_step(context), getter, None)
    if get is None:
        _warn(f"{getter}()", "the numbers of a step's last lease stand for all of its leases")
        return {}
    return get(key) or {}


def report_event(context: Context, text: str, metadata: Metadata) -> None:
    """Add an event of a step to the run's log, also where a listener of the instance's events calls this.

    No public event is about something else than an asset, an output or an expectation.

    Args:
        context: The context of the asset or op, in a step.
        text: What the log says.
        metadata: By key.
    """
    data = _private("events", "EngineEventData")(metadata=metadata)
    context.instance.report_engine_event(text, context.run, data, step_key=step_key(context))


def step_exception(context: Context) -> BaseException | None:
    """Return what a step failed with, once Dagster reports that; None before.

    Public is ``HookContext.op_exception``, in a hook of the op.

    Args:
        context: The context of the op or asset, in a step.
    """
    error: BaseException | None = context.op_execution_context.get_step_execution_context().step_exception
    return error


def warn_in_log(instance: dg.DagsterInstance, seen: dg.EventLogEntry, text: str) -> None:
    """Add a warning to a run's log, from a listener of the instance's events: Dagster's loggers take nothing then.

    Public are the loggers only. Without it, the warning is in the log of the process alone, where it is in any case.

    Args:
        instance: The instance.
        seen: The event that it is about.
        text: What the log says.
    """
    logger.warning("%s", text)
    try:
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
    except (AttributeError, TypeError):
        _warn("handle_new_event()", f"the log of run {seen.run_id} lacks this warning")


def listen(context: Context, see: Callable[[dg.DagsterInstance, dg.EventLogEntry], None]) -> None:
    """Call a function with each event of a step's run, in the process of the step.

    Public hooks run in the process of the step as well, but a user has to add them to each job.

    Args:
        context: The context of the op or asset, in a step.
        see: Gets the instance and the event. What it raises fails what is about to be reported.
    """
    instance = context.instance
    instance.add_event_listener(context.run.run_id, lambda entry: see(instance, entry))


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
    """Return an instance's settings of run retries, which are public in ``dagster.yaml`` only.

    Args:
        instance: The instance.
    """
    return RunRetrySettings(
        instance.run_retries_enabled,
        instance.run_retries_max_retries,
        instance.run_retries_retry_on_asset_or_op_failure,
    )


# Components


def component_at(context: dg.ComponentLoadContext, path: str) -> object:
    """Load another component of the same defs folder.

    It is public, under a name that changed after Dagster 1.11. Without it, components cannot name each other.

    Args:
        context: Where the naming component is loaded.
        path: Where the other one is, in the defs folder.

    Raises:
        UnsupportedDagsterError: It is not known how.
        Exception: There is no component.
    """
    for name in ("load_component", "load_component_at_path"):
        if (load := getattr(context, name, None)) is not None:
            loaded: object = load(path)
            return loaded
    raise UnsupportedDagsterError("way to load a component by its path", "give the queue by its name instead")


# Processes of steps


_STEP_PROCESSES: Final = "dagster._core.executor.child_process_executor"


def run_worker() -> BaseProcess | None:
    """Return the run worker, where this is a process that the multiprocess executor started for a step; else None.

    Nothing public tells what a process is for. A run worker has a parent too: Dagster's code server, which it outlives
    on purpose. Without it, a step goes on when its run worker is killed: its messages come back meanwhile, and others
    may work on them at the same time.
    """
    target = getattr(multiprocessing.current_process(), "_target", None)
    if getattr(target, "__module__", None) != _STEP_PROCESSES:
        return None
    return multiprocessing.parent_process()


# Events of runs


def run_events(
    instance: dg.DagsterInstance, run_id: str, types: Collection[dg.DagsterEventType], *, newest_first: bool = False
) -> Iterator[dg.DagsterEvent]:
    """Yield events of a run.

    Public are only those of assets, and not by run. There are two ways; without one of them, the other one is taken.

    Args:
        instance: The instance that has the run.
        run_id: The run.
        types: Of which types.
        newest_first: Whether the newest comes first; the oldest does by default.

    Raises:
        UnsupportedDagsterError: Dagster does not tell.
    """
    for entry in _entries(instance, run_id, set(types), newest_first):
        if entry.dagster_event is not None:
            yield entry.dagster_event


_EVENTS_AT_ONCE: Final = 1000


def _entries(
    instance: dg.DagsterInstance, run_id: str, types: set[dg.DagsterEventType], newest_first: bool
) -> Iterator[dg.EventLogEntry]:
    if hasattr(instance, "get_records_for_run"):
        cursor, has_more = None, True
        while has_more:
            found = instance.get_records_for_run(
                run_id, cursor=cursor, of_type=types, limit=_EVENTS_AT_ONCE, ascending=not newest_first
            )
            yield from (record.event_log_entry for record in found.records)
            cursor, has_more = found.cursor, found.has_more
    elif hasattr(instance, "all_logs"):
        entries = list(instance.all_logs(run_id, of_type=types))
        yield from reversed(entries) if newest_first else entries
    else:
        raise UnsupportedDagsterError("events of a run", f"what became of messages in run {run_id} is not known")


def event_metadata(event: dg.DagsterEvent) -> Mapping[str, Any]:
    """Return the metadata of an event: of an output, a materialization, an observation, an expectation or a report.

    An event's own data is not public.

    Args:
        event: The event.

    Raises:
        UnsupportedDagsterError: It is not where it was.
    """
    try:
        data: Any = event.event_specific_data
        if data is None:
            return {}
        for name in ("materialization", "asset_observation", "expectation_result"):
            data = getattr(data, name, data)
        metadata: Mapping[str, Any] = data.metadata or {}
    except AttributeError as error:
        raise UnsupportedDagsterError(
            f"metadata of an event {event.event_type_value}", "what became of messages is not known"
        ) from error
    return metadata


def asset_of_event(event: dg.DagsterEvent) -> dg.AssetKey | None:
    """Return the asset that an event is about; None where it is about none.

    An event's own data is not public. Without it, an event is about no asset.

    Args:
        event: The event.
    """
    try:
        return event.asset_key
    except AttributeError:
        _warn("asset of an event", "assets that were stored before a step failed are not known")
        return None


def error_names(event: dg.DagsterEvent) -> frozenset[str]:
    """Return the names of the exception that a step failed with, and of its causes.

    An event's own data is not public. Without it there are none: a step that failed single messages by
    ``MessageFailed`` fails all of them.

    Args:
        event: The event of the failed step.
    """
    names = set()
    try:
        error: Any = event.step_failure_data.error
        while error is not None:
            names.add(str(error.cls_name))
            error = error.cause
    except AttributeError:
        _warn("error of a failed step", "all of its messages have failed")
        return frozenset()
    return frozenset(names)


def is_interruption(event: dg.DagsterEvent) -> bool:
    """Whether an event says that an executor was told to terminate, and ends its steps.

    How the multiprocess executor says so is not public: by ``steps_interrupted`` among the metadata of an engine event.
    Without it, a step that failed by ``DagsterExecutionInterruptedError`` says so.

    Args:
        event: An event of the run.
    """
    if event.event_type is dg.DagsterEventType.STEP_FAILURE:
        return dg.DagsterExecutionInterruptedError.__name__ in error_names(event)
    return event.event_type is dg.DagsterEventType.ENGINE_EVENT and "steps_interrupted" in event_metadata(event)


def add_run_tags(instance: dg.DagsterInstance, run_id: str, tags: Mapping[str, str]) -> None:
    """Add tags to a run that is under way.

    Public are the tags of a run that is to be started. Without it, the executor gives back what it received.

    Args:
        instance: The instance that has the run.
        run_id: The run.
        tags: By name.

    Raises:
        UnsupportedDagsterError: Dagster does not do it.
    """
    try:
        instance.add_run_tags(run_id, tags)
    except AttributeError as error:
        raise UnsupportedDagsterError("add_run_tags()", "steps would not find the messages of their run") from error


def executor_events(
    plan_context: PlanOrchestrationContext, text: str, metadata: Metadata | None = None
) -> Iterator[dg.DagsterEvent]:
    """Yield an event of a run for its executor to yield.

    Executors are public, and the events that they yield are not. Without it, the text is a line of the run's log.

    Args:
        plan_context: What the executor has.
        text: What the log says.
        metadata: By key.
    """
    try:
        data = _private("events", "EngineEventData")(metadata=metadata)
        event = dg.DagsterEvent.engine_event(plan_context, text, data)
    except (AttributeError, TypeError):
        _warn("engine events", "the numbers of a lease are a line of the run's log")
        said = {key: value.value for key, value in (metadata or {}).items()}
        plan_context.log.info(f"{text} {said}" if said else text)
        return
    yield event


# Plans of runs


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
    """Return the steps of a run by key, those of dynamic outputs by the key of the step they are made of.

    Plans of runs are not public. Without them, a run that repeats another one does not receive.

    Args:
        instance: The instance that has the run.
        run: The run.

    Raises:
        UnsupportedDagsterError: Dagster does not tell.
    """
    try:
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
    except AttributeError as error:
        raise UnsupportedDagsterError(
            f"plan of run {run.run_id}", "it is not known which steps would never see the messages"
        ) from error
    return steps


def awaited_steps(plan: ExecutionPlan) -> Mapping[str, Collection[str]] | None:
    """Return the steps that each step of an executor's plan waits for, as :func:`upstream_steps` does.

    Executors are public, and the plans that they execute are not.

    Args:
        plan: What the executor is to execute.
    """
    try:
        return plan.get_all_step_deps()
    except AttributeError:
        _warn("get_all_step_deps()", "no message of the run is deleted if a step of it fails")
        return None


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

    What an executor knows of its job is not public. Without it, the executor receives for no run.

    Args:
        job: The job of the run, with the selection of the run.
        executed: The keys of the steps that the run executes.

    Raises:
        UnsupportedDagsterError: Dagster does not tell.
    """
    try:
        return _parts_left_out(job, executed)
    except AttributeError as error:
        raise UnsupportedDagsterError(
            "definition of a run's job", "it is not known which steps would never see the messages"
        ) from error


def _parts_left_out(job: IJob, executed: Collection[str]) -> JobParts:
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


# Sensors


def is_tick_of_the_daemon(context: dg.SensorEvaluationContext) -> bool:
    """Whether the daemon evaluates a sensor, and not somebody who tries it out in the web UI or in a test.

    Nothing public tells. The daemon names the log of an evaluation by the number of its tick; Dagster names others by
    the time, or not at all. Without it, the sensor fails instead of receiving messages for nobody.

    Args:
        context: The context of the evaluation.

    Raises:
        UnsupportedDagsterError: Evaluations have no log that is named in such a way.
    """
    try:
        log_key = context.log_key
    except AttributeError as error:
        raise UnsupportedDagsterError(
            "log of a sensor's evaluation", "the daemon's cannot be told from a test in the web UI, and none receives"
        ) from error
    return bool(log_key and log_key[-1].isdigit())


def location_name(context: dg.SensorEvaluationContext) -> str | None:
    """Return the name of the code location of a sensor; None where it is evaluated by hand.

    The public context knows the repository only.

    Args:
        context: The context of the evaluation.
    """
    origin = context.code_location_origin
    return None if origin is None else origin.location_name


def is_asset_job(target: object) -> bool:
    """Whether something is what ``define_asset_job`` returns, whose type is not public.

    Args:
        target: Anything.
    """
    return isinstance(target, type(dg.define_asset_job("any")))


# Runs that sensors ask for


def refusals() -> tuple[type[Exception], ...]:
    """Return the exceptions by which Dagster refuses what it is given: its errors, and those of its argument checks.

    The latter are not public. Without them, an evaluation fails where one message has a partition that cannot be.
    """
    try:
        return dg.DagsterError, importlib.import_module("dagster._check").CheckError
    except (ImportError, AttributeError):
        _warn("CheckError", "a message with a partition that cannot be fails the whole evaluation")
        return (dg.DagsterError,)


def assets_of_job(job: dg.JobDefinition) -> frozenset[dg.AssetKey]:
    """Return the assets that a job makes.

    The documented interface does not tell. Without it, no sensor asks for runs that are functions of a message.

    Args:
        job: The job, or what :func:`job_of_assets` returned.

    Raises:
        UnsupportedDagsterError: Dagster does not tell.
    """
    try:
        return frozenset(job.asset_layer.selected_asset_keys)
    except AttributeError as error:
        raise UnsupportedDagsterError(
            "list of the assets of a job", "it is not known which runs there can be"
        ) from error


def job_of_assets(job: dg.JobDefinition, assets: Collection[dg.AssetKey]) -> dg.JobDefinition:
    """Return a job with some of its assets only, as a run of them has it.

    It is not documented. Without it, no sensor asks for runs whose assets are a function of a message.

    Args:
        job: The job.
        assets: Assets of it.

    Raises:
        dagster.DagsterError: They cannot be made without others.
        UnsupportedDagsterError: Dagster has no such jobs.
    """
    try:
        return job.get_subset(asset_selection=set(assets))
    except (AttributeError, TypeError) as error:
        raise UnsupportedDagsterError(
            "way to select assets of a job", "it is not known which runs there can be"
        ) from error


def dynamic_partitions(partitions: dg.PartitionsDefinition[str], key: str) -> dict[str, str]:
    """Return the dynamic partitions that a key stands for: keys by the names of partitions definitions.

    The dimensions of partitions are not documented. Without them, no dynamic partition is added for a dimension:
    Dagster says so itself where it is not there.

    Args:
        partitions: The partitions definition.
        key: The partition key.

    Raises:
        Exception: One of :func:`refusals`: it cannot be a key.
    """
    if isinstance(partitions, dg.DynamicPartitionsDefinition):
        return {} if partitions.name is None else {partitions.name: key}
    if not isinstance(partitions, dg.MultiPartitionsDefinition):
        return {}
    try:
        keys = partitions.get_partition_key_from_str(key).keys_by_dimension
        dimensions = [dynamic_partitions(each.partitions_def, keys[each.name]) for each in partitions.partitions_defs]
    except AttributeError:
        _warn("partitions_defs", "no dynamic partition is added for a dimension of others")
        return {}
    return {name: value for found in dimensions for name, value in found.items()}


def with_partition(
    sensor: dg.SensorDefinition,
    context: dg.SensorEvaluationContext,
    request: dg.RunRequest,
    added: Sequence[dg.AddDynamicPartitionsRequest],
) -> dg.RunRequest:
    """Return the request of a run of a partition with the tags and the configuration that Dagster gives to it.

    It is done when an evaluation has ended, in a way that is not documented, for all of its runs or for none. Without
    it, a message with a partition that does not exist fails the whole evaluation.

    Args:
        sensor: The sensor.
        context: The context of its evaluation, with definitions.
        request: The request.
        added: Partitions that are added before.

    Raises:
        Exception: One of :func:`refusals`: there is no such partition.
    """
    try:
        (resolved,) = sensor.resolve_run_requests([request], context, None, list(added))
    except (AttributeError, TypeError):
        _warn("resolve_run_requests()", "a message with an unknown partition fails the whole evaluation")
        return request
    return resolved


def wrong_config(error: dg.DagsterInvalidConfigError) -> list[str]:
    """Return what is wrong with a run configuration, without its values, which the exception's text may quote.

    It is not documented. Without it, the exception's class is all that is told.

    Args:
        error: What :func:`dagster.validate_run_config` raised.
    """
    try:
        wrong = {f"{':'.join(each.stack.levels) or 'the top'}: {each.reason.value.lower()}" for each in error.errors}
    except AttributeError:
        return [type(error).__name__]
    return sorted(wrong)


# Pipes


def pipes_context_data(run_id: str) -> PipesContextData:
    """Return what a job learns of its step through Dagster Pipes: the run.

    Public is ``open_pipes_session``, but an asset over that has to return what the job materialized. Keys that a
    release adds are None.

    Args:
        run_id: The run.
    """
    data: Any = dict.fromkeys(PipesContextData.__annotations__)
    data |= {"run_id": run_id, "retry_number": 0, "extras": {}}
    known: PipesContextData = data
    return known


def has_read_all(handler: dg.PipesMessageHandler) -> bool:
    """Whether all that a job reports through Dagster Pipes was read.

    It is not public. Without it, all counts as read: the last lines that a job logs may be missing in the run's log.

    Args:
        handler: What reads it.
    """
    try:
        return handler.received_closed_message
    except AttributeError:
        _warn("received_closed_message", "the run's log may lack the last lines of a job")
        return True


# Executors and their assets


def orchestrated_by(plan_context: PlanOrchestrationContext, executor: dg.Executor) -> PlanOrchestrationContext:
    """Return the context of a run for an executor that another one hands the steps to.

    An executor may look for itself there, as ``plan_context.executor``. There is no public way to say so. Where Dagster
    builds its context differently, the run fails as it starts, before a message is received.

    Args:
        plan_context: The context that the outer executor was given.
        executor: The executor that runs the steps.

    Raises:
        UnsupportedDagsterError: Dagster builds its context differently.
    """
    try:
        return type(plan_context)(
            plan_context.plan_data,
            plan_context.log,
            executor,
            plan_context.output_capture,
            plan_context.resume_from_failure,
        )
    except (AttributeError, TypeError) as error:
        raise UnsupportedDagsterError(
            "context of executors", "no executor can run the steps for another one"
        ) from error


def materialized_by(
    instance: dg.DagsterInstance, run: dg.DagsterRun, steps: Collection[str]
) -> list[tuple[dg.AssetKey, str | None]]:
    """Return the assets that some steps of a run materialized, once for each partition.

    What an event of a run says is not public. Without it, there are none: assets have no numbers.

    Args:
        instance: The instance that has the run.
        run: The run, under way or over.
        steps: The keys of the steps.
    """
    made: dict[tuple[dg.AssetKey, str | None], None] = {}
    for event in run_events(instance, run.run_id, {dg.DagsterEventType.ASSET_MATERIALIZATION}):
        if event.step_key in steps and (key := asset_of_event(event)) is not None:
            try:
                partition = event.step_materialization_data.materialization.partition
            except AttributeError:
                partition = None
            made[key, partition] = None
    return list(made)


def observe(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    assets: Iterable[tuple[dg.AssetKey, str | None]],
    metadata: Metadata,
) -> None:
    """Add an observation to some assets of a run, from outside of its steps.

    Dagster has a public way for observations that belong to no run only (``report_runless_asset_event``). Events of a
    run are written by ``report_dagster_event``, which the daemon and the launchers use as well. Without it, the public
    way is taken: the numbers are the asset's, and the page of the run does not show them.

    Args:
        instance: The instance that has the run.
        run: The run, under way or over.
        assets: Their keys and partitions.
        metadata: By key.
    """
    for key, partition in assets:
        observation = dg.AssetObservation(key, metadata=metadata, partition=partition)
        try:
            event = dg.DagsterEvent(
                dg.DagsterEventType.ASSET_OBSERVATION.value,
                run.job_name,
                event_specific_data=_private("events", "AssetObservationData")(observation),
            )
            instance.report_dagster_event(event, run.run_id)
        except (AttributeError, TypeError):
            _warn("observations from outside of a step", "the page of the run lacks the numbers of its messages")
            instance.report_runless_asset_event(observation)
