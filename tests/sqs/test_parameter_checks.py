"""Calls with parameters that botocore checks; in the other calls, wrong values are told without a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from botocore import validate
from botocore.exceptions import ParamValidationError

from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Receipt
from sqs_lease.sqs import errors
from sqs_lease.sqs.boto3 import Boto3Transport
from sqs_lease.sqs.client import AwsAccess, make_client
from tests.sqs.clients import boto3_client
from tests.sqs.scripted_server import Answer, ScriptedServer

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sqs:us-east-1:123456789012:orders"
RECEIPTS = [Receipt("id-0", "handle-0")]


def made(scripted: ScriptedServer) -> Any:
    return make_client(AwsAccess(region_name="us-east-1", endpoint_url=scripted.endpoint_url))


def boto3_made(scripted: ScriptedServer) -> Any:
    return boto3_client(scripted.endpoint_url)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The input shapes of the calls that were checked."""
    shapes: list[str] = []
    check = validate.validate_parameters

    def note(parameters: Any, shape: Any) -> None:
        shapes.append(shape.name)
        check(parameters, shape)

    monkeypatch.setattr(validate, "validate_parameters", note)
    return shapes


@pytest.mark.parametrize(
    "wrong",
    [
        {"QueueUrl": QUEUE, "MaxNumberOfMessages": "ten"},
        {"QueueUrl": QUEUE, "MaxMessages": 10},
        {"MaxNumberOfMessages": 10},
    ],
    ids=["another type", "an unknown name", "a missing one"],
)
def test_a_client_that_no_transport_uses_checks_its_calls_like_any_other(
    scripted: ScriptedServer, wrong: dict[str, Any]
) -> None:
    for client in (made(scripted), boto3_made(scripted)):
        with pytest.raises(ParamValidationError):
            client.receive_message(**wrong)
    assert not scripted.requests


def test_the_calls_that_a_transport_makes_all_the_time_are_not_checked_again_and_all_others_are(
    scripted: ScriptedServer, checked: list[str]
) -> None:
    scripted.script("ReceiveMessage", Answer({}))
    scripted.script("ChangeMessageVisibilityBatch", Answer({"Successful": [{"Id": "0"}]}))
    scripted.script("DeleteMessageBatch", Answer({"Successful": [{"Id": "0"}]}))
    scripted.script("GetQueueUrl", Answer({"QueueUrl": QUEUE}))

    async def scenario() -> None:
        async with Boto3Transport(made(scripted)) as transport:
            assert not await transport.receive(QUEUE, max_messages=1, wait_seconds=0, visibility_seconds=30)
            (extended,) = await transport.change_visibility(QUEUE, [VisibilityChange(RECEIPTS[0], 60)])
            (deleted,) = await transport.delete(QUEUE, RECEIPTS)
            assert {extended.verdict, deleted.verdict} == {Verdict.DONE}
            assert checked == []
            assert await transport.queue_url("orders") == QUEUE
            assert checked == ["GetQueueUrlRequest"]

    asyncio.run(scenario())


@pytest.mark.parametrize("make", [made, boto3_made], ids=["a client made here", "a client of boto3"])
def test_wrong_values_are_told_before_anything_is_sent(
    scripted: ScriptedServer, make: Callable[[ScriptedServer], Any]
) -> None:
    values: Any = {"max_messages": 1, "wait_seconds": 0, "visibility_seconds": 30}

    async def scenario() -> None:
        async with Boto3Transport(make(scripted)) as transport:
            wrong: list[Callable[[], Awaitable[object]]] = [
                lambda: transport.receive(QUEUE, **values | {"max_messages": "1"}),
                lambda: transport.receive(QUEUE, **values | {"wait_seconds": 0.5}),
                lambda: transport.receive(QUEUE, **values | {"visibility_seconds": True}),
                lambda: transport.receive(f"{QUEUE}.fifo", **values, attempt_id=b"id"),  # type: ignore[arg-type]
                lambda: transport.receive(7, **values),  # type: ignore[arg-type]
                lambda: transport.change_visibility(QUEUE, [VisibilityChange(RECEIPTS[0], 43_201)]),
                lambda: transport.delete(QUEUE, RECEIPTS * 11),
            ]
            for call in wrong:
                with pytest.raises(ValueError, match=r"must be|is not|at most"):
                    await call()
            attributes: Any = {"reason": {"DataType": "String", "StringValue": 7}}
            with pytest.raises(errors.InvalidRequestError):
                await transport.send(QUEUE, "text", message_attributes=attributes)
            with pytest.raises(errors.InvalidRequestError):
                await transport.start_move_task(ARN, max_per_second="many")  # type: ignore[arg-type]

    asyncio.run(scenario())
    assert not scripted.requests
