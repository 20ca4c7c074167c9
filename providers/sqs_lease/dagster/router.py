"""A router: a sensor that receives messages, sorts them by their content, and passes them on to runs.

One evaluation does all of it, and keeps no state. It receives for some seconds, and calls the user's functions to find
the run of each message. It writes the messages of each run down, extends them once by ``handoff_timeout``, forgets
them, and requests the runs. The run takes them up (``run_batch/batch_of_run.py``), and is their only holder from then
on.

Why so: a thread that extends leases in the code server would die with each reload, and the run would need a protocol to
know whether it lives. Here SQS keeps the lock: the lease itself. The cost of each failure:

| event | the messages |
| --- | --- |
| the daemon or the code server is killed while the router receives | visible after ``handoff_timeout`` |
| it is killed when the batch is written, before Dagster has the run | the next evaluation requests the same run |
| the code location is reloaded | unaffected: processes have no state |
| the run never starts, or starts after ``handoff_timeout`` | visible after ``handoff_timeout`` |
| a run comes too late | it fails with an error that says so; the router starts another run |
| a run succeeds without leasing them | visible after ``handoff_timeout``; the next evaluation fails with that error |

**Once.** The run key is the id of the batch, so that Dagster starts one run for it, however often it is requested. A
message that is received again is in another batch, with a run of its own.

Dagster's web UI can *test* a sensor: it evaluates the sensor for real, and drops the requested runs. So only an
evaluation by the daemon receives; any other one reports what it would do. From queues in memory (``sqs_lease.testing``)
every evaluation receives, so that a unit test can evaluate the sensor.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import uuid4

import dagster as dg

from sqs_lease import blocking
from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.events import Outcome
from sqs_lease.core.failure_rules import Delete, Release, Settlement
from sqs_lease.core.group_order import hold_back
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster._internals import is_tick_of_the_daemon, name_of_sensor, preview
from sqs_lease.dagster.dispatch import (
    MOST_RUNS_AT_ONCE,
    AssetKeys,
    Destination,
    Dispatch,
    Dispatcher,
    DispatchFailure,
    Job,
    Part,
    RunConfig,
    Target,
    add_requests,
    dispatch_failure_text,
    divided,
    jobs_of_a_list,
    read_run,
    target_argument,
    unreadable_since,
    write_run,
)
from sqs_lease.dagster.resource import (
    SqsQueueResource,
    access_to,
    check_queue_resource,
)
from sqs_lease.dagster.retries import failure_rule
from sqs_lease.dagster.run_batch.batch_of_run import (
    HANDOFF_SECONDS,
    ROUTED_QUEUE_TAG,
    ROUTED_TAG,
    is_over,
    is_same_queue,
    read_written,
    write_leases,
)
from sqs_lease.dagster.run_batch.folder import (
    BatchFolder,
    batches,
    check_workspace,
    remove_left_over,
)
from sqs_lease.keeper.batch import Batch
from sqs_lease.keeper.keeper import Keeper
from sqs_lease.keeper.open_queue import OpenQueue
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, LeaseOptions
from sqs_lease.keeper.plain_leases import WrittenBatch
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.validation import FIFO_SUFFIX, check_whole_number

logger = logging.getLogger(__name__)

EVALUATION_WAIT_SECONDS: Final = 5.0
"""Default time that an evaluation waits for a first message: Dagster evaluates again soon."""

LONGEST_RECEIVE_SECONDS: Final = 30.0
"""How long an evaluation may receive: the daemon gives it up after 60 s, and the launch of a run comes after it."""

TICK_SECONDS: Final = 50.0
"""How long an evaluation may take: if the daemon gave it up, its messages would not get a run."""

ROUTER_TAG: Final = "sqs_lease/router"
"""The tag of a router's runs: the name of the router and of its code location."""

_RECENT_RUNS: Final = 100
"""How many of its runs an evaluation looks at; far more than end between two of them."""

_UNFINISHED: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


class RouterError(RuntimeError):
    """Error of an evaluation that requests no run; the text has the queue or the workspace, and the reason.

    Messages fit no run, a run did not lease its messages, or the workspace cannot be used.
    """


@preview("It was tried on one machine, with a few runs at once: see docs/dagster-runs.md.")
def build_sqs_router(
    name: str,
    queue: SqsQueueResource,
    target: Target,
    *,
    workspace: str,
    max_messages: int = DEFAULT_MAX_MESSAGES,
    wait: Duration = EVALUATION_WAIT_SECONDS,
    linger: Duration = DEFAULT_LINGER_SECONDS,
    on_failure: OnFailure | None = None,
    max_batches: int = 1,
    handoff_timeout: Duration = HANDOFF_SECONDS,
    job: Callable[[Message], str | Job] | None = None,
    partition_key: str | Callable[[Message], str | None] | None = None,
    asset_selection: Callable[[Message], AssetKeys | None] | None = None,
    run_config: RunConfig | Callable[[Message], RunConfig | None] | None = None,
    run_tags: Mapping[str, str] | Callable[[Message], Mapping[str, str] | None] | None = None,
    minimum_interval_seconds: int = 10,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """Build a sensor that receives messages, sorts them by their content, and starts a run for each part of them.

    The run gets its messages by ``queue.lease(context)`` (:meth:`SqsQueueResource.lease`) in one of its steps, or by
    ``sqs_lease_executor`` in all of them. From then on the run alone holds them: the renewal policy and the rule for
    failed messages are arguments of ``lease()`` or the executor. A retry of the step, or of the run, works on the
    messages that the attempt before it left.

    With functions of a message, messages with the same answers go to the same run. If a function raises an exception,
    or its answer names an impossible run, the message is settled by ``on_failure`` by itself. For ``by_exception``, an
    unusable answer is a :class:`DispatchError <sqs_lease.dagster.dispatch.DispatchError>`. On a FIFO queue, messages of
    one group that go to different runs are worked on in their order.

    It is a preview in Dagster's sense: it may change in any release.

    Args:
        name: The sensor's name; also the name of its directory in the workspace.
        queue: The queue.
        target: The work of the runs: a job, a list of jobs of which ``job`` chooses, or assets, as ``target`` of
            :class:`dagster.SensorDefinition`.
        workspace: A directory that the code server and all runs share, as an absolute path. Its files have receipt
            handles in them: keep it as private as the queue. The extra ``manifest`` is needed.
        max_messages: Most messages of an evaluation; 10 by default.
        wait: How long an evaluation waits for a first message; 5 s by default.
        linger: How long it waits for more after the first; 1 s by default. 0 takes only the messages of the first
            answer. With ``wait`` at most 30 s.
        on_failure: The rule for messages that cannot go to a run: a rule such as ``dead_letter()``, its name, or a
            mapping such as ``{"kind": "backoff", "initial": 30}``; visible again at once by default.
        max_batches: The router pauses while this many of its runs are queued or under way; 1 by default. One evaluation
            may request more runs than that.
        handoff_timeout: How long messages wait for their run; 5 minutes by default, 1 s to 12 hours. It is the
            visibility timeout to receive with. Then they are visible again.
        job: A function that returns the job for a message, or its name.
        partition_key: The partition to run, or a function that returns it for a message; None without partitions. A
            partition of a dynamic partitions definition is added.
        asset_selection: A function that returns the assets of the target for a message; None for all of them.
        run_config: The runs' configuration, or a function that makes it from a message.
        run_tags: Tags of the runs, or a function that makes them from a message.
        minimum_interval_seconds: Least time between two evaluations, 10 by default.
        default_status: Whether the sensor runs without being switched on; it does not, by default.
        description: The sensor's description in the web UI.

    Raises:
        ValueError: An argument is out of range, ``job`` does not fit the target, or the workspace is in an object
            store.
        TypeError: An argument is of another type.
        ModuleNotFoundError: The extra ``manifest`` is not installed.
    """
    owner = f"router {name!r}"
    check_queue_resource(queue, owner)
    require_manifests(owner, "dagster,manifest")
    check_workspace(workspace, owner)
    check_whole_number(max_batches, "max_batches", 1, 1_000, owner)
    handoff_seconds = seconds_of(handoff_timeout, name="handoff_timeout", minimum=1, maximum=MAX_VISIBILITY_SECONDS)
    options = LeaseOptions.of(
        max_messages=max_messages,
        wait=wait,
        linger=linger,
        visibility=handoff_seconds,
        on_failure=failure_rule(on_failure),
    )
    longest = options.wait_seconds + options.linger_seconds
    if longest > LONGEST_RECEIVE_SECONDS:
        raise ValueError(
            f"{owner}: wait and linger are {longest:g} s together, and may be at most "
            f"{LONGEST_RECEIVE_SECONDS:g} s, because Dagster gives up an evaluation after 60 s"
        )
    jobs = jobs_of_a_list(target)
    if (job is None and len(jobs) > 1) or (job is not None and not jobs):
        raise ValueError(f"{owner}: give job= with a list of several jobs as target, and only then")
    dispatch = Dispatch(job, partition_key, asset_selection, run_config, run_tags, jobs)
    router = _Router(name, queue, f"{workspace.rstrip('/')}/{name}", options, handoff_seconds, max_batches, dispatch)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return router.evaluate(context, made)

    made = dg.SensorDefinition(
        name,
        evaluation_fn=evaluate,
        **target_argument(target),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Receives messages, sorts them, and starts runs that work on them.",
    )
    return made


@dataclass(frozen=True, slots=True)
class _Request:
    """A run to request, and the directory of its batch, which is named by the batch's id."""

    folder: BatchFolder
    destination: Destination


@dataclass(slots=True)
class _Received:
    """The result of one evaluation's receive: the runs to request, and why messages cannot go to a run."""

    requests: list[_Request] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Router:
    """A router; :func:`build_sqs_router` documents the attributes."""

    name: str
    queue: SqsQueueResource
    uri: str
    options: LeaseOptions
    handoff_seconds: float
    max_batches: int
    dispatch: Dispatch

    def evaluate(self, context: dg.SensorEvaluationContext, made: dg.SensorDefinition) -> dg.SensorResult:
        queue = self.queue.process_config_and_initialize()
        if not is_tick_of_the_daemon(context) and not _is_in_memory(queue):
            return self._tried_out(queue)
        dispatcher = Dispatcher(made, self.dispatch, context)
        dispatcher.check()
        with self._workspace():
            waiting = self._waiting(dispatcher, queue.queue)
        under_way = self._count_under_way(context)
        if waiting or under_way >= self.max_batches:
            reason = f"{under_way} of its runs are queued or under way"
            return self._asking_for(_Received(waiting), dispatcher, queue.queue, reason)
        try:
            with access_to(queue):
                received = asyncio.run(_within(self._receive(queue, dispatcher), queue.queue))
        except SqsError as error:
            return self._unreachable(error, context)
        return self._asking_for(received, dispatcher, queue.queue, f"No message came from {queue.queue}")

    def _asking_for(self, received: _Received, dispatcher: Dispatcher, queue: str, reason: str) -> dg.SensorResult:
        name = name_of_sensor(self.name, dispatcher.context)
        asked: list[dg.RunRequest] = []
        partitions: list[Mapping[str, str]] = []
        # Dagster launches one after the other, each in about 3 s. The next evaluation finds the others.
        for request in received.requests[:MOST_RUNS_AT_ONCE]:
            tags = {ROUTED_TAG: str(request.folder), ROUTED_QUEUE_TAG: queue, ROUTER_TAG: name}
            run, added = dispatcher.run_request(request.destination, run_key=request.folder.path.name, tags=tags)
            asked.append(run)
            partitions.append(added)
        for failure in received.failures:
            dispatcher.context.log.error(failure)
        if received.failures and not asked:
            raise RouterError(f"router {self.name} on {queue}: {'; '.join(received.failures)}")
        return dg.SensorResult(
            run_requests=asked,
            skip_reason=None if asked else reason,
            # Clears the time of the first error, see _unreachable().
            cursor="",
            dynamic_partitions_requests=add_requests(partitions),
        )

    def _unreachable(self, error: SqsError, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Skip errors that pass by themselves, for ten minutes at most; the cursor has the time of the first one."""
        cursor = context.cursor or ""
        before = float(cursor) if re.fullmatch(r"\d+(\.\d+)?", cursor) else None
        since = unreadable_since(error, before, time.time())
        return dg.SensorResult(skip_reason=f"Nothing was received: {error}", cursor=str(since))

    def _tried_out(self, queue: SqsQueueResource) -> dg.SensorResult:
        attributes = queue.attributes()
        return dg.SensorResult(
            skip_reason=(
                "This is a test, so nothing was received. The router would receive up to "
                f"{self.options.max_messages} of about {attributes.visible} messages of {queue.queue}, and ask for runs"
            )
        )

    @contextmanager
    def _workspace(self) -> Iterator[None]:
        """Name the workspace in the errors of its files.

        Raises:
            RouterError: A file or directory in it cannot be read or written.
        """
        try:
            yield
        except OSError as error:
            raise RouterError(
                f"router {self.name} cannot use {self.uri} ({type(error).__name__}: {error}): its workspace must be a "
                "directory that the code server and all runs share, and may write to"
            ) from error

    # Batches of earlier evaluations

    def _count_under_way(self, context: dg.SensorEvaluationContext) -> int:
        filters = dg.RunsFilter(tags={ROUTER_TAG: name_of_sensor(self.name, context)}, statuses=list(_UNFINISHED))
        return len(context.instance.get_run_records(filters, limit=self.max_batches))

    def _newest_succeeded(self, context: dg.SensorEvaluationContext) -> dict[str, str]:
        """Return the newest of its runs that succeeded: their ids by the directories of their batches."""
        tags = {ROUTER_TAG: name_of_sensor(self.name, context)}
        filters = dg.RunsFilter(tags=tags, statuses=[dg.DagsterRunStatus.SUCCESS])
        records = context.instance.get_run_records(filters, limit=_RECENT_RUNS)
        runs = [record.dagster_run for record in records]
        return {run.tags[ROUTED_TAG]: run.run_id for run in runs if ROUTED_TAG in run.tags}

    def _waiting(self, dispatcher: Dispatcher, queue: str) -> list[_Request]:
        """Return the batches of the queue that were written and have no run yet; remove old ones.

        Raises:
            RouterError: A run succeeded without its messages. It is raised once for the run: the batch is removed.
        """
        remove_left_over(self.uri)
        waiting: list[_Request] = []
        succeeded = self._newest_succeeded(dispatcher.context)
        for folder in batches(self.uri):
            written = read_written(folder)
            destination = None if written is None else read_run(folder)
            if written is not None and (run_id := succeeded.get(str(folder))) is not None:
                # Otherwise each batch would come back after handoff_timeout, and go to such a run again, for ever.
                folder.remove()
                raise RouterError(
                    f"router {self.name}: run {run_id} succeeded, and did not lease its messages of {queue}, which are "
                    "visible again when their leases end. Call lease(context) of a resource with this queue in one "
                    "of its steps, or give its job sqs_lease_executor with this queue"
                )
            if written is None or destination is None or is_over(written):
                continue
            if dispatcher.why_not(destination) or _has_run(dispatcher.context.instance, folder):
                # If such a run is no longer possible, the messages come back by themselves.
                continue
            if not is_same_queue(queue, folder.manifest().queue_url):
                # The router had another queue before, where the run would not look for them.
                continue
            waiting.append(_Request(folder, destination))
        return waiting

    # Receiving

    async def _receive(self, queue: SqsQueueResource, dispatcher: Dispatcher) -> _Received:
        options = self.options
        opened = OpenQueue(blocking.open_transport(queue.client(), queue.queue), queue.queue, options)
        asking = ThreadPoolExecutor(1, f"sqs-lease router {self.name}")
        try:
            await opened.open()
            held = opened.keeper.open_batch(opened.queue_url, policy=opened.policy, on_failure=options.on_failure)
            try:
                collected = await opened.receiver.collect(
                    options.max_messages,
                    wait=options.wait_seconds,
                    linger=options.linger_seconds,
                    on_received=lambda reception: held.add(
                        reception.messages, received_at=reception.received_at, sent_at=reception.sent_at
                    ),
                )
                if collected.error is not None and collected.messages:
                    logger.warning("Took %d messages only: %s", len(collected.messages), collected.error)
                return await self._sorted(held, opened.keeper, dispatcher, asking)
            except BaseException:
                if held.count_held():
                    await held.release_all()
                raise
        finally:
            asking.shutdown(wait=False, cancel_futures=True)
            await opened.close()

    async def _sorted(
        self, held: Batch, keeper: Keeper, dispatcher: Dispatcher, asking: ThreadPoolExecutor
    ) -> _Received:
        """Choose a run for each message, write the runs' batches down, and pass them on."""
        messages = held.messages()
        if not messages:
            return _Received()
        # In a thread, so that the time limit works even if a function hangs.
        answers = await asyncio.get_running_loop().run_in_executor(
            asking, partial(dispatcher.variables.run, dispatcher.ask, messages)
        )
        settled, failures = _settled(held, messages, answers)
        chosen = [
            (message, answer)
            for message, answer in zip(messages, answers, strict=True)
            if isinstance(answer, Destination) and message.receipt not in settled
        ]
        divisions, behind = divided(chosen, is_fifo=held.queue_url.endswith(FIFO_SUFFIX))
        parts = [(BatchFolder(f"{self.uri}/{uuid4().hex}"), part) for part in divisions]
        try:
            with self._workspace():
                for folder, part in parts:
                    await asyncio.to_thread(_write_messages, folder, part, held.queue_url)
            ends = await held.settle({**settled, **{message.receipt: Release() for message in behind}})
            refused = [end.detail for end in ends.values() if end.outcome is Outcome.FAILED]
            if refused:
                failures.append(f"{len(refused)} messages could not be settled: {'; '.join(dict.fromkeys(refused))}")
            written = await held.pass_on(self.handoff_seconds)
            try:
                with self._workspace():
                    await asyncio.to_thread(_write_leases, parts, written)
            except BaseException:
                # The runs will not be requested, so the router still holds the messages.
                again = keeper.open_batch(held.queue_url, policy=self.options.policy)
                again.adopt(written)
                await again.release_all()
                raise
        except BaseException:
            for folder, _ in parts:
                await asyncio.to_thread(folder.discard)
            raise
        return _Received([_Request(folder, part.destination) for folder, part in parts], failures)


async def _within(receiving: Awaitable[_Received], queue: str) -> _Received:
    """Receive within the time that the daemon allows.

    Raises:
        TimeoutError: It took too long; the received messages are visible again.
    """
    try:
        async with asyncio.timeout(TICK_SECONDS) as limit:
            return await receiving
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(
            f"the evaluation of a router on {queue} took longer than {TICK_SECONDS:g} s, so it was given up, and its "
            "messages are visible again. Check that its functions, its workspace and SQS answer in time"
        ) from None


def _settled(
    held: Batch, messages: Sequence[Message], answers: Sequence[Destination | DispatchFailure]
) -> tuple[dict[Receipt, Settlement], list[str]]:
    """Decide on messages that cannot go to a run, and on those behind them in their groups; and say why, for people."""
    alike: dict[DispatchFailure, list[Receipt]] = {}
    for message, answer in zip(messages, answers, strict=True):
        if isinstance(answer, DispatchFailure):
            alike.setdefault(answer, []).append(message.receipt)
    settled: dict[Receipt, Settlement] = {}
    failures = []
    for why, receipts in alike.items():
        settled |= held.failing(why.reason, receipts, errors=why.errors)
        failures.append(dispatch_failure_text(why, receipts, settled))
    if settled and held.queue_url.endswith(FIFO_SUFFIX):
        whole = {message.receipt: settled.get(message.receipt, Delete()) for message in messages}
        carried_out = hold_back(whole, held.leases(), lambda _: None)
        settled |= {receipt: one for receipt, one in carried_out.items() if one != whole[receipt]}
    return settled, failures


def _write_messages(folder: BatchFolder, part: Part, queue_url: str) -> None:
    folder.create(batch_id=folder.path.name, queue_url=queue_url, messages=part.messages)
    write_run(folder, part.destination)


def _write_leases(parts: Sequence[tuple[BatchFolder, Part]], written: WrittenBatch) -> None:
    leases = {lease.receipt.message_id: lease for lease in written.leases}
    for folder, part in parts:
        ids = [message.message_id for message in part.messages]
        mine = tuple(leases[message_id] for message_id in ids if message_id in leases)
        write_leases(folder, WrittenBatch(folder.path.name, written.written_at, mine))


def _has_run(instance: dg.DagsterInstance, folder: BatchFolder) -> bool:
    return bool(instance.get_run_records(dg.RunsFilter(tags={ROUTED_TAG: str(folder)}), limit=1))


def _is_in_memory(queue: SqsQueueResource) -> bool:
    """Whether the queue is one in memory, for tests."""
    transport = blocking.open_transport(queue.client(), queue.queue)
    try:
        return getattr(transport, "is_in_memory", False)
    finally:
        asyncio.run(transport.aclose())
