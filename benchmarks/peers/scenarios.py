"""The scenarios of the peers, the same for all: long work, failing work, outages, many at once, no work at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from benchmarks.peers.programs import Job, Peer, Running
from benchmarks.peers.proxy import Gate, Proxy
from benchmarks.peers.results import FailingWork, Held, LongWork, Outage, Sizes, Throughput
from demo.sqs_server import SqsServer

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient
    from types_boto3_sqs.literals import QueueAttributeNameType

START_SECONDS: Final = 300.0
"""So long may a peer take from its start until it has all messages, at the least."""

SLOWEST_A_SECOND: Final = 50
"""So many messages a second it has to take, where that would be more than :data:`START_SECONDS`."""

GRACE_SECONDS: Final = 20.0
"""So long is waited for an end that should have come."""

SELDOM_SECONDS: Final = 0.5
"""So long passes, at most, between two looks at the counts of a queue that a peer empties."""

OFTEN_SECONDS: Final = 0.1
"""The same before it has received anything, when the server has nothing else to do."""

SHORTEST_PAUSE_SECONDS: Final = 0.05

LOOKS_SHARE: Final = 0.02
"""So much of the time may looks take: with each, ElasticMQ goes through all messages, 20 000 in 10 ms."""

SETTLE_SECONDS: Final = 5.0
"""So long passes between the last of many messages and the begin of the measurement."""

_EXTENSIONS: Final = ("ChangeMessageVisibility", "ChangeMessageVisibilityBatch")
_DELETES: Final = ("DeleteMessage", "DeleteMessageBatch")


class PeerFailedError(RuntimeError):
    """A peer did not do what the scenario needs; the message says what."""


class SecondConsumer:
    """Polls a queue all the time, through a gate of its own, and keeps what it is given in flight.

    Args:
        sqs: A client behind its gate.
        queue_url: The queue.
        wait_seconds: How long a poll waits. For each waiting poll, ElasticMQ searches the messages in flight at
            each call: with thousands of messages, polls must not wait.
    """

    def __init__(self, sqs: SQSClient, queue_url: str, *, wait_seconds: int) -> None:
        self._sqs = sqs
        self._queue_url = queue_url
        self._wait_seconds = wait_seconds
        self._stopped = Event()
        self._thread = Thread(target=self._poll, name=f"second consumer of {queue_url}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            # For so long that it is given each message once.
            self._sqs.receive_message(
                QueueUrl=self._queue_url,
                WaitTimeSeconds=self._wait_seconds,
                MaxNumberOfMessages=10,
                VisibilityTimeout=3_600,
            )
            if not self._wait_seconds:
                self._stopped.wait(1)


@dataclass(frozen=True, slots=True)
class Track:
    """One queue with the gates of the peer and of the second consumer; its URL is that at the server."""

    job: Job
    messages: int
    queue_url: str
    gate: Gate
    second_gate: Gate
    second: SecondConsumer


@dataclass(frozen=True, slots=True)
class QueueState:
    """How far a peer is.

    Attributes:
        at: When, by the monotonic clock.
        visible: How many messages were not received.
        left: How many were not deleted.
        processor_seconds: The processor time of the peer's processes; 0 if it was not read.
    """

    at: float
    visible: int
    left: int
    processor_seconds: float = 0.0


class Ground:
    """The server, the proxy, and queues for one peer.

    Args:
        server: The SQS server.
        proxy: The proxy before it.
        peer: The peer.
        sizes: How much it is given.
        directory: Where its files go.
    """

    def __init__(self, server: SqsServer, proxy: Proxy, peer: Peer, sizes: Sizes, directory: Path) -> None:
        self._server, self._proxy, self._peer, self._sizes = server, proxy, peer, sizes
        self._directory = directory
        self._sqs = server.sqs_client()

    def long_work(self) -> tuple[LongWork, FailingWork, tuple[Outage, ...]]:
        """All scenarios with long work, side by side: they do little but wait."""
        sizes = self._sizes
        work = self._track("work", sizes.messages, work_seconds=sizes.work_seconds, at_once=sizes.messages)
        failing = self._track(
            "failing", sizes.messages, work_seconds=sizes.failing_after_seconds, fails=True, at_once=sizes.messages
        )
        outages = {
            after: self._track(
                f"outage-{after}", sizes.messages, work_seconds=sizes.work_seconds, at_once=sizes.messages
            )
            for after in sizes.outages_after_seconds
        }
        tracks = [work, failing, *outages.values()]
        try:
            with (
                self._peer.running([track.job for track in tracks], self._directory) as running,
                ThreadPoolExecutor(len(tracks)) as threads,
            ):
                worked = threads.submit(self._follow_work, work, running)
                failed = threads.submit(self._follow_failing, failing, running)
                cut = [threads.submit(self._follow_outage, outages[after], after, running) for after in outages]
                long_work, (before, visible_after) = worked.result(), failed.result()
                outcome = tuple(future.result() for future in cut)
            for track in tracks:
                track.second.stop()
            lost = failing.messages - sum(self._counts(failing.queue_url))
        finally:
            for track in tracks:
                self._end(track)
        return long_work, FailingWork(lost, before, visible_after), outcome

    def held(self) -> Held:
        """Many messages at once."""
        sizes = self._sizes
        track = self._track("held", sizes.held, work_seconds=3_600, at_once=sizes.held)
        try:
            with self._peer.running([track.job], self._directory) as running:
                with suppress(PeerFailedError):
                    self._await_all(track, running)
                track.second.start()
                time.sleep(SETTLE_SECONDS)
                processor, calls = running.processor_seconds(), track.gate.calls.total()
                began_at = time.monotonic()
                time.sleep(sizes.held_seconds)
                length = time.monotonic() - began_at
                return Held(
                    messages=len(track.gate.received_ids),
                    processor_percent=100 * (running.processor_seconds() - processor) / length,
                    memory_megabytes=running.memory_bytes() / 1e6,
                    requests_a_minute=60 * (track.gate.calls.total() - calls) / length,
                    deliveries=len(track.second_gate.received_ids),
                )
        finally:
            self._end(track)

    def throughput(self) -> Throughput:
        """No work at all: the peer has the server for itself, and the queue's own counts say how far it is."""
        total = self._sizes.throughput
        job, queue_url = self._job(
            "throughput",
            total,
            work_seconds=0,
            at_once=self._peer.at_once or self._sizes.at_once,
            endpoint_url=self._server.endpoint_url,
        )
        started_at = time.monotonic()
        try:
            with self._peer.running([job], self._directory) as running:
                begin = self._await_state(
                    queue_url, running, total, lambda state: state.visible < total, pause_seconds=OFTEN_SECONDS
                )
                end = self._await_state(
                    queue_url, running, total, lambda state: state.left == 0, pause_seconds=SELDOM_SECONDS
                )
        finally:
            self._delete(queue_url)
        return Throughput(
            messages=begin.left,
            first_seconds=begin.at - started_at,
            last_seconds=end.at - begin.at,
            processor_seconds=end.processor_seconds - begin.processor_seconds,
        )

    def _await_state(
        self,
        queue_url: str,
        running: Running,
        total: int,
        is_so: Callable[[QueueState], bool],
        *,
        pause_seconds: float,
    ) -> QueueState:
        """Wait until a queue's counts are so; return them with the peer's processor time then."""
        queue = queue_url.rpartition("/")[2]
        ends_at = time.monotonic() + max(START_SECONDS, total / SLOWEST_A_SECOND)
        while True:
            looked_at = time.monotonic()
            visible, in_flight = self._counts(queue_url)
            state = QueueState(time.monotonic(), visible, visible + in_flight)
            if is_so(state):
                return replace(state, processor_seconds=running.processor_seconds())
            if not running.is_running:
                raise PeerFailedError(
                    f"{queue_url.rpartition('/')[2]}: its process ended, {state.left} messages are left"
                )
            if state.at > ends_at:
                raise PeerFailedError(f"{queue}: {state.left} of {total} messages are left")
            # The fewer messages are left, the less a look costs: so the end is seen early.
            time.sleep(min(pause_seconds, max(SHORTEST_PAUSE_SECONDS, (state.at - looked_at) / LOOKS_SHARE)))

    def _job(
        self,
        name: str,
        messages: int,
        *,
        work_seconds: float,
        at_once: int,
        endpoint_url: str,
        fails: bool = False,
    ) -> tuple[Job, str]:
        """Make a queue and its dead-letter queue, and send messages.

        Returns:
            The peer's job, and the queue's URL at the server.
        """
        sizes = self._sizes
        visibility = sizes.visibility_seconds
        if not self._peer.extends:
            visibility = max(sizes.fixed_visibility_seconds, int(2 * work_seconds))
        queue = f"{self._peer.name}-{name}"
        dead = self._sqs.create_queue(QueueName=f"{queue}-dead")["QueueUrl"]
        dead_arn = self._sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        # As every queue should have one; more receives than any scenario has.
        redrive = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1_000}
        queue_url = self._sqs.create_queue(
            QueueName=queue, Attributes={"VisibilityTimeout": str(visibility), "RedrivePolicy": json.dumps(redrive)}
        )["QueueUrl"]
        job = Job(
            name=name,
            queue=queue,
            queue_url=queue_url.replace(self._server.endpoint_url, endpoint_url),
            endpoint_url=endpoint_url,
            visibility_seconds=visibility,
            work_seconds=work_seconds,
            fails=fails,
            at_once=at_once,
            messages=messages,
            record=self._directory / f"{queue}.record",
        )
        self._peer.send(self._sqs, queue_url, job)
        return job, queue_url

    def _track(self, name: str, messages: int, *, work_seconds: float, at_once: int, fails: bool = False) -> Track:
        """Make a queue with messages behind two gates of the proxy."""
        gate, second_gate = self._proxy.gate(), self._proxy.gate()
        job, queue_url = self._job(
            name,
            messages,
            work_seconds=work_seconds,
            at_once=at_once,
            endpoint_url=gate.endpoint_url,
            fails=fails,
        )
        second = SecondConsumer(
            SqsServer(second_gate.endpoint_url, self._server.process).sqs_client(),
            queue_url.replace(self._server.endpoint_url, second_gate.endpoint_url),
            wait_seconds=1 if messages <= self._sizes.messages else 0,
        )
        return Track(job, messages, queue_url, gate, second_gate, second)

    def _await_all(self, track: Track, running: Running) -> None:
        """Wait until the peer was given every message once."""
        patience = max(START_SECONDS, track.messages / SLOWEST_A_SECOND)
        if not _until(lambda: len(track.gate.received_ids) >= track.messages or not running.is_running, patience):
            raise PeerFailedError(
                f"{track.job.queue}: it was given {len(track.gate.received_ids)} of {track.messages} messages "
                f"in {patience:.0f} s"
            )
        if len(track.gate.received_ids) < track.messages:
            raise PeerFailedError(f"{track.job.queue}: its process ended")

    def _follow_work(self, track: Track, running: Running) -> LongWork:
        self._await_all(track, running)
        track.second.start()
        _until(
            lambda: len(track.gate.deleted) >= track.messages and _is_over(track),
            self._sizes.work_seconds + GRACE_SECONDS,
        )
        gate = track.gate
        calls = dict(gate.calls)
        extensions = sum(calls.pop(name, 0) for name in _EXTENSIONS)
        deletes = sum(calls.pop(name, 0) for name in _DELETES)
        empty = gate.empty_receives
        receives = calls.pop("ReceiveMessage", 0) - empty
        return LongWork(
            receives=receives,
            empty_receives=empty,
            extensions=extensions,
            deletes=deletes,
            others=sum(calls.values()),
            deliveries=len(track.second_gate.received_ids),
            again=len(gate.receptions) - len(gate.received_ids),
            done=len(gate.deleted),
        )

    def _follow_failing(self, track: Track, running: Running) -> tuple[int, float | None]:
        self._await_all(track, running)
        first: dict[str, float] = {}
        for reception in list(track.gate.receptions):
            first.setdefault(reception.message_id, reception.at)
        track.second.start()
        failures: list[float] = []

        def has_failed() -> bool:
            failures[:] = _failures(track.job.record)
            return bool(failures)

        if not _until(has_failed, self._sizes.failing_after_seconds + 2 * GRACE_SECONDS):
            raise PeerFailedError(f"{track.job.queue}: its work did not fail")
        failed_at = failures[0]
        before = sum(reception.at < failed_at for reception in list(track.second_gate.receptions))

        def next_receptions() -> list[float]:
            later: dict[str, float] = {}
            for reception in sorted([*track.gate.receptions, *track.second_gate.receptions], key=lambda one: one.at):
                if reception.at > first.get(reception.message_id, 0.0):
                    later.setdefault(reception.message_id, reception.at)
            return [at for at in later.values() if at >= failed_at]

        _until(
            lambda: len(next_receptions()) >= track.messages - before,
            track.job.visibility_seconds + GRACE_SECONDS,
        )
        seen = next_receptions()
        return before, median(at - failed_at for at in seen) if seen else None

    def _follow_outage(self, track: Track, after_seconds: int, running: Running) -> Outage:
        self._await_all(track, running)
        track.second.start()
        time.sleep(after_seconds)
        self._proxy.cut(track.gate)
        time.sleep(self._sizes.outage_seconds)
        self._proxy.mend(track.gate)
        left = self._sizes.work_seconds - after_seconds - self._sizes.outage_seconds
        _until(lambda: len(track.gate.deleted) >= track.messages and _is_over(track), left + GRACE_SECONDS)
        return Outage(
            after_seconds=after_seconds,
            deliveries=len(track.second_gate.received_ids),
            done=len(track.gate.deleted),
            survived=running.is_running,
        )

    def _end(self, track: Track) -> None:
        track.second.stop()
        self._delete(track.queue_url)

    def _delete(self, queue_url: str) -> None:
        """Delete the queues: what one peer leaves in them must not slow the server down for the next."""
        for url in (queue_url, f"{queue_url}-dead"):
            self._sqs.delete_queue(QueueUrl=url)

    def _counts(self, queue_url: str) -> tuple[int, int]:
        """How many messages of a queue are visible, and how many are in flight."""
        names: Sequence[QueueAttributeNameType] = (
            "ApproximateNumberOfMessages",
            "ApproximateNumberOfMessagesNotVisible",
        )
        attributes = self._sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
        visible, in_flight = (int(attributes[name]) for name in names)
        return visible, in_flight


def _is_over(track: Track) -> bool:
    """Whether the work has had its time: a peer that deletes before it works has not done so yet."""
    return time.time() >= track.gate.receptions[0].at + track.job.work_seconds


def _failures(record: Path) -> Sequence[float]:
    """When the peer's work failed, as it wrote down."""
    if not record.exists():
        return []
    lines = record.read_text().splitlines()
    return sorted(float(line.split()[1]) for line in lines if line.startswith("failed ") and len(line.split()) > 1)


def _until(is_so: Callable[[], bool], deadline_seconds: float) -> bool:
    """Ask twenty times a second, up to a deadline; returns whether it became so."""
    ends_at = time.monotonic() + deadline_seconds
    while not is_so():
        if time.monotonic() > ends_at:
            return False
        time.sleep(0.05)
    return True
