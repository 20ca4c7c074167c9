"""One batch over a run of several steps: an executor whose run worker receives, extends and settles.

The run worker receives when the run starts, and writes the messages to a directory that the steps read. Another
executor runs the steps, in processes beside the run worker or in the run worker itself, while a thread of the run
worker extends the leases. At the end of the run, the reports and the ends of the steps decide about each message
(:mod:`sqs_lease.dagster.run_batch.rules`).

The steps end with their run worker. It can end them before it gives their messages to others, and if it is killed they
end themselves (:mod:`sqs_lease.dagster.run_batch.leased_batch`). Neither is possible in another container or on another
machine, so such steps do not get the batch, and receive messages of their own instead.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any, Final, cast

import dagster as dg

from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.blocking import LeaseBlock, OwnLeasedBatch
from sqs_lease.core.durations import Duration
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import OnFailure
from sqs_lease.core.verdict import Action, Decision, Failure, Tally
from sqs_lease.dagster._internals import (
    JobParts,
    add_run_tags,
    awaited_steps,
    executor_events,
    parts_left_out,
    run_events,
)
from sqs_lease.dagster.metadata import LeaseNumbers, observe_outcome
from sqs_lease.dagster.resource import SqsQueueResource, access_to, block_of, check_queue_resource
from sqs_lease.dagster.retries import Repetition, failure_rule, repetition
from sqs_lease.dagster.run_batch.batch_of_run import (
    BATCH_TAG,
    HANDOFF_SECONDS,
    pass_on,
    passed_on_batch_of,
    routed_batch_of,
    write_worker,
)
from sqs_lease.dagster.run_batch.folder import (
    BatchFolder,
    BatchFolderError,
    check_workspace,
    remove_left_over,
    run_batch_id,
    run_batch_path,
)
from sqs_lease.dagster.run_batch.rules import StepEnds, units
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, DEFAULT_WAIT_SECONDS, LeaseOptions
from sqs_lease.keeper.session import SettlementError

if TYPE_CHECKING:
    from sqs_lease.dagster._internals import (
        ExecutionPlan,
        PlanOrchestrationContext,
        RetryMode,
        StepDependencyConfig,
    )

STEPS_END_SECONDS: Final = 10.0
"""How long steps may take to end after an interruption, if the executor failed while they run."""

_ALL_STEPS: Final = '"dagster/retry_strategy": "ALL_STEPS"'


class ResumedRunError(dg.DagsterError):
    """Error for a run that executes only a part of the work, so it must not receive; the text has the remedy."""


_STOCK: Final = (dg.multiprocess_executor, dg.in_process_executor, dg.multi_or_in_process_executor)
"""The executors that run the steps in the run worker, or in processes that it starts and ends."""


def sqs_lease_executor(
    queue: SqsQueueResource,
    *,
    workspace: str,
    max_messages: int = DEFAULT_MAX_MESSAGES,
    wait: Duration = DEFAULT_WAIT_SECONDS,
    linger: Duration = DEFAULT_LINGER_SECONDS,
    policy: RenewalPolicy | str | None = None,
    visibility: Duration | None = None,
    on_failure: OnFailure | None = None,
    around: dg.ExecutorDefinition = dg.multiprocess_executor,
) -> dg.ExecutorDefinition:
    """Make an executor that holds one batch of messages over a whole run, while another executor runs the steps.

    ::

        @dg.job(executor_def=sqs_lease_executor(orders_queue, workspace="/var/lib/orders", max_messages=500))
        def orders():
            report(load(check()))

    When a run starts, its worker receives; each step works on the messages with ``queue.lease(context)``
    (:meth:`SqsQueueResource.lease`). They stay invisible to others until the run has ended, step retries included.

    Then a message is deleted if every step succeeded (or was skipped by design) and no step failed it. A message that a
    step failed, by its id or by failing for good, is settled by ``on_failure``. A message that was not processed, and
    is not at fault, is visible again at once: when the run is terminated, when a step failed other messages by
    ``MessageFailed`` and the steps behind it did not run, and when no step began to work on the batch, which fails the
    run. If the run worker is killed, the messages are visible again when their last extension ends.

    While run retries remain (``dagster/max_retries``), ``on_failure`` is applied only to messages that a step failed by
    ``batch.fail``. The others are passed on to the run that repeats this one, which may leave out the steps that
    succeeded: their leases last for 5 minutes at least, and they are visible again if it does not begin by then. If it
    is not known whether Dagster repeats the run, they are visible again at once.

    Without messages the steps run with an empty batch.

    By default each step runs in a process of its own on the run worker's machine, as Dagster's
    ``multiprocess_executor`` has it. ``around`` is the executor that runs the steps instead: ``in_process_executor`` or
    ``multi_or_in_process_executor``. The configuration of a run, the requirements and the retries are those of that
    executor.

    Steps of other executors, as on Kubernetes, ECS, Docker, Celery or Dask, do not take part in the batch of a run:
    they would not be ended before others receive their messages. Give the job the executor that runs them there,
    without this one, and lease in each step; ``queue.lease(context)`` then receives, holds and settles in the process
    of the step.

    Args:
        queue: The queue. An ``EnvVar`` is read in the run worker.
        workspace: A directory for the messages, as an absolute path. Each run has a directory in it, which is removed
            when the run ends; directories that killed run workers left are removed by a later run, a day after.
        max_messages: Most messages to receive; 10 by default.
        wait: How long to wait for a first message; 20 s by default. With none, the batch is empty.
        linger: How long to wait for more after the first; 1 s by default. 0 takes only the messages of the first
            answer.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with, 1 s to 12 hours; the queue's own by default.
        on_failure: The rule for failed messages: a rule such as ``dead_letter()``, its name, or a mapping such as
            ``{"kind": "backoff", "initial": 30}``; visible again at once by default.
        around: The executor that runs the steps. Configure it itself:
            ``around=dg.multiprocess_executor.configured({"max_concurrent": 2})``.

    Raises:
        TypeError: ``queue``, ``workspace`` or ``around`` is of another type.
        ValueError: An argument is out of range, or ``around`` is not one of these three executors of Dagster.
        ModuleNotFoundError: The extra ``manifest`` is not installed.
    """
    check_queue_resource(queue, "sqs_lease_executor")
    check_workspace(workspace, "sqs_lease_executor")
    require_manifests("sqs_lease_executor", "dagster,manifest")
    options = LeaseOptions.of(
        max_messages=max_messages,
        wait=wait,
        linger=linger,
        policy=policy,
        visibility=visibility,
        on_failure=failure_rule(on_failure),
    )
    _check_around(around)

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        make = around.executor_creation_fn
        if make is None:
            raise RuntimeError(f"The executor {around.name!r}, which is to run the steps, cannot be made")
        steps = make(dg.InitExecutorContext(context.job, around, context.executor_config, context.instance))
        return LeaseExecutor(steps, queue, workspace, options)

    return dg.ExecutorDefinition(
        name="sqs_lease",
        # Dagster also takes a schema in its own form; the annotation lacks it.
        config_schema=cast("Any", around.config_schema),
        requirements=around.get_requirements,
        executor_creation_fn=create,
        description=f"Holds one batch of SQS messages over the run; {around.name} runs the steps.",
    )


def _check_around(around: object) -> None:
    """Refuse executors that may run steps where the run worker cannot end them, before a run receives in vain."""
    if not isinstance(around, dg.ExecutorDefinition):
        raise TypeError(f"around of sqs_lease_executor must be the definition of an executor, not {around!r}")
    # One that was configured has the function of the original.
    if around.executor_creation_fn not in {each.executor_creation_fn for each in _STOCK}:
        raise ValueError(
            f"sqs_lease_executor does not hold messages for steps that {around.name!r} runs: around must be "
            "dg.multiprocess_executor, dg.in_process_executor or dg.multi_or_in_process_executor, whose steps the run "
            "worker can end before others receive their messages. Give the job that executor itself (executor_def=), "
            "without sqs_lease_executor, and lease in each step: queue.lease(context) then receives, holds and settles "
            "in the process of the step"
        )


class LeaseExecutor(dg.Executor):
    """The executor that holds messages while another one runs the steps. Made by :func:`sqs_lease_executor`."""

    def __init__(self, steps: dg.Executor, queue: SqsQueueResource, workspace: str, options: LeaseOptions) -> None:
        self._steps = steps
        self._queue = queue
        self._workspace = workspace
        self._options = options

    @property
    def retries(self) -> RetryMode:
        """The retry mode of the executor of the steps."""
        return self._steps.retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        """The dependency settings of the executor of the steps."""
        return self._steps.step_dependency_config

    def execute(
        self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan
    ) -> Iterator[dg.DagsterEvent]:
        """Receive, execute the steps, settle.

        Raises:
            ResumedRunError: The run leaves out a part of its job, which would never see the messages.
            BatchFolderError: The messages cannot be stored for the steps, or the steps' reports cannot be read.
            RuntimeError: All steps succeeded, and no step leased the messages.
            sqs_lease.sqs.errors.SqsError: The queue cannot be used; the text names it and says what to do.
        """
        run, instance = plan_context.dagster_run, plan_context.instance
        queue = self._queue.process_config_and_initialize()
        _refuse_to_go_on(instance, run, queue.queue)
        taken = routed_batch_of(run, queue.queue) or passed_on_batch_of(run, self._workspace, queue.queue)
        if taken is None:
            # A run that takes a batch up has messages that the steps left out have seen.
            parts = parts_left_out(plan_context.job, execution_plan.step_keys_to_execute)
            _refuse_part_of_the_job(run, parts, queue.queue)
        remove_left_over(self._workspace)
        uri = run_batch_path(self._workspace, run.run_id)
        folder = BatchFolder(uri)
        ended_by: BaseException | None = None
        is_passed_on = False
        with ExitStack() as leaving:
            leaving.callback(lambda: None if is_passed_on else folder.discard())
            # Dagster would delay a request to terminate until the steps run, and the receive may take a while.
            with dg.raise_execution_interrupts(), access_to(queue):
                block = block_of(queue, self._options, passed_on=taken)
                batch = leaving.enter_context(block)
            others = multiprocessing.active_children()
            ends = StepEnds(run.run_id, awaited_steps(execution_plan))
            try:
                _store(batch, run_batch_id(run.run_id), folder)
                if taken is not None:
                    taken.folder.discard()
                add_run_tags(instance, run.run_id, {BATCH_TAG: uri})
                received = f"Received {len(batch)} messages of {batch.queue_url} for the steps: {uri}"
                yield from executor_events(plan_context, received)
                try:
                    for event in self._steps.execute(plan_context, execution_plan):
                        ends.see(event)
                        yield event
                except Exception as error:  # noqa: BLE001 - raised when the messages are settled
                    # The steps' reports until then count.
                    ended_by = error
                    _end_steps(others)
                if ends.is_interrupted:
                    batch.release(batch)
                else:
                    repeated = _repetition(ends, plan_context)
                    # Steps may be missing if the executor failed, or raised the exception of a failed step.
                    is_whole = ended_by is None
                    held = _settle(batch, ends, folder, plan_context, is_whole=is_whole, repeated=repeated)
                    passes_on = repeated is Repetition.YES or (repeated is Repetition.UNKNOWN and taken is not None)
                    if held and passes_on:
                        is_passed_on = _pass_on(block, folder, plan_context)
                    else:
                        batch.release(held)
            except BaseException as error:
                # The run was terminated, or the executor failed: messages are not at fault. First the steps must end.
                _end_steps(others)
                batch.release(batch)
                if not isinstance(error, dg.DagsterExecutionInterruptedError):
                    if ended_by is not None:
                        error.add_note(f"Before that, the executor of the steps failed: {type(ended_by).__name__}")
                    raise
                ended_by = error
            pieces = _names(folder)
        numbers = LeaseNumbers.of(batch)
        observe_outcome(instance, run, ends.ends().keys() & pieces, numbers, queue.attributes)
        yield from executor_events(plan_context, numbers.summary(), numbers.metadata())
        if ended_by is not None:
            raise ended_by
        if len(batch) and not (pieces or ends.is_interrupted or ends.has_failures()):
            # If it succeeded, a sensor would start a run for the same messages again, for ever.
            raise RuntimeError(
                f"No step of run {run.run_id} leased its {len(batch)} messages of {batch.queue_url}, so they are given "
                "back: call lease(context) of a resource with this queue in each step that works on them"
            )


def _refuse_to_go_on(instance: dg.DagsterInstance, run: dg.DagsterRun, queue: str) -> None:
    """Refuse to receive for a run with steps that began before, under a run worker that is gone.

    Raises:
        ResumedRunError: Steps of it began.
    """
    if next(run_events(instance, run.run_id, (dg.DagsterEventType.STEP_START,)), None) is None:
        return
    raise ResumedRunError(
        f"Run {run.run_id} does not receive from {queue}: Dagster resumes it with a new run worker, and the steps that "
        "succeeded before would never see the messages received now. Those of the first worker come back when its "
        "last extension ends. Set run_monitoring.max_resume_run_attempts to 0, and let run_retries repeat such runs "
        f"with the tag {_ALL_STEPS}"
    )


def _refuse_part_of_the_job(run: dg.DagsterRun, parts: JobParts, queue: str) -> None:
    """Refuse to receive for a run that leaves out a part of its job: that part would never see the messages.

    Raises:
        ResumedRunError: It leaves out steps, or assets of a step.
    """
    left_out = sorted(parts.left_out_steps) or sorted(parts.left_out_assets)
    if not left_out:
        return
    left_work = f"{', '.join(map(repr, left_out))} of job {run.job_name!r}"
    if run.parent_run_id is not None:
        raise ResumedRunError(
            f"Run {run.run_id} does not receive from {queue}: it repeats run {run.parent_run_id} and leaves out "
            f"{left_work}, which would never see the messages received now. The messages of run {run.parent_run_id} "
            f"are visible again, or another run has them. Set the tag {_ALL_STEPS} on the job, or choose "
            '"re-execute all steps"'
        )
    remedy = (
        "Give the executor to a job of these assets: dg.define_asset_job(..., executor_def=...)"
        if parts.is_implicit
        else "Run the whole job, or define a job of the selected part"
    )
    raise ResumedRunError(
        f"Run {run.run_id} does not receive from {queue}: it leaves out {left_work}, which would never see the "
        f"messages that are deleted when it succeeds. {remedy}"
    )


def _store(batch: OwnLeasedBatch, batch_id: str, folder: BatchFolder) -> None:
    try:
        folder.create(batch_id=batch_id, queue_url=batch.queue_url, messages=list(batch))
        write_worker(folder)
    except Exception as error:
        raise BatchFolderError(
            f"{len(batch)} messages of {batch.queue_url} cannot be stored for the steps at {folder} "
            f"({type(error).__name__}: {error}), and are given back. Check the executor's workspace: that run workers "
            "may write there"
        ) from error


def _repetition(ends: StepEnds, plan_context: PlanOrchestrationContext) -> Repetition:
    """Whether Dagster repeats the run, because a step of it failed."""
    run = plan_context.dagster_run
    repeated = repetition(plan_context.instance, run) if ends.has_failures() else Repetition.NO
    if repeated is not Repetition.NO:
        plan_context.log.info(
            "Dagster repeats run %s, or may do so: on_failure is applied only to messages failed by batch.fail()",
            run.run_id,
        )
    return repeated


def _settle(
    batch: OwnLeasedBatch,
    ends: StepEnds,
    folder: BatchFolder,
    plan_context: PlanOrchestrationContext,
    *,
    is_whole: bool,
    repeated: Repetition,
) -> Sequence[str]:
    """Settle by the steps' reports; return the ids of messages that are still held, for another try of the work.

    Raises:
        SettlementError: SQS refused to settle some messages; the others are settled.
    """
    ids = [message.message_id for message in batch]
    pieces = folder.pieces()
    tally = Tally()
    for unit in units(ids, ends.ends(), pieces, is_whole=is_whole, is_repeated=repeated is not Repetition.NO):
        tally.take(unit)
    by_decision: dict[Decision, list[str]] = {}
    for message_id in ids:
        by_decision.setdefault(tally.decision(message_id), []).append(message_id)
    held, released, done = (by_decision.pop(each, []) for each in (Action.HOLD, Action.RELEASE, Action.DELETE))
    # Failures come first: messages behind a failed one of their group are given back with it.
    settling = [
        partial(batch.fail, failed, why.reason, errors=why.errors)
        for why, failed in by_decision.items()
        if isinstance(why, Failure)
    ]
    settling += [partial(batch.release, released), partial(batch.succeed, done)]
    refused: list[SettlementError] = []
    for settle in settling:
        try:
            settle()
        except SettlementError as error:
            # A refusal for some messages must not stop the settlement of others.
            refused.append(error)
    if refused:
        first, *others = refused
        for other in others:
            first.add_note(str(other))
        raise first
    return held


def _pass_on(block: LeaseBlock, folder: BatchFolder, plan_context: PlanOrchestrationContext) -> bool:
    """Write down the held messages for the run that repeats this one; return whether that was possible."""
    count = pass_on(block, folder, RuntimeError("the run is repeated"))
    if count is None:
        return False
    plan_context.log.info(
        "%d messages are passed on to the run that repeats this one, and come back in %g s if it does not begin",
        count,
        HANDOFF_SECONDS,
    )
    return True


def _end_steps(others: Collection[BaseProcess]) -> None:
    """End the processes of steps that are still under way."""
    steps = [process for process in multiprocessing.active_children() if process not in others]
    for process in steps:
        # The same signal that the executor itself uses.
        process.terminate()
    deadline = time.monotonic() + STEPS_END_SECONDS
    for process in steps:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _names(folder: BatchFolder) -> set[str]:
    try:
        return set(folder.pieces())
    except (BatchFolderError, OSError):
        return set()
