"""A worker's way to the SQS server, which a round makes slow, narrow, unreliable, or closes; it keeps the ledger.

It answers as AWS does where the server behind it does not: on AWS, a delete by the handle of a lease that another
worker has now is answered with success and deletes nothing. So a worker that does not notice by itself that its lease
ended learns nothing from the service either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import monotonic
from typing import Any, Final

from benchmarks.peers.proxy import Answer, Call, Gate
from tests.rounds.ledger import DELETES, Ledger

LOOK_SECONDS: Final = 0.05


@dataclass(slots=True, kw_only=True)
class FaultyGate(Gate):
    """The gate of one worker. The fields are set by faults, from another thread.

    Attributes:
        worker: The worker behind the gate.
        ledger: Where calls are written down.
        random: Chooses the calls that a fault hits.
        is_silent: Calls get no answer, and connections stay open.
        latency_seconds: How long a call takes more, at most.
        lost_share: Of so many calls of one, the connection is torn when they were carried out.
        error_share: So many calls of one are answered with 500 when they were carried out, or 503 when they were not.
        calls_a_second: How many calls go through; more are throttled. None: all of them.
        stale_deletes_succeed: Whether a delete by a handle that has no power any more is answered with success.
    """

    worker: str
    ledger: Ledger
    random: Random = field(default_factory=Random)
    is_silent: bool = False
    latency_seconds: float = 0.0
    lost_share: float = 0.0
    error_share: float = 0.0
    calls_a_second: float | None = None
    stale_deletes_succeed: bool = True
    _next_at: float = 0.0

    async def pass_on(self, call: Call, forward: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Have the server answer a call, unless a fault stands in between."""
        asked_at = monotonic()
        if self.is_silent:
            # The field is set by another thread.
            while self.is_silent:  # noqa: ASYNC110
                await asyncio.sleep(LOOK_SECONDS)
            return None
        if self.latency_seconds:
            await asyncio.sleep(self.latency_seconds * self.random.uniform(0.3, 1.0))
        if self._is_too_much():
            return error_answer(400, "RequestThrottled", "Request is throttled.")
        fails = self.random.random() < self.error_share
        if fails and self.random.random() < 0.5:
            return error_answer(503, "ServiceUnavailable", "The service cannot take this request.")
        deletes = call.operation in DELETES
        self.ledger.deletes_under_way += deletes
        try:
            answer = await forward()
            self.calls[call.operation] += 1
            content = answer.content if answer.status < 400 else _all_failed(call.request)
            self.ledger.note(self.worker, call.operation, call.request, content, (asked_at, monotonic()))
        finally:
            self.ledger.deletes_under_way -= deletes
        if fails:
            return error_answer(500, "InternalError", "The service failed.")
        if self.random.random() < self.lost_share:
            return None
        return as_on_aws(call, answer) if self.stale_deletes_succeed else answer

    def _is_too_much(self) -> bool:
        if self.calls_a_second is None:
            return False
        now = monotonic()
        if now < self._next_at:
            return True
        self._next_at = now + 1 / self.calls_a_second
        return False


def error_answer(status: int, code: str, text: str) -> Answer:
    """An error of SQS in its JSON protocol."""
    fault = "Sender" if status < 500 else "Receiver"
    return Answer.of(
        status, {"__type": f"com.amazonaws.sqs#{code}", "message": text}, {"x-amzn-query-error": f"{code};{fault}"}
    )


def as_on_aws(call: Call, answer: Answer) -> Answer:
    """Turn the server's refusal of a delete by a superseded handle into the answer of a standard queue on AWS."""
    if call.operation not in DELETES:
        return answer
    if answer.status >= 400:
        return Answer.of(200, {}) if "ReceiptHandleIsInvalid" in str(answer.content.get("__type")) else answer
    failed = answer.content.get("Failed") or []
    stale = [{"Id": entry["Id"]} for entry in failed if entry["Code"] == "ReceiptHandleIsInvalid"]
    if not stale:
        return answer
    rest = [entry for entry in failed if entry["Code"] != "ReceiptHandleIsInvalid"]
    return Answer.of(200, {"Successful": [*(answer.content.get("Successful") or []), *stale], "Failed": rest})


def _all_failed(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer of a call that was refused as a whole, as if each of its entries had been."""
    return {"Failed": [{"Id": entry.get("Id")} for entry in request.get("Entries", [request])]}
