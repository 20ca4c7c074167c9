"""The trigger of an asset's watcher: receives batches, fires an event for each, and holds them until a run has them.

What a run must do to get a batch is done by :class:`~sqs_lease.airflow.operators.SqsLeaseFromEventOperator`. When
the trigger ends:

- the triggerer stops, or gives it to another one: one last extension; the next start takes over from the registry;
- the watcher is removed (the DAG was paused, deleted or changed): messages without a run are released, unless another
  start of the trigger took the registry over already;
- the triggerer is killed: the same as when it stops, without the last extension.

It never ends by itself: what goes wrong is logged, and tried again after a while.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from botocore.exceptions import BotoCoreError

from sqs_lease.airflow.airflow_api.requests import CommsError, NoAnswerError, watched_assets
from sqs_lease.airflow.aws_connection import AwsConnection, translate_aws_errors
from sqs_lease.airflow.batches.open_batches import OpenBatches, ReplacedError
from sqs_lease.airflow.batches.protocol import BatchEvent, Place
from sqs_lease.airflow.dag_file import warn_author
from sqs_lease.airflow.metrics import PollAge
from sqs_lease.airflow.receiving.collector import (
    CollectOptions,
    Collector,
    ShortVisibilityWarning,
    takeover_risk,
    with_visibility,
)
from sqs_lease.airflow.receiving.filters import (
    MessageFilter,
    UnmatchedRule,
    check_unmatched,
    decode_unmatched,
    encode_unmatched,
)
from sqs_lease.airflow.runtime import SharedBatch, SharedKeeper, TriggererKeepers, shielded, triggerer_keepers
from sqs_lease.airflow.transfer.payload import PayloadError, check_payload, default_payload
from sqs_lease.airflow.triggers.stored_arguments import raises_type_errors_only
from sqs_lease.clock import Clock
from sqs_lease.core.durations import Duration, seconds_of
from sqs_lease.core.events import LeaseEvent
from sqs_lease.core.failure_rules import release
from sqs_lease.core.limits import MAX_IN_FLIGHT
from sqs_lease.core.policies import RenewalPolicy
from sqs_lease.core.specs import decode_policy, encode_policy
from sqs_lease.keeper.keeper import Keeper, Leaving
from sqs_lease.keeper.lease_log import LeaseLog
from sqs_lease.keeper.options import DEFAULT_LINGER_SECONDS, DEFAULT_MAX_MESSAGES, LeaseOptions
from sqs_lease.sqs.errors import QueueNotFoundError, SqsError
from sqs_lease.sqs.validation import queue_reference

logger = logging.getLogger(__name__)

DEFAULT_HANDOFF_TIMEOUT: Final = timedelta(hours=1)
"""How long a batch waits for a run: longer than most runs, because with ``max_active_runs`` it waits for one to end."""

MAX_MESSAGES: Final = 2_000
"""Most messages of all open batches together: a run may take all of them, and publishes them through XCom."""

WAIT_SECONDS: Final = 5.0
"""How long one collection waits for a first message, and so how long a poll can be under way when the trigger ends.

Messages are released after the last poll was answered, or it would receive them; and a triggerer that stops is killed
after 10 s. Polls of 20 s would be 3 instead of 12 requests a minute.
"""

FIRST_WAIT_SECONDS: Final = 5.0
LONGEST_WAIT_SECONDS: Final = 300.0
"""Pauses after an error: the first, doubled each time up to the longest."""

LONGEST_MISSING_SECONDS: Final = 30.0
"""The longest pause while the queue does not exist: it is often made after the DAG, and messages wait in it then."""

LONGEST_SILENCE_SECONDS: Final = 3600.0
"""An error that goes on is logged again after twice as long each time, and so often at least."""


class SqsLeaseTrigger(BaseEventTrigger):
    """Starts runs by messages: use it in an ``AssetWatcher`` of the asset that a DAG is scheduled on.

    For example::

        orders_queue = Asset("orders", watchers=[AssetWatcher("orders", trigger=SqsLeaseTrigger("orders"))])

        @dag(schedule=orders_queue)
        def process_orders():
            with sqs_lease("orders", event=orders_queue) as orders:
                load(orders)

    Each event stands for one batch. A run takes all batches whose events Airflow gave it; until then, and
    while its keeper starts, the batches are kept invisible.

    Args:
        queue_url: The queue's URL, name or ARN.
        max_messages: Most messages of one batch, 10 by default.
        linger: How long to wait for more messages after the first; 1 s by default.
        policy: How leases are extended, as for :class:`~sqs_lease.airflow.sensor.SqsLeaseSensor`.
        visibility: The policy's visibility timeout as a shortcut: seconds or a ``timedelta``. None takes one that
            survives the death of the triggerer, as for the sensor.
        payload: For large batches, as for the sensor: a directory, as a URI or an absolute path that all workers and
            triggerers share. It is not templated.
        message_filtering: Take only messages that match, as for the sensor; None, the default, takes all.
        message_filtering_match_values: The values to match.
        message_filtering_config: The JSONPath expression, the attribute's name or the function's dotted path.
        unmatched: What becomes of messages that do not match; ``expire()`` by default.
        max_unsettled_batches: Nothing more is received while so many batches are neither settled nor released, 4 by
            default: one at work, and some that wait to be taken together by the next run. It bounds the runs that
            work side by side, what waits invisibly while the DAG is paused, and what a crash can delay.
        handoff_timeout: How long a batch is held for a run that claims it, and then for that run's keeper; 1 hour by
            default. Then it is released, and nothing is received for 30 s, or twice as long as the last time, up
            to 15 minutes. Make it longer than the runs of a DAG with ``max_active_runs=1``.
        aws_conn_id: The Airflow connection; None for boto3's default credentials.
        region_name: The AWS region; None takes the connection's.
        verify: Whether, or by which certificates, TLS is verified; None takes the connection's.
        botocore_config: Arguments of ``botocore.config.Config``.

    Raises:
        ValueError: A value is out of range, or ``queue`` is not a queue name, URL or ARN.
        TypeError: A value cannot be sent to the triggerer.
    """

    # A DAG file gives no mapping as policy, so its author sees each error as it is.
    @raises_type_errors_only(where=lambda arguments: isinstance(arguments.get("policy"), Mapping))
    def __init__(
        self,
        queue_url: str,
        *,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        linger: Duration = DEFAULT_LINGER_SECONDS,
        policy: RenewalPolicy | Mapping[str, Any] | str | None = None,
        visibility: Duration | None = None,
        payload: str | None = None,
        message_filtering: str | None = None,
        message_filtering_match_values: Iterable[Any] | None = None,
        message_filtering_config: str | None = None,
        unmatched: UnmatchedRule | Mapping[str, Any] | None = None,
        max_unsettled_batches: int = 4,
        handoff_timeout: Duration = DEFAULT_HANDOFF_TIMEOUT,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        verify: bool | str | None = None,
        botocore_config: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        queue_reference(queue_url)
        self.queue_url = queue_url
        # Triggers are stored by their arguments, as plain values.
        decoded = decode_policy(policy) if isinstance(policy, Mapping) else policy
        self.lease = LeaseOptions.of(
            max_messages=max_messages,
            wait=WAIT_SECONDS,
            linger=linger,
            policy=decoded,
            visibility=visibility,
            # Which run will get a batch, and what its keeper makes of failures, is not known.
            on_failure=release(),
        )
        self.policy = encode_policy(self.lease.policy)
        self.max_unsettled_batches = _whole_number(max_unsettled_batches, "max_unsettled_batches")
        most = max_messages * max_unsettled_batches
        if payload is not None:
            check_payload(payload, f"the trigger of {queue_url}")
        elif most > MAX_MESSAGES:
            payload = default_payload()
        self.payload = payload
        if most > (MAX_MESSAGES if payload is None else MAX_IN_FLIGHT):
            raise ValueError(
                f"max_messages={max_messages} in each of max_unsettled_batches={max_unsettled_batches} are {most} "
                f"messages, which one run may be given at once, but more than {MAX_MESSAGES} do not go through XCom "
                f"(or {MAX_IN_FLIGHT} with payload=): lower one, or set payload='s3://connection@bucket/prefix', "
                "or [sqs_lease] payload in Airflow's configuration"
            )
        if not isinstance(policy, Mapping) and (risk := takeover_risk(with_visibility(self.lease.policy))) is not None:
            warn_author(f"the trigger of {queue_url!r}: {risk}", ShortVisibilityWarning)
        self.handoff_timeout_seconds = seconds_of(handoff_timeout, name="handoff_timeout", minimum=1)
        self.botocore_config = dict(botocore_config) if botocore_config else None
        self.connection = AwsConnection.of(aws_conn_id, region_name, verify, botocore_config, queue=queue_url)
        self.message_filtering = message_filtering
        values = message_filtering_match_values
        self.message_filtering_match_values = None if values is None else _in_order(values)
        self.message_filtering_config = message_filtering_config
        self._filter = MessageFilter.of(
            message_filtering,
            self.message_filtering_match_values,
            message_filtering_config,
            # The triggerer imports a function where it can wait, and can try again.
            checked=isinstance(policy, Mapping),
        )
        if unmatched is not None and message_filtering is None:
            raise ValueError("unmatched says what becomes of messages that message_filtering keeps out")
        rule = decode_unmatched(unmatched) if isinstance(unmatched, Mapping) else unmatched
        self.unmatched = None if rule is None else encode_unmatched(check_unmatched(rule))
        self._keepers: TriggererKeepers | None = None
        self._shared_keeper: SharedKeeper | None = None
        self._batches: OpenBatches | None = None
        self._collecting: tuple[str, SharedBatch] | None = None
        self._work: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[BatchEvent] = asyncio.Queue()
        self._lease_log = LeaseLog(queue_url)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for Airflow."""
        return (
            f"{SqsLeaseTrigger.__module__}.{SqsLeaseTrigger.__qualname__}",
            {
                "queue_url": self.queue_url,
                "max_messages": self.lease.max_messages,
                "linger": self.lease.linger_seconds,
                "policy": self.policy,
                "payload": self.payload,
                "message_filtering": self.message_filtering,
                "message_filtering_match_values": self.message_filtering_match_values,
                "message_filtering_config": self.message_filtering_config,
                "unmatched": self.unmatched,
                "max_unsettled_batches": self.max_unsettled_batches,
                "handoff_timeout": self.handoff_timeout_seconds,
                "aws_conn_id": self.connection.aws_conn_id,
                "region_name": self.connection.region_name,
                "verify": self.connection.verify,
                "botocore_config": self.botocore_config,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Receive and fire, until the trigger is ended."""
        asset = watched_assets(self.asset_state_store)[0]
        self._keepers = keepers = triggerer_keepers()
        await keepers.ready()
        poll_age = PollAge(self.queue_url, keepers.clock)
        serving = asyncio.create_task(
            self._serve(keepers, asset, poll_age), name=f"sqs-lease events of {self.queue_url}"
        )
        showing = asyncio.create_task(poll_age.show(), name=f"sqs-lease poll age of {self.queue_url}")
        self._work += [serving, showing]
        while not serving.done():
            event = asyncio.create_task(self._events.get())
            try:
                await asyncio.wait([event, serving], return_when=asyncio.FIRST_COMPLETED)
                if event.done():
                    yield TriggerEvent(event.result().encode())  # type: ignore[no-untyped-call]
            finally:
                event.cancel()
        await serving

    @shielded
    async def cleanup(self) -> None:
        """Leave the waiting batches to the trigger's next start; release messages that no registry names yet."""
        keepers, batches = self._keepers, self._batches
        try:
            for task in self._work:
                task.cancel()
            if batches is not None:
                await batches.leave()
            await _cancel(self._work)
            collecting = self._collecting
            if keepers is not None and collecting is not None:
                batch_id, shared = collecting
                if batches is None or not batches.holds(batch_id):
                    await keepers.leave(batch_id, shared, Leaving.RELEASE)
            if keepers is not None and self._shared_keeper is not None:
                await keepers.release(self._shared_keeper)
        except Exception:
            # Airflow drops what cleanup() raises.
            logger.exception("The event trigger of %s could not be ended properly", self.queue_url)
        finally:
            self._shared_keeper = self._batches = self._collecting = None

    @shielded
    async def on_kill(self) -> None:
        """The watcher is gone, or a triggerer that stood still came back: the registry tells which."""
        if self._batches is None:
            return
        await _cancel(self._work)
        try:
            await self._batches.give_back()
        except CommsError as error:
            logger.warning(
                "Leaving the batches of %s alone; their messages come back when their visibility timeout ends: %s",
                self.queue_url,
                error,
            )

    async def _serve(self, keepers: TriggererKeepers, asset: str, poll_age: PollAge) -> None:
        queue = await self._open(keepers, asset)
        work = [
            asyncio.create_task(queue.batches.attend(), name=f"sqs-lease batches of {self.queue_url}"),
            asyncio.create_task(
                self._receive(keepers, queue, poll_age), name=f"sqs-lease receives of {self.queue_url}"
            ),
        ]
        try:
            done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ReplacedError as replaced:
            logger.warning("Ending here: %s", replaced)
        finally:
            await _cancel(work)

    async def _open(self, keepers: TriggererKeepers, asset: str) -> _OpenQueue:
        """Reach the queue and take over the registry; what fails is tried again, for as long as it takes."""
        outage = _Outage(self.queue_url, keepers.clock)
        while True:
            try:
                if self._shared_keeper is None:
                    with translate_aws_errors(self.queue_url):
                        self._shared_keeper = await keepers.acquire(self.connection)
                return await self._open_with(keepers, self._shared_keeper, asset)
            except (SqsError, BotoCoreError, CommsError, PayloadError, OSError, ValueError) as error:
                await outage.wait(error)

    async def _open_with(self, keepers: TriggererKeepers, shared_keeper: SharedKeeper, asset: str) -> _OpenQueue:
        options = CollectOptions(
            queue=self.queue_url,
            lease=self.lease,
            filter=None if self._filter is None else asdict(self._filter),
            unmatched=self.unmatched,
            stored=self.payload is not None,
        )
        collector = await Collector.open(options, shared_keeper.transport, keepers.clock)
        batches = OpenBatches(
            place=Place.of_queue(asset, self.queue_url),
            owner=uuid.uuid4().hex,
            queue_url=collector.queue_url,
            connection=self.connection,
            keepers=keepers,
            shared_keeper=shared_keeper,
            payload=self.payload,
            limit=self.max_unsettled_batches,
            handoff_timeout_seconds=self.handoff_timeout_seconds,
            fire=self._events.put_nowait,
            happened=self._happened,
        )
        # Known before it holds anything, so that this trigger's end finds it.
        self._batches = batches
        await batches.resume()
        return _OpenQueue(shared_keeper.keeper, collector, batches)

    async def _receive(self, keepers: TriggererKeepers, queue: _OpenQueue, poll_age: PollAge) -> None:
        """Receive one batch after the other; what fails is tried again, for as long as it takes."""
        outage = _Outage(self.queue_url, keepers.clock)
        while True:
            with poll_age.resting():
                await queue.batches.room()
            try:
                if outage.logged:
                    # What Airflow does not take is given back, and each receive counts for the redrive policy: nothing
                    # is received until Airflow answers.
                    await queue.batches.is_served()
                await self._receive_one(keepers, queue)
                poll_age.answered()
                outage.is_over()
            except Exception as error:
                # Whatever it is: a trigger that ends is started again at once, and would receive the same messages.
                if not isinstance(error, SqsError | CommsError | PayloadError):
                    logger.exception("Receiving from %s failed unexpectedly", self.queue_url)
                if self._collecting is not None:
                    await keepers.leave(*self._collecting, Leaving.RELEASE)
                    self._collecting = None
                await outage.wait(error)

    async def _receive_one(self, keepers: TriggererKeepers, queue: _OpenQueue) -> None:
        batch_id, shared = uuid.uuid4().hex, queue.batches.open_shared_batch(queue.collector.policy)
        self._collecting = batch_id, shared
        queue.batches.polling = True
        try:
            found = await queue.collector.collect(
                queue.keeper,
                shared.batch,
                keepers.clock.wall() + self.lease.wait_seconds,
                most_bytes=queue.batches.bytes_left(),
            )
        finally:
            queue.batches.polling = False
        if found:
            await self._add(queue, batch_id, shared)
        else:
            shared.drop()
        self._collecting = None

    async def _add(self, queue: _OpenQueue, batch_id: str, shared: SharedBatch) -> None:
        """Register a batch, without those of its messages that Airflow refuses by themselves."""
        policy = queue.collector.policy
        try:
            await queue.batches.add(batch_id, shared, policy)
        except NoAnswerError:
            raise
        except CommsError:
            refused = await queue.batches.find_refused(batch_id, shared.batch.messages())
            if not refused:
                raise
            await queue.collector.settle_refused(shared.batch, refused)
            if shared.batch.count_held():
                # By another name: what is stored under this one is about to be deleted.
                self._collecting = uuid.uuid4().hex, shared
                await queue.batches.add(self._collecting[0], shared, policy)
            else:
                shared.drop()

    def _happened(self, event: LeaseEvent) -> None:
        self._lease_log.happened(event)


@dataclass(frozen=True, slots=True)
class _OpenQueue:
    """What is needed to receive from the queue, and where batches go."""

    keeper: Keeper
    collector: Collector
    batches: OpenBatches


@dataclass(slots=True)
class _Outage:
    """Waits after each error, longer each time. It logs a new error at once, and the same error less and less often."""

    queue_url: str
    clock: Clock
    seconds: float = FIRST_WAIT_SECONDS
    logged: str = ""
    silence_seconds: float = 0.0
    silent_until: float = 0.0

    async def wait(self, error: Exception) -> None:
        """Log the error, and wait."""
        longest = LONGEST_MISSING_SECONDS if isinstance(error, QueueNotFoundError) else LONGEST_WAIT_SECONDS
        seconds = min(self.seconds, longest)
        self.seconds = min(self.seconds * 2, LONGEST_WAIT_SECONDS)
        self._say(str(error), seconds)
        await asyncio.sleep(seconds)

    def _say(self, text: str, seconds: float) -> None:
        now = self.clock.now()
        if text != self.logged:
            self.logged, self.silence_seconds = text, FIRST_WAIT_SECONDS
        elif now < self.silent_until:
            return
        self.silent_until = now + self.silence_seconds
        self.silence_seconds = min(self.silence_seconds * 2, LONGEST_SILENCE_SECONDS)
        logger.error("No events of %s for %g s: %s", self.queue_url, seconds, text)

    def is_over(self) -> None:
        """Note that a call succeeded: the next error waits the shortest time again, and is logged."""
        self.seconds, self.logged = FIRST_WAIT_SECONDS, ""


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    # Their errors were logged, or are being raised already.
    await asyncio.gather(*tasks, return_exceptions=True)


def _in_order(values: Iterable[Any]) -> list[Any]:
    """Put a set into an order that is the same in every process: Airflow compares triggers by their arguments."""
    return sorted(values, key=repr) if isinstance(values, set | frozenset) else list(values)


def _whole_number(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    return value
