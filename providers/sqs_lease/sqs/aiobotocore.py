"""The transport over an aiobotocore client: no threads, for hosts that run in an event loop (Airflow's triggerer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from sqs_lease.daemon_threads import DaemonThreads
from sqs_lease.sqs.client_transport import ClientTransport

if TYPE_CHECKING:
    from types_aiobotocore_sqs import SQSClient

    ClientMaker: TypeAlias = AbstractAsyncContextManager[SQSClient]


class AiobotocoreTransport(ClientTransport):
    """A :class:`sqs_lease.sqs.transport.Transport` whose calls are I/O of the event loop.

    A call that is cancelled, or whose answer takes too long, closes its connection. The service may have carried it
    out all the same.

    Args:
        client: A client that is ready for use; or the asynchronous context manager that makes one, as
            ``AioSession.create_client("sqs", ...)`` and Airflow's ``SqsHook.get_async_conn()`` return it; or a
            function that returns such a context manager. The first call enters the context manager. Such a context
            manager can be entered only once, so a host that goes on after its credentials could not be fetched gives
            the function, which is called in a thread for each attempt. The transport owns the client and closes it.
    """

    def __init__(self, client: SQSClient | ClientMaker | Callable[[], ClientMaker]) -> None:
        super().__init__()
        self._given = cast("Any", client)  # the stubs lack some of its attributes
        self._entered: Any = None

    async def _open(self) -> Any:
        # A client has ``meta``. It is a context manager too, but one that was entered already.
        if hasattr(self._given, "meta"):
            return self._given
        is_manager = hasattr(self._given, "__aenter__")
        making = self._given if is_manager else await DaemonThreads(1, "sqs-lease client").run(self._given)
        client = await making.__aenter__()
        self._entered = making
        return client

    async def _call(
        self, method: Callable[..., Any], parameters: Mapping[str, Any], free: Callable[[], None]
    ) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await method(**parameters)
        finally:
            free()
        return answer

    async def _close(self) -> None:
        if hasattr(self._given, "meta"):
            await self._given.close()
        elif self._entered is not None:
            await self._entered.__aexit__(None, None, None)
