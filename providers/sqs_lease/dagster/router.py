"""A sensor that receives batches and holds them while runs work on them, and while Dagster repeats those that fail.

What an evaluation may do is bounded: it receives for some seconds, writes the batch down and asks for a run.
Everything that lasts longer is the business of the host (``host.py``). There is no cursor: what is known
of a batch is in its directory, so a cursor that is lost, old or cleared by hand does no harm.

Dagster's web UI can *test* a sensor, which evaluates it for real. Received messages would be nobody's then, so only an
evaluation by the daemon receives; any other one says what it would do. From queues in memory (``sqs_lease.testing``)
every evaluation receives, so that a unit test can evaluate the sensor.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import dagster as dg

from sqs_lease import blocking
from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.core.calls import Verdict
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.limits import MAX_VISIBILITY_SECONDS
from sqs_lease.core.messages import Message
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import OnFailure
from sqs_lease.dagster._internals import (
    at_exit,
    dispose,
    is_tick_of_the_daemon,
    lasting_instance,
    location_name,
    preview,
    storage_id,
)
from sqs_lease.dagster.access_errors import access_to
from sqs_lease.dagster.backlog_state import UNREADABLE_SECONDS
from sqs_lease.dagster.lease_sensor.dispatch import AssetKeys, Dispatch, Dispatcher
from sqs_lease.dagster.lease_sensor.host import HostIsOverError, LeaseHost
from sqs_lease.dagster.lease_sensor.settings import HostSettings, Request
from sqs_lease.dagster.resource import SqsQueueResource, check_queue_resource
from sqs_lease.dagster.retries import failure_rule
from sqs_lease.dagster.run_batch.leased_batch import BATCH_TAG
from sqs_lease.dagster.run_batch.run_folders import check_workspace
from sqs_lease.dagster.targets import Job, RunConfig, Target, add_requests, jobs_of_a_list, target_argument
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, LeaseOptions
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.transport import Transport
from sqs_lease.sqs.validation import check_whole_number

EVALUATION_WAIT_SECONDS: Final = 5.0
"""How long an evaluation waits for a first message, unless told otherwise.

It is shorter than that of other leases on purpose: Dagster evaluates again soon where nothing came.
"""

LONGEST_RECEIVE_SECONDS: Final = 30.0
"""How long an evaluation may receive: the daemon gives it up after 60 s, and the launch of a run comes after it."""


class LeaseSensorError(RuntimeError):
    """Something went wrong with messages that no run tells of; the text names the queue, and says what."""


_hosts: dict[str, LeaseHost] = {}
"""The hosts of this process by the directory of their sensor. The one module state of this package: evaluations of a
sensor share nothing else, and a keeper must outlive them."""

_hosts_lock = threading.Lock()


@preview("The code server holds the messages, not their run: see docs/dagster-ways.md.")
def build_sqs_lease_sensor(
    name: str,
    queue: SqsQueueResource,
    target: Target,
    *,
    workspace: str,
    max_messages: int = DEFAULT_MAX_MESSAGES,
    wait: Duration = EVALUATION_WAIT_SECONDS,
    linger: Duration = DEFAULT_LINGER_SECONDS,
    policy: RenewalPolicy | str | None = None,
    visibility: Duration | None = None,
    on_failure: OnFailure | None = None,
    max_batches: int = 1,
    run_deadline: Duration = 600.0,
    job: Callable[[Message], str | Job] | None = None,
    partition_key: str | Callable[[Message], str | None] | None = None,
    asset_selection: Callable[[Message], AssetKeys | None] | None = None,
    run_config: RunConfig | Callable[[Message], RunConfig | None] | None = None,
    run_tags: Mapping[str, str] | Callable[[Message], Mapping[str, str] | None] | None = None,
    minimum_interval_seconds: int = 10,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    description: str | None = None,
) -> dg.SensorDefinition:
    """Build a sensor that receives messages, starts a run for each batch, and holds it until its last retry ended.

    The steps of the run get the messages by ``queue.lease(context)`` (:meth:`SqsQueueResource.lease`). When the run has
    succeeded, be it by itself or by a run that Dagster started to repeat it, the messages are deleted that no step
    failed. When it failed for good they are settled by ``on_failure``; when it was canceled, or does not appear, they
    are visible again at once. Runs may be repeated from their failure: the batch is the same.

    With functions of a message, messages with the same answers go to the same run, each batch to one of its own. A
    message on which a function raises an exception, or with an answer that there can be no run for, is settled by
    ``on_failure`` by itself, and an evaluation fails by it. Other exceptions than the function's own are a
    :class:`DispatchError <sqs_lease.dagster.lease_sensor.dispatch.DispatchError>` for ``by_exception``. On a FIFO
    queue, messages of one group that go to different runs are worked on in their order.

    The leases are extended in the process of the code server, not in that of the run. While no code server runs they
    are not extended, and if that takes longer than what is left of the visibility timeout, others receive the messages
    although the run goes on. Prefer :meth:`SqsQueueResource.lease` or ``sqs_lease_executor`` unless retries of runs
    must keep their batch. It is a preview in Dagster's sense: it may change in any release.

    Args:
        name: The sensor's name; also the name of its directory in the workspace.
        queue: The queue.
        target: What the runs execute: a job, a list of jobs of which ``job`` chooses, or assets, as ``target`` of
            :class:`dagster.SensorDefinition`.
        workspace: A directory that the code server and all runs reach, as an absolute path or a URI. Its files have
            receipt handles in them: keep it as private as the queue. The extra ``manifest`` is needed.
        max_messages: Most messages of a batch; 10 by default.
        wait: How long an evaluation waits for a first message; 5 s by default.
        linger: How long it waits for more once one came; 1 s by default. 0 takes what the first answer brought. With
            ``wait`` at most 30 s.
        policy: When to extend: a renewal policy or its name; ``Growing`` by default.
        visibility: The visibility timeout to receive with. By default 180 s with ``Growing``, or the queue's own where
            that is longer: what is left when a lease is due for renewal must outlast a restart of the code server.
        on_failure: What becomes of failed messages: a rule such as ``dead_letter()``, its name, or a mapping such as
            ``{"kind": "backoff", "initial": 30}``; visible again at once by default.
        max_batches: Most batches that are held at once, each with a run of its own; 1 by default. With functions of a
            message, an evaluation that receives because there are fewer may make several of what it receives.
        run_deadline: How long to wait for a run, or a retry, that does not appear, before its messages are given back;
            10 minutes by default. A run that is queued has appeared.
        job: A function that tells which of the jobs a message is for, by its name or itself.
        partition_key: The partition to run, or a function that tells it from a message; None for none. A partition of
            a dynamic partitions definition is added.
        asset_selection: A function that tells which assets of the target a message is for; None for all of them.
        run_config: The runs' configuration, or a function that makes it from a message.
        run_tags: Tags of the runs, or a function that makes them from a message.
        minimum_interval_seconds: Least time between two evaluations, 10 by default. A code server that is started again
            takes over at the first one.
        default_status: Whether the sensor runs without being switched on; it does not, by default.
        description: What the web UI says of it.

    Raises:
        ValueError: An argument is out of range, or ``job`` does not fit the target.
        TypeError: An argument is of another type.
        ModuleNotFoundError: The extra ``manifest`` is not installed.
    """
    whose = f"sensor {name!r}"
    check_queue_resource(queue, whose)
    require_manifests(whose, "dagster,manifest")
    check_workspace(workspace, whose)
    check_whole_number(max_batches, "max_batches", 1, 1_000, whose)
    options = LeaseOptions.of(
        max_messages=max_messages,
        wait=wait,
        linger=linger,
        policy=policy,
        visibility=visibility,
        on_failure=failure_rule(on_failure),
    )
    longest = options.wait_seconds + options.linger_seconds
    if longest > LONGEST_RECEIVE_SECONDS:
        raise ValueError(
            f"{whose}: wait and linger are {longest:g} s together, and may be at most "
            f"{LONGEST_RECEIVE_SECONDS:g} s, because Dagster gives up an evaluation after 60 s"
        )
    jobs = jobs_of_a_list(target)
    if (job is None and len(jobs) > 1) or (job is not None and not jobs):
        raise ValueError(f"{whose}: give job= with a list of several jobs as target, and only then")
    settings = HostSettings(
        sensor=name,
        uri=f"{workspace.rstrip('/')}/{name}",
        options=options,
        max_batches=max_batches,
        run_deadline_seconds=seconds_of(run_deadline, name="run_deadline", minimum=1, maximum=MAX_VISIBILITY_SECONDS),
    )
    dispatch = Dispatch(job, partition_key, asset_selection, run_config, run_tags, jobs)
    sensor = _LeaseSensor(settings, queue, dispatch)

    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        return sensor.evaluate(context, made)

    made = dg.SensorDefinition(
        name,
        evaluation_fn=evaluate,
        **target_argument(target),
        minimum_interval_seconds=minimum_interval_seconds,
        default_status=default_status,
        description=description or "Receives messages, starts runs that work on them, and holds them meanwhile.",
    )
    return made


@dataclass(frozen=True, slots=True)
class _LeaseSensor:
    settings: HostSettings
    queue: SqsQueueResource
    dispatch: Dispatch

    def evaluate(self, context: dg.SensorEvaluationContext, made: dg.SensorDefinition) -> dg.SensorResult:
        queue = self.queue.process_config_and_initialize()
        if not is_tick_of_the_daemon(context) and not _is_in_memory(queue):
            return self._tried_out(queue)
        dispatcher = Dispatcher(made, self.dispatch, context)
        dispatcher.check()
        host: LeaseHost | None = None
        try:
            with access_to(queue):
                host = _host(self.settings.uri, partial(self._new_host, context, queue))
                tick = host.tick(dispatcher)
        except HostIsOverError:
            # Another process has taken over, or was faster. To begin anew at once would take it away from there.
            return dg.SensorResult(skip_reason="The keeper of this process has just ended")
        except SqsError as error:
            lasted = 0.0 if host is None else host.unreachable_seconds()
            if error.verdict is Verdict.REFUSED or lasted >= UNREADABLE_SECONDS:
                raise
            return dg.SensorResult(skip_reason=f"Nothing was received: {error}")
        if tick is None:
            return dg.SensorResult(skip_reason="The evaluation before this one is under way still")
        for news in tick.news:
            context.log.info(news)
        if tick.requests:
            return self._asking_for(tick.requests, dispatcher, context)
        if tick.failures:
            raise LeaseSensorError(f"sensor {self.settings.sensor} on {queue.queue}: {'; '.join(tick.failures)}")
        return dg.SensorResult(skip_reason="; ".join(tick.waiting) or f"No message came from {queue.queue}")

    def _asking_for(
        self, requests: Sequence[Request], dispatcher: Dispatcher, context: dg.SensorEvaluationContext
    ) -> dg.SensorResult:
        asked: list[dg.RunRequest] = []
        partitions: list[Mapping[str, str]] = []
        for request in requests:
            context.log.info("Asking for a run on batch %s with %d messages", request.batch_id, request.messages)
            destination = request.destination or self.dispatch.destination()
            run, added = dispatcher.run_request(destination, run_key=request.batch_id, tags={BATCH_TAG: request.uri})
            asked.append(run)
            partitions.append(added)
        return dg.SensorResult(run_requests=asked, dynamic_partitions_requests=add_requests(partitions))

    def _new_host(self, context: dg.SensorEvaluationContext, queue: SqsQueueResource) -> LeaseHost:
        instance, disposes = lasting_instance(context)
        settings = replace(self.settings, queue=queue.queue, deployment=_deployment(context, instance))
        try:
            return LeaseHost(settings, instance, partial(_open_transport, queue), disposes=disposes)
        except Exception:
            if disposes:
                dispose(instance)
            raise

    def _tried_out(self, queue: SqsQueueResource) -> dg.SensorResult:
        attributes = queue.attributes()
        return dg.SensorResult(
            skip_reason=(
                "This is a test, so nothing was received. The sensor would receive up to "
                f"{self.settings.options.max_messages} of about {attributes.visible} messages of {queue.queue}, and "
                "ask for a run"
            )
        )


def end_hosts() -> None:
    """Hold nothing in this process any more, as tests do; what was held is taken over by the next evaluation."""
    with _hosts_lock:
        hosts = list(_hosts.values())
        _hosts.clear()
    for host in hosts:
        host.end()


def _leave() -> None:
    """Make the last calls of all hosts of a process that ends."""
    for host in list(_hosts.values()):
        host.leave()


def _host(uri: str, make: Callable[[], LeaseHost]) -> LeaseHost:
    with _hosts_lock:
        if not _hosts:
            at_exit(_leave)
        host = _hosts.get(uri)
        if host is None or host.is_over:
            host = _hosts[uri] = make()
        return host


def _open_transport(queue: SqsQueueResource) -> Transport:
    return blocking.open_transport(queue.client(), queue.queue)


def _is_in_memory(queue: SqsQueueResource) -> bool:
    """Whether nothing real can be received."""
    transport = _open_transport(queue)
    try:
        return getattr(transport, "is_in_memory", False)
    finally:
        asyncio.run(transport.aclose())


def _deployment(context: dg.SensorEvaluationContext, instance: dg.DagsterInstance) -> str:
    return f"dagster {storage_id(instance)} {location_name(context) or ''} {context.repository_name}"
