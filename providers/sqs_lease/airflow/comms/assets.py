"""What event triggers and their runs ask of Airflow's asset state store: internal to Airflow, pinned by tests.

The store keeps JSON values by asset and key, for as long as the asset exists, and has no compare-and-set. Values are
sent and read as they are: a state store back end of the workers' own (``[workers] state_store_backend``) is not used,
as the triggerer would need it as well.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    DeleteAssetStateStoreByName,
    ErrorResponse,
    GetAssetStateStoreByName,
    SetAssetStateStoreByName,
)

from sqs_lease.airflow.comms.supervisor import CommsError, NoAnswerError, ask

logger = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 120.0
"""How long what cannot be done without is asked again while no answer comes.

As with XComs: a triggerer's first answer can take half a minute.
"""


def watched_assets(accessors: Any) -> list[str]:
    """Return the names of the assets that an event trigger is a watcher of, sorted.

    Args:
        accessors: What the triggerer set as the trigger's ``asset_state_store``.

    Raises:
        RuntimeError: The trigger watches nothing.
    """
    names = sorted(accessors._by_name) if accessors is not None else []  # noqa: SLF001 - there is no public name for it
    if not names:
        raise RuntimeError(
            "this trigger was started for no asset: use it in an AssetWatcher of the asset that a DAG is scheduled on"
        )
    return names


class AssetState:
    """One asset's store, for triggers: each request has a time limit."""

    def __init__(self, asset: str) -> None:
        self.asset = asset

    async def get(self, key: str, *, patience_seconds: float = 0.0) -> Any:
        """Return the value; None where there is none. With patience it is asked for again while no answer comes.

        Raises:
            CommsError: There was no usable answer.
        """
        return _value(await self._ask(GetAssetStateStoreByName(name=self.asset, key=key), patience_seconds), key)

    async def put(self, key: str, value: Any, *, patience_seconds: float = 0.0) -> None:
        """Set the value; with patience it is set again while no answer comes, which does no harm.

        Raises:
            CommsError: There was no usable answer; the value may be set all the same.
        """
        request = SetAssetStateStoreByName(name=self.asset, key=key, value=value)
        _check_done(await self._ask(request, patience_seconds), key)

    async def _ask(self, request: Any, patience_seconds: float) -> Any:
        ends_at = asyncio.get_running_loop().time() + patience_seconds
        while True:
            try:
                return await ask(request)
            except NoAnswerError as error:
                if asyncio.get_running_loop().time() >= ends_at:
                    raise
                logger.warning("Asking the state store of asset %r again: %s", self.asset, error)

    async def delete(self, key: str) -> None:
        """Delete the value, if there is one.

        Raises:
            CommsError: There was no usable answer.
        """
        _check_done(await ask(DeleteAssetStateStoreByName(name=self.asset, key=key)), key)


class TaskAssetState:
    """One asset's store, for tasks in their workers: a request blocks until it was answered."""

    def __init__(self, asset: str) -> None:
        self.asset = asset

    def get(self, key: str) -> Any:
        """Return the value; None where there is none.

        Raises:
            CommsError: There was no usable answer.
        """
        return _value(_send(GetAssetStateStoreByName(name=self.asset, key=key)), key)

    def put(self, key: str, value: Any) -> None:
        """Set the value.

        Raises:
            CommsError: There was no usable answer; the value may be set all the same.
        """
        _check_done(_send(SetAssetStateStoreByName(name=self.asset, key=key, value=value)), key)


def _send(request: Any) -> Any:
    try:
        return task_runner.SUPERVISOR_COMMS.send(request)
    except AirflowRuntimeError as error:
        raise CommsError(f"Airflow refused {request.type}: {error}") from error


def _value(answer: Any, key: str) -> Any:
    if isinstance(answer, AssetStateStoreResult):
        return answer.value
    if isinstance(answer, ErrorResponse) and answer.error == ErrorType.ASSET_STORE_NOT_FOUND:
        return None
    raise CommsError(f"Airflow answered a question for {key!r} of the asset state store with {type(answer).__name__}")


def _check_done(answer: Any, key: str) -> None:
    if isinstance(answer, ErrorResponse):
        raise CommsError(f"Airflow refused to store {key!r} in the asset state store: {answer.error}")
