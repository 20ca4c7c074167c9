"""The transport over an aiobotocore client: no threads, for hosts that live in an event loop (Airflow's triggerer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, cast

from sqs_lease.sqs.client_transport import ClientTransport

if TYPE_CHECKING:
    from types_aiobotocore_sqs import SQSClient


class AiobotocoreTransport(ClientTransport):
    """A :class:`sqs_lease.sqs.transport.Transport` whose calls are I/O of the event loop.

    A call that is cancelled, or given up because its answer took too long, closes its connection; the
    service may have carried it out all the same.

    Args:
        client: A client that is ready for use, or the asynchronous context manager that makes one, as
            ``AioSession.create_client("sqs", ...)`` and Airflow's ``SqsHook.get_async_conn()`` return it; it is entered
            with the first call. The transport owns the client and closes it.
    """

    def __init__(self, client: SQSClient | AbstractAsyncContextManager[SQSClient]) -> None:
        super().__init__()
        self._given = cast("Any", client)  # the stubs do not know all of it
        # A client has ``meta``. It is a context manager too, but one that was entered already.
        self._ready = hasattr(client, "meta")

    async def _open(self) -> Any:
        return self._given if self._ready else await self._given.__aenter__()

    async def _call(
        self, method: Callable[..., Any], parameters: Mapping[str, Any], free: Callable[[], None]
    ) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await method(**parameters)
        finally:
            free()
        return answer

    async def _close(self) -> None:
        if self._ready:
            await self._given.close()
        elif self._client is not None:
            await self._given.__aexit__(None, None, None)
