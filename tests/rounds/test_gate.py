"""The gate does to a call what a fault says, and the ledger has what the service did all the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.peers.proxy import Answer, Call
from tests.rounds.gate import FaultyGate
from tests.rounds.ledger import Ledger

MESSAGE = {"MessageId": "m", "ReceiptHandle": "handle"}


def call(operation: str, **request: Any) -> Call:
    head = f"POST / HTTP/1.1\r\nX-Amz-Target: AmazonSQS.{operation}\r\n\r\n"
    return Call(head.encode(), json.dumps(request).encode())


class Server:
    """Answers what it is told, and counts what it was asked."""

    def __init__(self, content: Mapping[str, Any], status: int = 200) -> None:
        self.asked = 0
        self._answer = Answer.of(status, content)

    async def answer(self) -> Answer:
        self.asked += 1
        return self._answer


@pytest.fixture
def gate() -> FaultyGate:
    gate = FaultyGate(worker="worker", ledger=Ledger())
    received = Server({"Messages": [MESSAGE]})
    asyncio.run(gate.pass_on(call("ReceiveMessage", VisibilityTimeout=8), received.answer))
    return gate


def changed(gate: FaultyGate, server: Server) -> Answer | None:
    entry = {"Id": "0", "ReceiptHandle": "handle", "VisibilityTimeout": 8}
    return asyncio.run(gate.pass_on(call("ChangeMessageVisibilityBatch", Entries=[entry]), server.answer))


def deleted(gate: FaultyGate, server: Server) -> Answer | None:
    entries = [{"Id": "0", "ReceiptHandle": "handle"}]
    return asyncio.run(gate.pass_on(call("DeleteMessageBatch", Entries=entries), server.answer))


def test_the_ledger_has_the_reception_and_each_entry_of_a_batch_by_itself(gate: FaultyGate) -> None:
    changed(gate, Server({"Successful": [{"Id": "0"}], "Failed": []}))
    changed(gate, Server({"Successful": [], "Failed": [{"Id": "0", "Code": "InternalError"}]}))
    noted = [(entry.kind, entry.message_id, entry.timeout_seconds, entry.acted) for entry in gate.ledger.entries]
    assert noted == [("receive", "m", 8.0, True), ("change", "m", 8.0, True), ("change", "m", 8.0, False)]


def test_a_lost_answer_is_of_a_call_that_the_service_carried_out(gate: FaultyGate) -> None:
    gate.lost_share = 1.0
    assert deleted(gate, Server({"Successful": [{"Id": "0"}]})) is None
    assert [(entry.kind, entry.acted) for entry in gate.ledger.entries[1:]] == [("delete", True)]


def test_throttled_calls_do_not_reach_the_service(gate: FaultyGate) -> None:
    gate.calls_a_second = 0.001
    server = Server({"Successful": [{"Id": "0"}]})
    first, second = changed(gate, server), changed(gate, server)
    assert first is not None
    assert second is not None
    assert (first.status, second.status, server.asked) == (200, 400, 1)
    assert second.content["__type"].endswith("#RequestThrottled")


def test_an_error_comes_instead_of_the_call_or_after_it(gate: FaultyGate) -> None:
    gate.error_share = 1.0
    server = Server({"Successful": [{"Id": "0"}]})
    answers = [changed(gate, server) for _ in range(50)]
    statuses = [answer.status for answer in answers if answer is not None]
    assert set(statuses) == {500, 503}
    assert statuses.count(500) == server.asked == len(gate.ledger.entries) - 1


def test_a_delete_by_a_superseded_handle_is_answered_with_success_as_on_aws_and_noted_as_what_it_is(
    gate: FaultyGate,
) -> None:
    answer = deleted(gate, Server({"Successful": [], "Failed": [{"Id": "0", "Code": "ReceiptHandleIsInvalid"}]}))
    assert answer is not None
    assert answer.content == {"Successful": [{"Id": "0"}], "Failed": []}
    assert [entry.acted for entry in gate.ledger.entries[1:]] == [False]


def test_a_silent_gate_answers_nothing_and_tears_the_connection_when_it_ends(gate: FaultyGate) -> None:
    server = Server({})

    async def ask() -> Answer | None:
        gate.is_silent = True
        asked = asyncio.create_task(gate.pass_on(call("ReceiveMessage"), server.answer))
        done, _ = await asyncio.wait([asked], timeout=0.1)
        assert not done
        gate.is_silent = False
        return await asked

    assert asyncio.run(ask()) is None
    assert server.asked == 0


def test_a_delete_is_under_way_until_it_is_noted(gate: FaultyGate) -> None:
    seen: list[int] = []

    class Watched(Server):
        async def answer(self) -> Answer:
            seen.append(gate.ledger.deletes_under_way)
            return await super().answer()

    deleted(gate, Watched({"Successful": [{"Id": "0"}], "Failed": []}))
    assert (seen, gate.ledger.deletes_under_way) == ([1], 0)
    assert gate.ledger.entries[-1].kind == "delete"
