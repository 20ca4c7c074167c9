"""Move tasks over both AWS clients, to a server that answers like SQS."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from sqs_lease.sqs.client_transport import ClientTransport
from sqs_lease.sqs.errors import AccessDeniedError, InvalidRequestError, QueueNotFoundError
from sqs_lease.sqs.move_tasks import COMPLETED, RUNNING, MoveTask
from tests.sqs.clients import MakeTransport
from tests.sqs.scripted_server import Answer, Fault, ScriptedServer, refused

_T = TypeVar("_T")

DEAD = "arn:aws:sqs:us-east-1:123456789012:dead"
ORDERS = "arn:aws:sqs:us-east-1:123456789012:orders"
HANDLE = "handle" * 30


def call(
    make_transport: MakeTransport, scripted: ScriptedServer, action: Callable[[ClientTransport], Awaitable[_T]]
) -> _T:
    async def main() -> _T:
        async with make_transport(scripted.endpoint_url) as transport:
            return await action(transport)

    return asyncio.run(main())


def test_a_task_is_started_with_what_was_given_alone(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    scripted.script("StartMessageMoveTask", Answer({"TaskHandle": HANDLE}))
    assert call(make_transport, scripted, lambda transport: transport.start_move_task(DEAD)) == HANDLE
    assert scripted.sent("StartMessageMoveTask") == {"SourceArn": DEAD}
    call(
        make_transport,
        scripted,
        lambda transport: transport.start_move_task(DEAD, destination_arn=ORDERS, max_per_second=5),
    )
    assert scripted.sent("StartMessageMoveTask") == {
        "SourceArn": DEAD,
        "DestinationArn": ORDERS,
        "MaxNumberOfMessagesPerSecond": 5,
    }


def test_tasks_are_listed_with_their_progress(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    running = {
        "Status": "RUNNING",
        "TaskHandle": HANDLE,
        "SourceArn": DEAD,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 10,
        "StartedTimestamp": 1_700_000_000_500,
    }
    failed = {"Status": "FAILED", "FailureReason": "AWS.SimpleQueueService.NonExistentQueue", "SourceArn": DEAD}
    # A lost answer is asked for again, because listing changes nothing.
    scripted.script("ListMessageMoveTasks", Fault.CUT, Answer({"Results": [running, failed]}))
    tasks = call(make_transport, scripted, lambda transport: transport.move_tasks(DEAD))
    assert list(tasks) == [
        MoveTask(RUNNING, 3, 10, "", HANDLE, 1_700_000_000.5),
        MoveTask("FAILED", 0, None, "AWS.SimpleQueueService.NonExistentQueue"),
    ]
    assert [task.is_active for task in tasks] == [True, False]
    assert not MoveTask(COMPLETED, 1).is_active
    assert scripted.sent("ListMessageMoveTasks") == {"SourceArn": DEAD, "MaxResults": 10}


def test_a_queue_without_tasks_lists_no_task(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    scripted.script("ListMessageMoveTasks", Answer({}))
    assert list(call(make_transport, scripted, lambda transport: transport.move_tasks(DEAD))) == []


def test_a_task_is_cancelled_by_its_handle_which_no_error_quotes(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    answers = [
        Answer({"ApproximateNumberOfMessagesMoved": 1}),
        refused("InvalidParameterValue", f"{HANDLE} is invalid"),
    ]
    scripted.script("CancelMessageMoveTask", *answers)
    call(make_transport, scripted, lambda transport: transport.cancel_move_task(DEAD, HANDLE))
    assert scripted.sent("CancelMessageMoveTask") == {"TaskHandle": HANDLE}
    with pytest.raises(InvalidRequestError) as raised:
        call(make_transport, scripted, lambda transport: transport.cancel_move_task(DEAD, HANDLE))
    assert HANDLE not in str(raised.value)
    assert DEAD in str(raised.value)


def test_the_source_queues_are_listed(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    url = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
    scripted.script("ListDeadLetterSourceQueues", Answer({"queueUrls": [url]}))
    dead_url = "https://sqs.us-east-1.amazonaws.com/123456789012/dead"
    assert list(call(make_transport, scripted, lambda transport: transport.dead_letter_sources(dead_url))) == [url]


def test_refusals_say_what_to_allow(make_transport: MakeTransport, scripted: ScriptedServer) -> None:
    scripted.script("StartMessageMoveTask", refused("AccessDenied", "no"))
    with pytest.raises(AccessDeniedError, match="Allow sqs:StartMessageMoveTask"):
        call(make_transport, scripted, lambda transport: transport.start_move_task(DEAD))
    scripted.script(
        "ListMessageMoveTasks", refused("ResourceNotFoundException", "The resource doesn't exist", status=404)
    )
    with pytest.raises(QueueNotFoundError):
        call(make_transport, scripted, lambda transport: transport.move_tasks(DEAD))


@pytest.mark.parametrize("arn", ["arn:aws:sqs:elasticmq:000000000000:dead", "yrn:yc:ymq:ru-central1:b1g:dead"])
def test_a_server_may_name_its_queues_in_another_way(
    make_transport: MakeTransport, scripted: ScriptedServer, arn: str
) -> None:
    scripted.script("StartMessageMoveTask", Answer({"TaskHandle": "handle"}))
    scripted.script("ListMessageMoveTasks", Answer({"Results": []}))
    scripted.script("CancelMessageMoveTask", Answer({}))

    async def move(transport: ClientTransport) -> None:
        handle = await transport.start_move_task(arn)
        assert await transport.move_tasks(arn) == []
        await transport.cancel_move_task(arn, handle)

    call(make_transport, scripted, move)
