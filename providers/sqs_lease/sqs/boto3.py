"""The transport over a boto3 client: its blocking calls run in the transport's own threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sqs_lease.daemon_threads import DaemonThreads
from sqs_lease.inbox import Inbox
from sqs_lease.sqs.client import ANSWER_SECONDS
from sqs_lease.sqs.client_transport import ClientTransport
from sqs_lease.sqs.parameter_checks import check_rare_calls

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient


@dataclass(slots=True, eq=False)
class _Call:
    """A call that a thread makes, and its result."""

    answer: asyncio.Future[Mapping[str, Any]]
    free: Callable[[], None]
    result: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None


class Boto3Transport(ClientTransport):
    """A :class:`sqs_lease.sqs.transport.Transport` for synchronous hosts; it needs nothing but boto3.

    A call that is cancelled, or whose answer takes too long, goes on in its thread and keeps its connection until the
    client's own timeouts end it. The messages of such a receive are dropped; they stay invisible until their visibility
    timeout ends.

    Args:
        client: ``boto3.client("sqs", config=client_config())``, ready for use. The transport owns it: it shortens the
            read timeout of all calls except long polls, and closes it.

    Raises:
        TypeError: It is not an SQS client of boto3.
    """

    def __init__(self, client: SQSClient) -> None:
        super().__init__()
        _check_client(client)
        self._given = cast("Any", client)  # the stubs lack some of its attributes
        # One thread for each connection, started when it is needed. The capacity decides which call goes next, so no
        # call ever waits in the pool's own queue.
        connections: int = self._given.meta.config.max_pool_connections
        # Not a ThreadPoolExecutor: it takes no more calls once the main thread has ended, and a lease in a thread that
        # lives longer would never end.
        self._threads = DaemonThreads(max(connections, 2), "sqs-lease")
        self._ended: Inbox[_Call] | None = None  # of the loop that it works in

    async def _open(self) -> Any:
        events = self._given.meta.events
        events.register("before-call.sqs", _limit_read_time, unique_id="sqs-lease-read-time")
        check_rare_calls(self._given)
        return self._given

    async def _call(
        self, method: Callable[..., Any], parameters: Mapping[str, Any], free: Callable[[], None]
    ) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        if self._ended is None:
            self._ended = Inbox(partial(_post, loop), _tell_all)
        ended = self._ended
        call = _Call(loop.create_future(), free)

        def make() -> Callable[[], None]:
            try:
                call.result = method(**parameters)
            except BaseException as error:  # noqa: BLE001 - it is raised where the call is awaited
                call.error = error
            return partial(ended.put, call)

        try:
            self._threads.begin(make)
        except RuntimeError:
            free()
            raise
        return await call.answer

    async def _close(self) -> None:
        # This closes idle connections now, and those in use when their call ends.
        self._given.close()
        # A loop of leases would have those of the last ten seconds.
        self._threads.end()


def _check_client(client: object) -> None:
    service = getattr(getattr(getattr(client, "meta", None), "service_model", None), "service_name", None)
    calls = getattr(client, "_make_api_call", None)
    if service == "sqs" and calls is not None and not inspect.iscoroutinefunction(calls):
        return
    given = (
        f"a client of {service}"
        if service not in (None, "sqs")
        else f"{type(client).__module__}.{type(client).__qualname__}"
    )
    raise TypeError(f'client must be an SQS client of boto3, as boto3.client("sqs") returns it, not {given}')


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    # The call may outlive the loop: then no other call needs the connection.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


def _tell_all(calls: Sequence[_Call]) -> None:
    """Pass the results of ended calls to those that await them."""
    for call in calls:
        call.free()
        if call.answer.cancelled():
            continue
        if call.error is None:
            call.answer.set_result(call.result)
        else:
            call.answer.set_exception(call.error)


def _limit_read_time(model: Any, context: dict[str, Any], **_: Any) -> None:
    """Shorten a thread's wait for an answer to that of the transport; botocore reads this key for each call.

    Releases of botocore before 1.43.68 ignore it: there the client's own read timeout applies.
    """
    if model.name != "ReceiveMessage":
        context.setdefault("read_timeout", ANSWER_SECONDS)
