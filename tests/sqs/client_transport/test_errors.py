"""Answers of the service and the network, for both clients: a scripted server gives those that emulators do not."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from botocore.config import Config

from sqs_lease.core.calls import Verdict, VisibilityChange
from sqs_lease.core.messages import Receipt
from sqs_lease.keeper.receiver import Collected, Receiver
from sqs_lease.sqs import client_transport, errors
from sqs_lease.sqs.client_transport import ClientTransport
from tests.sqs.benches import HELD_SECONDS
from tests.sqs.clients import MakeTransport
from tests.sqs.conftest import PATIENCE_SECONDS
from tests.sqs.scripted_server import Answer, Fault, ScriptedServer, refused

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
HANDLE = "AQEB" + "x7/Kq+" * 40 + "=="
RECEIPTS = [Receipt(f"id-{number}", f"handle-{number}") for number in range(10)]
CHANGES = [VisibilityChange(receipt, 60) for receipt in RECEIPTS]
MESSAGE = {"MessageId": "id-1", "ReceiptHandle": "handle-1", "Body": "text"}


async def receive_one(transport: ClientTransport, wait_seconds: int = 0) -> list[str]:
    messages = await transport.receive(QUEUE, max_messages=1, wait_seconds=wait_seconds, visibility_seconds=30)
    return [message.message_id for message in messages]


@pytest.mark.parametrize("call", ["change_visibility", "delete"])
def test_each_entry_of_a_batch_has_its_own_answer_in_the_order_given(
    make_transport: MakeTransport, scripted: ScriptedServer, call: str
) -> None:
    operation = {"change_visibility": "ChangeMessageVisibilityBatch", "delete": "DeleteMessageBatch"}[call]
    scripted.script(
        operation,
        Answer(
            {
                "Successful": [{"Id": "9"}, {"Id": "0"}, {"Id": "1"}, {"Id": "3"}],
                "Failed": [
                    {"Id": "3", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": "no"},
                    {
                        "Id": "2",
                        "SenderFault": True,
                        "Code": "InvalidParameterValue",
                        "Message": "Total VisibilityTimeout for the message is beyond the limit [43200 seconds]",
                    },
                    {"Id": "4", "SenderFault": False, "Code": "InternalError", "Message": "again"},
                    {"Id": "5", "SenderFault": True, "Code": "RequestThrottled"},
                    {"Id": "6", "SenderFault": True, "Code": "AccessDenied", "Message": "no"},
                    {"Id": "7", "SenderFault": False, "Code": "ServiceUnavailable"},
                ],
            }
        ),
    )

    async def scenario() -> list[Verdict]:
        async with make_transport(scripted.endpoint_url) as transport:
            if call == "delete":
                answers = await transport.delete(QUEUE, RECEIPTS)
            else:
                answers = await transport.change_visibility(QUEUE, CHANGES)
        assert [answer.receipt for answer in answers] == RECEIPTS
        return [answer.verdict for answer in answers]

    assert asyncio.run(scenario()) == [
        Verdict.DONE,
        Verdict.DONE,
        Verdict.CAPPED,
        Verdict.LOST,  # mentioned as failed and as successful
        Verdict.TRANSIENT,
        Verdict.THROTTLED,
        Verdict.REFUSED,
        Verdict.UNAVAILABLE,
        Verdict.TRANSIENT,  # mentioned neither as successful nor as failed
        Verdict.DONE,
    ]
    ids = [entry["Id"] for entry in scripted.sent(operation)["Entries"]]
    assert len(set(ids)) == 10
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", entry_id) for entry_id in ids)


@pytest.mark.parametrize(
    ("answer", "verdict", "code"),
    [
        (refused("RequestThrottled", "slower", status=403), Verdict.THROTTLED, "RequestThrottled"),
        (refused("ThrottlingException", "slower"), Verdict.THROTTLED, "Throttling"),
        (Answer("Too many", 429), Verdict.THROTTLED, "429"),
        (refused("InternalFailure", "sorry", status=500), Verdict.TRANSIENT, "InternalFailure"),
        (Answer("<html>Bad gateway</html>", 502), Verdict.TRANSIENT, "502"),
        (refused("ServiceUnavailable", "sorry", status=503), Verdict.UNAVAILABLE, "ServiceUnavailable"),
        (Answer("<html>Service Unavailable</html>", 503), Verdict.UNAVAILABLE, "503"),
        (refused("ExpiredTokenException", "old", status=403), Verdict.UNAVAILABLE, "ExpiredToken"),
        (Fault.CUT, Verdict.TRANSIENT, "ConnectionClosedError"),
        (
            refused("QueueDoesNotExist", "gone", query_code="AWS.SimpleQueueService.NonExistentQueue"),
            Verdict.REFUSED,
            "NonExistentQueue",
        ),
        (refused("AccessDeniedException", "no", query_code="AccessDenied"), Verdict.REFUSED, "AccessDenied"),
        (
            refused("ReceiptHandleIsInvalid", "one of them is wrong", status=404),
            Verdict.REFUSED,
            "ReceiptHandleIsInvalid",
        ),
    ],
    ids=lambda value: getattr(value, "value", str(value))[:40],
)
def test_a_batch_call_that_fails_as_a_whole_is_the_same_verdict_for_each_entry_after_one_attempt(
    make_transport: MakeTransport, scripted: ScriptedServer, answer: Answer | Fault, verdict: Verdict, code: str
) -> None:
    scripted.script("ChangeMessageVisibilityBatch", answer)

    async def scenario() -> set[tuple[Verdict, str]]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = await transport.change_visibility(QUEUE, CHANGES)
        assert [entry.receipt for entry in answers] == RECEIPTS
        assert all(QUEUE in entry.text for entry in answers)
        return {(entry.verdict, entry.code) for entry in answers}

    assert asyncio.run(scenario()) == {(verdict, code)}
    assert scripted.count("ChangeMessageVisibilityBatch") == 1


def test_a_lost_lease_that_is_a_call_of_its_own_is_lost(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("DeleteMessageBatch", refused("ReceiptHandleIsInvalid", "it is wrong", status=404))

    async def scenario() -> list[Verdict]:
        async with make_transport(scripted.endpoint_url) as transport:
            return [answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS[:1])]

    assert asyncio.run(scenario()) == [Verdict.LOST]


def test_an_empty_handle_is_refused_without_harm_to_the_other_entries(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    scripted.script("DeleteMessageBatch", Answer({"Successful": [{"Id": "0"}, {"Id": "1"}]}))

    async def scenario() -> list[tuple[str, Verdict]]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = await transport.delete(QUEUE, [RECEIPTS[0], Receipt("id-x", ""), RECEIPTS[1]])
            assert await transport.delete(QUEUE, []) == []
        return [(answer.receipt.message_id, answer.verdict) for answer in answers]

    assert asyncio.run(scenario()) == [("id-0", Verdict.DONE), ("id-x", Verdict.REFUSED), ("id-1", Verdict.DONE)]
    assert scripted.count("DeleteMessageBatch") == 1


def test_no_receipt_handle_and_no_body_gets_into_an_error_text(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    quoting = f"Value {HANDLE} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
    failed = [{"Id": "0", "SenderFault": True, "Code": "InvalidParameterValue", "Message": quoting}]
    scripted.script("DeleteMessageBatch", Answer({"Failed": failed}), refused("InvalidParameterValue", quoting))
    scripted.script("SendMessage", refused("InvalidMessageContents", "bad: a secret body"))

    async def scenario() -> tuple[list[str], str]:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = [*await transport.delete(QUEUE, [Receipt("id", HANDLE)])]
            answers += await transport.delete(QUEUE, [Receipt("id", HANDLE)])
            assert [answer.verdict for answer in answers] == [Verdict.LOST, Verdict.LOST]
            with pytest.raises(errors.InvalidRequestError) as raised:
                await transport.send(QUEUE, "a secret body")
        # A chained error would be printed with all it quotes.
        assert raised.value.__suppress_context__
        assert raised.value.__cause__ is None
        return [answer.text for answer in answers], str(raised.value)

    texts, sending = asyncio.run(scenario())
    assert not any(HANDLE[10:40] in text for text in texts)
    assert all("receipt handle has expired" in text for text in texts)
    assert "secret" not in sending


@pytest.mark.parametrize(
    ("answer", "error", "remedy"),
    [
        (
            refused("QueueDoesNotExist", "gone", query_code="AWS.SimpleQueueService.NonExistentQueue"),
            errors.QueueNotFoundError,
            "Check its name, account and region",
        ),
        (refused("AccessDeniedException", "no"), errors.AccessDeniedError, "Allow sqs:ReceiveMessage"),
        (
            refused("KmsAccessDenied", "no", query_code="KMS.AccessDeniedException"),
            errors.AccessDeniedError,
            "kms:Decrypt",
        ),
        (refused("InvalidAddress", "not here"), errors.WrongRegionError, "region"),
        (refused("OverLimit", "too many", status=403), errors.OverLimitError, "Settle messages"),
        (refused("ExpiredTokenException", "old", status=403), errors.CredentialsUnavailableError, "Renew"),
        (refused("ServiceUnavailable", "sorry", status=503), errors.UnavailableError, "Try again"),
        (Answer("<html>Service Unavailable</html>", 503), errors.UnavailableError, "Try again"),
        (Answer("<html>Bad Gateway</html>", 502), errors.TransientError, "Try again"),
        (Answer("<html>Log in first</html>"), errors.ForeignAnswerError, "endpoint URL, its proxy"),
        (refused("RequestThrottled", "slower", status=403), errors.ThrottledError, "Call less often"),
        (Fault.CUT, errors.TransientError, "Try again"),
        (Fault.RESET, errors.TransientError, "Try again"),
        (Fault.CUT_IN_BODY, errors.TransientError, "Try again"),
        (Answer("<html>Not found</html>", 404), errors.ForeignAnswerError, "endpoint URL"),
    ],
    ids=lambda value: getattr(value, "__name__", "")[:40],
)
def test_a_receive_that_fails_says_what_happened_to_which_queue_and_what_to_do(
    make_transport: MakeTransport,
    scripted: ScriptedServer,
    answer: Answer | Fault,
    error: type[errors.SqsError],
    remedy: str,
) -> None:
    scripted.script("ReceiveMessage", answer)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            with pytest.raises(error, match=re.escape(remedy)) as raised:
                await receive_one(transport)
        assert type(raised.value) is error
        assert QUEUE in str(raised.value)
        assert raised.value.queue == QUEUE

    asyncio.run(scenario())
    assert scripted.count("ReceiveMessage") == 1


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port of the loopback address that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


@pytest.fixture
def unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names under ``.invalid`` do not resolve, at once and without a network."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *args: Any, **more: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.mark.parametrize(
    ("body", "status", "verdict"),
    [
        pytest.param("Dienst nicht verfügbar".encode("latin-1"), 503, Verdict.UNAVAILABLE, id="not UTF-8"),
        pytest.param('"Service Unavailable"', 503, Verdict.UNAVAILABLE, id="JSON, but a text"),
        pytest.param('["bad gateway"]', 502, Verdict.TRANSIENT, id="JSON, but a list"),
        pytest.param('{"__type": 7, "message": "x"}', 429, Verdict.THROTTLED, id="a code that is a number"),
        pytest.param("[" * 100_000, 502, Verdict.TRANSIENT, id="nested without end"),
        pytest.param("<p>" + "sorry " * 10_000, 502, Verdict.TRANSIENT, id="a long page"),
        pytest.param('{"Messages": "none", "Successful": "all"}', 200, Verdict.TRANSIENT, id="a text for a list"),
        pytest.param('{"Messages": ["m"], "Successful": ["0"]}', 200, Verdict.TRANSIENT, id="a text for an object"),
        pytest.param('{"Messages": [{}], "Successful": [{"Id": []}]}', 200, Verdict.TRANSIENT, id="an id that is none"),
        pytest.param(b'{"Messages": [{"Body": "\xff"}]}', 200, Verdict.TRANSIENT, id="an answer that is not UTF-8"),
    ],
)
def test_an_answer_that_no_client_can_read_fails_the_call_and_nothing_else(
    make_transport: MakeTransport, scripted: ScriptedServer, body: str | bytes, status: int, verdict: Verdict
) -> None:
    for operation in ("ReceiveMessage", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"):
        scripted.script(operation, Answer(body, status))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            answers = [
                *await transport.change_visibility(QUEUE, CHANGES),
                *await transport.delete(QUEUE, RECEIPTS),
            ]
            assert [answer.verdict for answer in answers] == [verdict] * 20
            assert all(len(answer.text) < 2_000 for answer in answers)
            with pytest.raises(errors.SqsError, match="ReceiveMessage on queue https") as raised:
                await receive_one(transport)
            assert raised.value.verdict is verdict

    asyncio.run(scenario())


def test_a_failed_entry_that_quotes_the_handle_of_another_does_not_tell_it(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    text = f"{RECEIPTS[1].handle} and {RECEIPTS[0].handle} are not valid"
    failed = {"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": text}
    scripted.script("DeleteMessageBatch", Answer({"Failed": [failed]}))

    async def scenario() -> str:
        async with make_transport(scripted.endpoint_url) as transport:
            return (await transport.delete(QUEUE, RECEIPTS[:2]))[0].text

    assert asyncio.run(scenario()) == "… and … are not valid"


@pytest.mark.parametrize(
    ("endpoint_url", "proxy_url"),
    [
        ("http://127.0.0.1:{port}", None),
        ("https://127.0.0.1:{port}", None),
        ("http://localhost:{port}", None),
        ("http://sqs.invalid", None),
        ("https://sqs.invalid", None),
        ("http://sqs.example.com", "http://127.0.0.1:{port}"),
        ("https://sqs.example.com", "http://127.0.0.1:{port}"),
        ("https://sqs.example.com", "http://proxy.invalid:3128"),
    ],
)
@pytest.mark.usefixtures("unknown_names")
def test_a_call_that_finds_no_connection_was_not_carried_out(
    make_transport: MakeTransport, unused_port: int, endpoint_url: str, proxy_url: str | None
) -> None:
    proxies = {}
    if proxy_url is not None:
        proxies[endpoint_url.partition(":")[0]] = proxy_url.format(port=unused_port)

    async def scenario() -> set[Verdict]:
        async with make_transport(endpoint_url.format(port=unused_port), Config(proxies=proxies)) as transport:
            with pytest.raises(errors.EndpointUnreachableError, match="endpoint URL"):
                await receive_one(transport)
            return {answer.verdict for answer in await transport.change_visibility(QUEUE, CHANGES)}

    assert asyncio.run(scenario()) == {Verdict.UNAVAILABLE}


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET, Fault.CUT_IN_HEADERS, Fault.CUT_IN_BODY])
@pytest.mark.parametrize("by", ["endpoint", "proxy"])
@pytest.mark.parametrize("connection", ["new", "used"])
def test_a_call_on_a_torn_connection_may_have_been_carried_out(
    make_transport: MakeTransport, scripted: ScriptedServer, fault: Fault, by: str, connection: str
) -> None:
    done = Answer({"Successful": [{"Id": "0"}]})
    scripted.script("ChangeMessageVisibilityBatch", *([done] if connection == "used" else []), fault)
    endpoint_url, proxies = scripted.endpoint_url, {}
    if by == "proxy":
        endpoint_url, proxies = "http://sqs.example.com", {"http": scripted.endpoint_url}

    async def scenario() -> list[Verdict]:
        async with make_transport(endpoint_url, Config(proxies=proxies)) as transport:
            if connection == "used":
                await transport.change_visibility(QUEUE, CHANGES[:1])
            return [answer.verdict for answer in await transport.change_visibility(QUEUE, CHANGES[:1])]

    assert asyncio.run(scenario()) == [Verdict.TRANSIENT]


def test_a_read_is_repeated_when_it_failed_on_the_way_and_not_when_it_was_refused(
    make_transport: MakeTransport, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    unavailable = refused("ServiceUnavailable", "sorry", status=503)
    scripted.script("GetQueueUrl", unavailable, Fault.CUT, Answer({"QueueUrl": QUEUE}))
    scripted.script("GetQueueAttributes", refused("AccessDenied", "no", status=403))
    scripted.script("SendMessage", unavailable)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            assert await transport.queue_url("orders") == QUEUE
            with pytest.raises(errors.AccessDeniedError):
                await transport.queue_attributes(QUEUE)
            with pytest.raises(errors.UnavailableError):
                await transport.send(QUEUE, "text")

    asyncio.run(scenario())
    assert scripted.count("GetQueueUrl") == 3
    assert scripted.count("GetQueueAttributes") == 1
    assert scripted.count("SendMessage") == 1


def test_a_read_that_keeps_failing_is_raised(
    make_transport: MakeTransport, scripted: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    scripted.script("GetQueueUrl", refused("RequestThrottled", "slower", status=403))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            with pytest.raises(errors.ThrottledError, match="orders"):
                await transport.queue_url("orders")

    asyncio.run(scenario())
    assert scripted.count("GetQueueUrl") == client_transport.READ_ATTEMPTS


PAGE = "<html><title>Blocked</title>Ask your administrator</html>"


@pytest.mark.parametrize(
    ("page", "verdict"),
    [
        pytest.param(Answer(PAGE), Verdict.TRANSIENT, id="a page of a portal under 200"),
        pytest.param(Answer(PAGE, 401), Verdict.TRANSIENT, id="401"),
        pytest.param(Answer(PAGE, 403), Verdict.TRANSIENT, id="403"),
        pytest.param(Answer(PAGE, 404), Verdict.TRANSIENT, id="404"),
        pytest.param(Answer(PAGE, 405), Verdict.TRANSIENT, id="405"),
        pytest.param(Answer("", 403), Verdict.TRANSIENT, id="403 without a body"),
        pytest.param(Answer({"message": "Forbidden"}, 403), Verdict.TRANSIENT, id="403, JSON without a code"),
        pytest.param(Answer({"__type": "", "message": "Forbidden"}, 403), Verdict.TRANSIENT, id="403, an empty code"),
        pytest.param(Answer(PAGE, 407), Verdict.UNAVAILABLE, id="a proxy that asks for a password"),
        pytest.param(Answer(PAGE, 511), Verdict.UNAVAILABLE, id="a network that asks for a login"),
    ],
)
def test_an_http_page_that_is_not_of_sqs_is_a_passing_error_of_every_call(
    make_transport: MakeTransport,
    scripted: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    page: Answer,
    verdict: Verdict,
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    for operation in ("ReceiveMessage", "ChangeMessageVisibilityBatch", "DeleteMessageBatch", "SendMessage"):
        scripted.script(operation, page)
    scripted.script("GetQueueUrl", page, Answer({"QueueUrl": QUEUE}))
    scripted.script("GetQueueAttributes", page)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            settled = [*await transport.change_visibility(QUEUE, CHANGES), *await transport.delete(QUEUE, RECEIPTS)]
            assert {answer.verdict for answer in settled} == {verdict}
            assert await transport.queue_url("orders") == QUEUE
            calls: list[Coroutine[Any, Any, object]] = [
                receive_one(transport),
                transport.queue_attributes(QUEUE),
                transport.send(QUEUE, "a secret"),
            ]
            for call in calls:
                with pytest.raises(errors.SqsError) as raised:
                    await call
                assert raised.value.verdict is verdict
                told = ("not from SQS", f"HTTP status {page.status}", "check the client's endpoint URL, its proxy")
                for said in told:
                    assert said in str(raised.value)
                assert "secret" not in str(raised.value)

    asyncio.run(scenario())
    assert scripted.count("GetQueueAttributes") == client_transport.READ_ATTEMPTS
    assert scripted.count("SendMessage") == 1


@pytest.mark.parametrize("status", [301, 302, 307])
def test_a_redirect_is_a_passing_error_and_its_query_is_not_told(
    make_transport: MakeTransport, scripted: ScriptedServer, unused_port: int, status: int
) -> None:
    redirect = Answer("", status, {"Location": f"http://127.0.0.1:{unused_port}/login?token=secret"})
    scripted.script("ReceiveMessage", redirect, Answer({"Messages": [MESSAGE]}))
    scripted.script("DeleteMessageBatch", redirect)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            # boto3 reports the redirect. aiobotocore follows it, and finds no connection there.
            with pytest.raises((errors.ForeignAnswerError, errors.EndpointUnreachableError)) as raised:
                await receive_one(transport)
            assert "secret" not in str(raised.value)
            if isinstance(raised.value, errors.ForeignAnswerError):
                assert f"HTTP status {status}" in str(raised.value)
                assert f"redirects to http://127.0.0.1:{unused_port}/login" in str(raised.value)
            assert await receive_one(transport) == ["id-1"]
            settled = await transport.delete(QUEUE, RECEIPTS)
            assert {answer.verdict for answer in settled} <= {Verdict.TRANSIENT, Verdict.UNAVAILABLE}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("denied", "error"),
    [
        pytest.param(refused("AccessDeniedException", "no", status=403), errors.AccessDeniedError, id="JSON"),
        pytest.param(
            Answer(
                "<?xml version='1.0'?><ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code>"
                "<Message>no</Message></Error></ErrorResponse>",
                403,
            ),
            errors.AccessDeniedError,
            id="XML",
        ),
        pytest.param(
            Answer({"message": "gone"}, 400, {"x-amzn-query-error": "AWS.SimpleQueueService.NonExistentQueue;Sender"}),
            errors.QueueNotFoundError,
            id="a code in a header",
        ),
    ],
)
def test_a_refusal_of_sqs_itself_stays_one(
    make_transport: MakeTransport, scripted: ScriptedServer, denied: Answer, error: type[errors.SqsError]
) -> None:
    for operation in ("ReceiveMessage", "DeleteMessageBatch", "GetQueueUrl"):
        scripted.script(operation, denied)

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            assert {answer.verdict for answer in await transport.delete(QUEUE, RECEIPTS)} == {Verdict.REFUSED}
            with pytest.raises(error):
                await receive_one(transport)
            with pytest.raises(error):
                await transport.queue_url("orders")

    asyncio.run(scenario())
    assert scripted.count("GetQueueUrl") == 1


def test_one_bad_page_within_a_collection_costs_no_message_and_ends_nothing(
    make_transport: MakeTransport, scripted: ScriptedServer
) -> None:
    def message(number: int) -> dict[str, str]:
        return MESSAGE | {"MessageId": f"id-{number}", "ReceiptHandle": f"handle-{number}"}

    scripted.script(
        "ReceiveMessage",
        Answer(PAGE, 403),
        Answer({"Messages": [message(1)]}),
        Answer("", 302, {"Location": "http://127.0.0.1:9/"}),
        Answer({"Messages": [message(2), message(3)]}),
    )

    async def scenario() -> Collected:
        async with make_transport(scripted.endpoint_url) as transport:
            receiver = Receiver(transport, QUEUE, visibility_seconds=HELD_SECONDS)
            return await receiver.collect(3, wait=PATIENCE_SECONDS, linger=PATIENCE_SECONDS, on_received=lambda _: None)

    collected = asyncio.run(scenario())
    assert sorted(message.message_id for message in collected.messages) == ["id-1", "id-2", "id-3"]
    assert collected.error is None


@pytest.mark.parametrize("operation", ["GetQueueUrl", "GetQueueAttributes", "SendMessage"])
@pytest.mark.parametrize("body", ["<html>Log in first</html>", "{}"], ids=["HTML", "JSON"])
def test_an_answer_under_200_that_is_not_from_sqs_is_told_and_may_pass(
    make_transport: MakeTransport,
    scripted: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    body: str,
) -> None:
    monkeypatch.setattr(client_transport, "_READ_PAUSE_SECONDS", 0.0)
    scripted.script(operation, Answer(body))

    async def scenario() -> None:
        async with make_transport(scripted.endpoint_url) as transport:
            call: Coroutine[Any, Any, object]
            match operation:
                case "GetQueueUrl":
                    call = transport.queue_url("orders")
                case "GetQueueAttributes":
                    call = transport.queue_attributes(QUEUE)
                case _:
                    call = transport.send(QUEUE, "text")
            with pytest.raises(errors.ForeignAnswerError, match="not from SQS") as raised:
                await call
            assert raised.value.verdict is Verdict.TRANSIENT

    asyncio.run(scenario())
