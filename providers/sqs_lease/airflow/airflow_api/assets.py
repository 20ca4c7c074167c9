"""What event triggers and their runs ask of Airflow's asset state store, through the accessor that the SDK has for it.

The store keeps JSON values by asset and key, for as long as the asset exists, and has no compare-and-set. Where
``[workers] state_store_backend`` is set, values go to that back end, and Airflow's store has references: the triggerer
must be configured with the same one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.context import AssetStateStoreAccessor

from sqs_lease.airflow.airflow_api.requests import CommsError, NoAnswerError, ask

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

PATIENCE_SECONDS: Final = 120.0
"""How long what cannot be done without is asked again while no answer comes.

As with XComs: a triggerer's first answer can take half a minute.
"""


class AssetState:
    """One asset's store, for triggers: each request has a time limit."""

    def __init__(self, asset: str) -> None:
        self.asset = asset
        self._store = AssetStateStoreAccessor(name=asset)

    async def get(self, key: str, *, patience_seconds: float = 0.0) -> Any:
        """Return the value; None if it does not exist. With patience the request is repeated while no answer comes.

        Raises:
            CommsError: There was no usable answer.
        """
        return await self._ask(self._store.get, patience_seconds, key=key)

    async def put(self, key: str, value: Any, *, patience_seconds: float = 0.0) -> None:
        """Set the value; with patience it is set again while no answer comes, which does no harm.

        Raises:
            CommsError: There was no usable answer; the value may be set all the same.
        """
        await self._ask(self._store.set, patience_seconds, key=key, value=value)

    async def delete(self, key: str) -> None:
        """Delete the value, if there is one.

        Raises:
            CommsError: There was no usable answer.
        """
        await self._ask(self._store.delete, 0.0, key=key)

    async def _ask(self, method: Callable[..., _T], patience_seconds: float, **arguments: Any) -> _T:
        ends_at = asyncio.get_running_loop().time() + patience_seconds
        while True:
            try:
                return await ask(f"the state store of asset {self.asset!r}", method, **arguments)
            except NoAnswerError as error:
                if asyncio.get_running_loop().time() >= ends_at:
                    raise
                logger.warning("Asking again: %s", error)


class TaskAssetState:
    """One asset's store, for tasks in their workers: a request blocks until it was answered."""

    def __init__(self, asset: str) -> None:
        self.asset = asset
        self._store = AssetStateStoreAccessor(name=asset)

    def get(self, key: str) -> Any:
        """Return the value; None if it does not exist.

        Raises:
            CommsError: There was no usable answer.
        """
        return self._call(self._store.get, key=key)

    def put(self, key: str, value: Any) -> None:
        """Set the value.

        Raises:
            CommsError: There was no usable answer; the value may be set all the same.
        """
        self._call(self._store.set, key=key, value=value)

    def _call(self, method: Callable[..., _T], **arguments: Any) -> _T:
        try:
            return method(**arguments)
        except AirflowRuntimeError as error:
            raise CommsError(
                f"Airflow refused a request about the state store of asset {self.asset!r}: {error}"
            ) from error
