"""A stand-in for Airflow's supervisor that also has the asset state store."""

from __future__ import annotations

import asyncio
from typing import Any

import greenback
from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    DeleteAssetStateStoreByName,
    ErrorResponse,
    GetAssetStateStoreByName,
    OKResponse,
    SetAssetStateStoreByName,
)

from tests.airflow.scripted_comms import ScriptedComms


class ScriptedAssets(ScriptedComms):
    """Answers like the supervisor of a triggerer, and by :meth:`send` like that of a worker.

    Attributes:
        store: The asset state store, by asset and key.
    """

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[tuple[str, str], Any] = {}

    async def asend(self, request: Any) -> Any:
        answer = self._answer(request)
        if answer is None or self.silent or self.refusing:
            return await super().asend(request)
        self.asked.append(request)
        if self.on_request is not None:
            self.on_request(request)
        await asyncio.sleep(0.02)
        return answer

    def send(self, request: Any) -> Any:
        """Answer at once, as to a task in its worker; or, within a portal, as in the triggerer."""
        if greenback.has_portal():
            return super().send(request)
        answer = self._answer(request)
        assert answer is not None, request
        return answer

    def _answer(self, request: Any) -> Any:
        match request:
            case GetAssetStateStoreByName(name=name, key=key):
                if (name, key) not in self.store:
                    return ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND, detail={"key": key})
                return AssetStateStoreResult(value=self.store[name, key])
            case SetAssetStateStoreByName(name=name, key=key, value=value):
                if not self.silent and not self.refusing:
                    self.store[name, key] = value
                return OKResponse(ok=True)
            case DeleteAssetStateStoreByName(name=name, key=key):
                if not self.silent and not self.refusing:
                    self.store.pop((name, key), None)
                return OKResponse(ok=True)
        return None
