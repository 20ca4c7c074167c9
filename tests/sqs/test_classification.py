"""The meaning of errors: by code in every spelling, by text, by status, by exception."""

from __future__ import annotations

import socket
from http.client import RemoteDisconnected
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from botocore import exceptions as botocore_errors
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3 import exceptions as urllib3_errors

from sqs_lease.core.calls import Verdict
from sqs_lease.sqs import errors
from sqs_lease.sqs.classification import (
    entry_verdict,
    error_from_code,
    error_from_exception,
    error_from_foreign_answer,
    plain_code,
    redacted,
    translate_client_errors,
)

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/orders"
URL = "https://sqs.us-east-1.amazonaws.com/"


@pytest.mark.parametrize(
    ("code", "plain"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"),
        ("com.amazonaws.sqs#QueueDoesNotExist", "QueueDoesNotExist"),
        ("com.amazon.coral.service#AccessDeniedException", "AccessDenied"),
        ("ThrottlingException", "Throttling"),
        ("KMS.DisabledException", "KmsDisabled"),
        ("KMS.OptInRequired", "KmsOptInRequired"),
        ("KmsThrottled", "KmsThrottled"),
        ("OverLimit", "OverLimit"),
        ("", ""),
    ],
)
def test_a_code_is_brought_to_one_spelling(code: str, plain: str) -> None:
    assert plain_code(code) == plain


BEYOND = (
    "Value 43200 for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
    "beyond the limit [43200 seconds]."
)
NOT_AVAILABLE = (
    "Value AQEB for parameter ReceiptHandle is invalid. Reason: Message does not exist or is not available for "
    "visibility timeout change."
)
EXPIRED = "Value AQEB for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."


@pytest.mark.parametrize(
    ("code", "text", "verdict"),
    [
        ("InvalidParameterValue", BEYOND, Verdict.CAPPED),
        ("InvalidParameterValueException", BEYOND.upper(), Verdict.CAPPED),
        ("InvalidParameterValue", NOT_AVAILABLE, Verdict.LOST),
        ("InvalidParameterValue", EXPIRED, Verdict.LOST),
        ("InvalidParameterValue", "VisibilityTimeout must be between 0 and 43200", Verdict.REFUSED),
        ("InvalidParameterValue", "", Verdict.REFUSED),
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid.", Verdict.LOST),
        ("AWS.SimpleQueueService.ReceiptHandleIsInvalid", "", Verdict.LOST),
        ("InvalidParameterValueException", EXPIRED, Verdict.LOST),
        ("MessageNotInflight", "", Verdict.LOST),
        ("AWS.SimpleQueueService.MessageNotInflight", "", Verdict.LOST),
        ("RequestThrottled", "", Verdict.THROTTLED),
        ("AWS.SimpleQueueService.RequestThrottled", "", Verdict.THROTTLED),
        ("RequestThrottledException", "", Verdict.THROTTLED),
        ("Throttling", "", Verdict.THROTTLED),
        ("ThrottlingException", "", Verdict.THROTTLED),
        ("ThrottledException", "", Verdict.THROTTLED),
        ("TooManyRequestsException", "", Verdict.THROTTLED),
        ("SlowDown", "", Verdict.THROTTLED),
        ("KmsThrottled", "", Verdict.THROTTLED),
        ("KMS.ThrottlingException", "", Verdict.THROTTLED),
        ("OverLimit", "", Verdict.THROTTLED),
        ("InternalError", "", Verdict.TRANSIENT),
        ("InternalFailure", "", Verdict.TRANSIENT),
        ("ServiceUnavailable", "", Verdict.UNAVAILABLE),
        ("AWS.SimpleQueueService.ServiceUnavailable", "", Verdict.UNAVAILABLE),
        ("ServiceUnavailableException", "", Verdict.UNAVAILABLE),
        ("RequestTimeout", "", Verdict.TRANSIENT),
        ("RequestAbortedException", "", Verdict.TRANSIENT),
        ("AccessDenied", "", Verdict.REFUSED),
        ("AccessDeniedException", "", Verdict.REFUSED),
        ("QueueDoesNotExist", "", Verdict.REFUSED),
        ("AWS.SimpleQueueService.NonExistentQueue", "", Verdict.REFUSED),
        ("KmsAccessDenied", "", Verdict.REFUSED),
        ("KMS.AccessDeniedException", "", Verdict.REFUSED),
        ("ExpiredToken", "", Verdict.UNAVAILABLE),
        ("ExpiredTokenException", "", Verdict.UNAVAILABLE),
        ("KmsDisabled", "", Verdict.REFUSED),
        ("UnrecognizedClientException", "", Verdict.REFUSED),
        ("InvalidClientTokenId", "", Verdict.REFUSED),
        ("SignatureDoesNotMatch", "", Verdict.REFUSED),
        ("InvalidSignatureException", "", Verdict.REFUSED),
        ("MissingParameter", "The request must contain the parameter ReceiptHandle.", Verdict.REFUSED),
    ],
)
def test_the_error_of_one_entry_is_a_verdict_on_its_lease(code: str, text: str, verdict: Verdict) -> None:
    assert entry_verdict(code, text) is verdict
    # The service's word about the sender's fault changes nothing about a code that is known.
    assert entry_verdict(code, text, sender_fault=True) is verdict
    assert entry_verdict(code, text, sender_fault=False) is verdict


@pytest.mark.parametrize(
    ("sender_fault", "verdict"), [(True, Verdict.REFUSED), (None, Verdict.REFUSED), (False, Verdict.TRANSIENT)]
)
def test_an_unknown_code_is_judged_by_the_side_at_fault(sender_fault: bool | None, verdict: Verdict) -> None:
    assert entry_verdict("SomethingNew", "whatever", sender_fault=sender_fault) is verdict


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", errors.QueueNotFoundError),
        ("QueueDoesNotExist", errors.QueueNotFoundError),
        ("AWS.SimpleQueueService.QueueDeletedRecently", errors.QueueNotFoundError),
        ("AccessDenied", errors.AccessDeniedError),
        ("KmsAccessDenied", errors.AccessDeniedError),
        ("KMS.AccessDeniedException", errors.AccessDeniedError),
        ("KMS.NotFoundException", errors.EncryptionKeyError),
        ("KMS.InvalidStateException", errors.EncryptionKeyError),
        ("KmsDisabled", errors.EncryptionKeyError),
        ("ExpiredTokenException", errors.CredentialsUnavailableError),
        ("InvalidClientTokenId", errors.CredentialsError),
        ("SignatureDoesNotMatch", errors.CredentialsError),
        ("RequestExpired", errors.CredentialsError),
        ("InvalidAddress", errors.WrongRegionError),
        ("InvalidSecurity", errors.EndpointError),
        ("OverLimit", errors.OverLimitError),
        ("KMS.ThrottlingException", errors.ThrottledError),
        ("RequestThrottled", errors.ThrottledError),
        ("InternalFailure", errors.TransientError),
        ("ServiceUnavailable", errors.UnavailableError),
        ("InvalidParameterValue", errors.InvalidRequestError),
        ("UnsupportedOperation", errors.InvalidRequestError),
    ],
)
def test_a_code_of_the_service_is_an_exception_whatever_the_status(code: str, error: type[errors.SqsError]) -> None:
    for status in (None, 400, 403, 404, 500):
        raised = error_from_code(code, "the text", operation="ReceiveMessage", queue=QUEUE, status=status)
        assert type(raised) is error
        assert (raised.queue, raised.code, raised.text) == (QUEUE, plain_code(code), "the text")
        assert str(raised).startswith(f"ReceiveMessage on queue {QUEUE}: ")
        assert str(raised).endswith(f"[{plain_code(code)}: the text]")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (None, errors.InvalidRequestError),
        (301, errors.EndpointError),
        (400, errors.InvalidRequestError),
        (401, errors.AccessDeniedError),
        (403, errors.AccessDeniedError),
        (404, errors.EndpointError),
        (408, errors.TransientError),
        (413, errors.InvalidRequestError),
        (429, errors.ThrottledError),
        (500, errors.TransientError),
        (502, errors.TransientError),
        (503, errors.UnavailableError),
        (504, errors.TransientError),
    ],
)
def test_an_unknown_code_is_judged_by_the_http_status(status: int | None, error: type[errors.SqsError]) -> None:
    raised = error_from_code("SomethingNew", "", operation="ReceiveMessage", queue=QUEUE, status=status)
    assert type(raised) is error


@pytest.mark.parametrize(
    ("raised", "error", "verdict"),
    [
        (botocore_errors.ReadTimeoutError(endpoint_url=URL), errors.TransientError, Verdict.TRANSIENT),
        (botocore_errors.ConnectionClosedError(endpoint_url=URL), errors.TransientError, Verdict.TRANSIENT),
        (botocore_errors.HTTPClientError(error="cut"), errors.TransientError, Verdict.TRANSIENT),
        (
            botocore_errors.IncompleteReadError(actual_bytes=1, expected_bytes=2),
            errors.TransientError,
            Verdict.TRANSIENT,
        ),
        (
            botocore_errors.MetadataRetrievalError(error_msg="timed out"),
            errors.CredentialsUnavailableError,
            Verdict.UNAVAILABLE,
        ),
        (ResponseParserError("not JSON"), errors.TransientError, Verdict.TRANSIENT),
        (TimeoutError(), errors.TransientError, Verdict.TRANSIENT),
        (ConnectionResetError("reset by peer"), errors.TransientError, Verdict.TRANSIENT),
        (ConnectionRefusedError("refused"), errors.EndpointUnreachableError, Verdict.UNAVAILABLE),
        (socket.gaierror("no such name"), errors.EndpointUnreachableError, Verdict.UNAVAILABLE),
        (
            botocore_errors.EndpointConnectionError(endpoint_url=URL),
            errors.EndpointUnreachableError,
            Verdict.UNAVAILABLE,
        ),
        (botocore_errors.ConnectTimeoutError(endpoint_url=URL), errors.EndpointUnreachableError, Verdict.UNAVAILABLE),
        (
            botocore_errors.ProxyConnectionError(proxy_url="http://proxy"),
            errors.EndpointUnreachableError,
            Verdict.UNAVAILABLE,
        ),
        (
            botocore_errors.SSLError(endpoint_url=URL, error=OSError("EOF occurred in violation of protocol")),
            errors.TransientError,
            Verdict.TRANSIENT,
        ),
        (
            botocore_errors.SSLError(endpoint_url=URL, error=OSError("CERTIFICATE_VERIFY_FAILED: self-signed")),
            errors.EndpointError,
            Verdict.REFUSED,
        ),
        (botocore_errors.NoRegionError(), errors.ConfigurationError, Verdict.REFUSED),
        (botocore_errors.ProfileNotFound(profile="nobody"), errors.ConfigurationError, Verdict.REFUSED),
        (botocore_errors.ConfigParseError(path="config"), errors.ConfigurationError, Verdict.REFUSED),
        (ValueError("Invalid endpoint: localhost:4566"), errors.EndpointError, Verdict.REFUSED),
        (ValueError("Port out of range 0-65535"), errors.EndpointError, Verdict.REFUSED),
        (ValueError("Port could not be cast to integer value as 'x'"), errors.EndpointError, Verdict.REFUSED),
        (ValueError("Invalid IPv6 URL"), errors.EndpointError, Verdict.REFUSED),
        (
            botocore_errors.HTTPClientError(error=urllib3_errors.URLSchemeUnknown("ftp")),
            errors.EndpointError,
            Verdict.REFUSED,
        ),
        (botocore_errors.NoCredentialsError(), errors.CredentialsError, Verdict.REFUSED),
        (
            botocore_errors.PartialCredentialsError(provider="env", cred_var="secret"),
            errors.CredentialsError,
            Verdict.REFUSED,
        ),
        (
            botocore_errors.CredentialRetrievalError(provider="process", error_msg="exit status 1"),
            errors.CredentialsUnavailableError,
            Verdict.UNAVAILABLE,
        ),
        (
            RuntimeError("Credentials were refreshed, but the refreshed credentials are still expired."),
            errors.CredentialsUnavailableError,
            Verdict.UNAVAILABLE,
        ),
        (botocore_errors.UnauthorizedSSOTokenError(), errors.CredentialsError, Verdict.REFUSED),
        (botocore_errors.ParamValidationError(report="bad"), errors.InvalidRequestError, Verdict.REFUSED),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_exception_of_the_client_is_one_of_ours(
    raised: Exception, error: type[errors.SqsError], verdict: Verdict
) -> None:
    described = error_from_exception(raised, operation="DeleteMessageBatch", queue=QUEUE)
    assert type(described) is error
    assert described.verdict is verdict
    assert described.code == type(raised).__name__
    assert QUEUE in str(described)


CONNECTION_KEY: Any = SimpleNamespace(host="sqs", port=443, ssl=True, is_ssl=True)


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        (urllib3_errors.NewConnectionError(None, "refused"), Verdict.UNAVAILABLE),  # type: ignore[arg-type]
        (urllib3_errors.NameResolutionError("sqs", None, socket.gaierror()), Verdict.UNAVAILABLE),  # type: ignore[arg-type]
        (urllib3_errors.ConnectTimeoutError("connect timeout=5"), Verdict.UNAVAILABLE),
        (urllib3_errors.ProxyError("proxy", urllib3_errors.ConnectTimeoutError("5")), Verdict.UNAVAILABLE),
        (urllib3_errors.ProxyError("proxy", OSError("Tunnel connection failed: 502 Bad Gateway")), Verdict.UNAVAILABLE),
        (urllib3_errors.ProxyError("proxy", RemoteDisconnected("without response")), Verdict.TRANSIENT),
        (urllib3_errors.ProxyError("proxy", ConnectionResetError(104, "reset")), Verdict.TRANSIENT),
        (aiohttp.ClientConnectorError(CONNECTION_KEY, OSError(111, "refused")), Verdict.UNAVAILABLE),
        (aiohttp.ClientProxyConnectionError(CONNECTION_KEY, OSError(111, "refused")), Verdict.UNAVAILABLE),
        (aiohttp.ClientConnectorDNSError(CONNECTION_KEY, OSError(-2, "unknown")), Verdict.UNAVAILABLE),
        (aiohttp.ConnectionTimeoutError("Connection timeout to host"), Verdict.UNAVAILABLE),
        (aiohttp.ClientOSError(104, "Connection reset by peer"), Verdict.TRANSIENT),
        (aiohttp.ClientConnectionResetError("Cannot write to closing transport"), Verdict.TRANSIENT),
        (aiohttp.ClientConnectionError("Connector is closed"), Verdict.TRANSIENT),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "raised", [botocore_errors.EndpointConnectionError, botocore_errors.ProxyConnectionError], ids=["direct", "proxy"]
)
def test_an_error_about_a_connection_was_not_carried_out_only_if_nothing_was_sent(
    raised: Any, cause: Exception, verdict: Verdict
) -> None:
    error = raised(endpoint_url=URL, proxy_url="http://proxy", error=cause)
    described = error_from_exception(error, operation="ChangeMessageVisibilityBatch", queue=QUEUE)
    assert described is not None
    assert described.verdict is verdict


def test_an_error_while_a_client_is_made_names_the_queue_and_the_remedy() -> None:
    with (
        pytest.raises(errors.ConfigurationError, match=r"client for queue orders: no AWS region .* Set region_name"),
        translate_client_errors("orders"),
    ):
        raise botocore_errors.NoRegionError
    with pytest.raises(errors.ConfigurationError, match="The client for SQS: "), translate_client_errors(""):
        raise botocore_errors.NoRegionError
    with pytest.raises(ZeroDivisionError), translate_client_errors("orders"):
        raise ZeroDivisionError


def test_an_exception_that_nothing_is_known_of_is_a_defect_and_stays_one() -> None:
    for defect in (TypeError("not callable"), KeyError("x"), RuntimeError("closed"), ValueError("x")):
        assert error_from_exception(defect, operation="ReceiveMessage", queue=QUEUE) is None


def client_error(operation: str, code: str, text: str, status: int = 400, **more: Any) -> ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": text, **more},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(answer, operation)


def test_a_client_error_is_read_from_its_answer() -> None:
    error = client_error(
        "ReceiveMessage",
        "AWS.SimpleQueueService.NonExistentQueue",
        "The specified queue does not exist.",
        QueryErrorCode="QueueDoesNotExist",
        Type="Sender",
    )
    described = error_from_exception(error, operation="ReceiveMessage", queue="orders")
    assert isinstance(described, errors.QueueNotFoundError)
    assert str(described) == (
        "ReceiveMessage on queue orders: there is no such queue. Check its name, account and region, and that the "
        "caller may call sqs:ReceiveMessage on it: SQS hides a queue from a caller without any permission. "
        "[NonExistentQueue: The specified queue does not exist.]"
    )


def test_a_client_error_without_a_code_is_judged_by_its_status() -> None:
    described = error_from_exception(
        client_error("ReceiveMessage", "503", "", status=503), operation="ReceiveMessage", queue=QUEUE
    )
    assert type(described) is errors.UnavailableError


def test_a_refusal_of_the_service_that_gives_credentials_is_about_the_credentials() -> None:
    denied = client_error("AssumeRole", "AccessDenied", "not authorized to perform sts:AssumeRole", status=403)
    described = error_from_exception(denied, operation="ReceiveMessage", queue=QUEUE)
    assert type(described) is errors.CredentialsError
    assert "AssumeRole" in str(described)
    busy = client_error("AssumeRole", "Throttling", "Rate exceeded")
    assert type(error_from_exception(busy, operation="ReceiveMessage", queue=QUEUE)) is errors.ThrottledError


@pytest.mark.parametrize(
    ("operation", "code", "status"),
    [
        ("AssumeRole", "InternalFailure", 500),
        ("AssumeRole", "ServiceUnavailable", 503),
        ("AssumeRoleWithWebIdentity", "ExpiredTokenException", 400),
        ("AssumeRoleWithWebIdentity", "IDPCommunicationError", 400),
        ("GetRoleCredentials", "504", 504),
    ],
)
def test_a_failure_of_the_service_that_gives_credentials_leaves_the_call_undone(
    operation: str, code: str, status: int
) -> None:
    failed = client_error(operation, code, "", status=status)
    described = error_from_exception(failed, operation="ChangeMessageVisibilityBatch", queue=QUEUE)
    assert type(described) is errors.CredentialsUnavailableError
    assert described.verdict is Verdict.UNAVAILABLE


def test_each_error_is_found_under_the_kind_that_says_what_to_do() -> None:
    assert issubclass(errors.EndpointUnreachableError, errors.UnavailableError)
    assert issubclass(errors.CredentialsUnavailableError, errors.CredentialsError)
    assert not issubclass(errors.UnavailableError, errors.TransientError)


def test_a_text_keeps_its_sense_without_secrets() -> None:
    handle = "AQEB" + "a/b+" * 50
    text = f"Value {handle} for parameter ReceiptHandle is invalid. Reason: {QUEUE} does not know short-handle."
    assert redacted(text, ["short-handle"]) == (
        f"Value … for parameter ReceiptHandle is invalid. Reason: {QUEUE} does not know …."
    )
    longest_url = f"https://sqs.us-gov-west-1.amazonaws.com/123456789012/{'q' * 75}.fifo"
    assert redacted(longest_url) == longest_url
    assert redacted(text, [""]) == redacted(text)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host:1/",
        "http://ftp://user:hunter2@host:1",
        "http://user:hun/hunter2@host:1",
        "user:hunter2@host",
        "http://user:hunter2@ho st",
    ],
)
def test_a_text_has_no_password_of_an_endpoint_or_a_proxy(url: str) -> None:
    shown = redacted(f'Could not connect to the endpoint URL: "{url}" (2026-11-28T10:31:07Z)')
    assert "hunter2" not in shown
    assert shown.startswith("Could not connect to the endpoint URL: ")
    assert "ho" in shown.partition("…@")[2], "the host is what a reader needs"
    assert shown.endswith("(2026-11-28T10:31:07Z)")


STEERING = "no\r\n\x1b[2JERROR forged\u2028\u202e\x9b31m \t end"


@pytest.mark.parametrize(
    "error",
    [
        error_from_code(f"Strange{STEERING}", STEERING, operation="ReceiveMessage", queue=QUEUE),
        error_from_exception(OSError(STEERING), operation="ReceiveMessage", queue=QUEUE),
        error_from_foreign_answer(502, STEERING, operation="ReceiveMessage", queue=QUEUE),
    ],
    ids=["service", "client", "proxy"],
)
def test_an_answer_adds_no_line_and_no_control_character_to_an_error_or_a_log(error: errors.SqsError) -> None:
    assert str(error).isprintable()
    assert error.code.isprintable()
    assert error.text == "no [2JERROR forged 31m end"


@pytest.mark.parametrize("action", ["ChangeMessageVisibility", "DeleteMessage", "SendMessage"])
@pytest.mark.parametrize("code", ["AccessDenied", "NonExistentQueue"])
def test_a_permission_that_is_missing_is_named_as_iam_names_it(action: str, code: str) -> None:
    error = error_from_code(code, "no", operation=f"{action}Batch", queue=QUEUE, status=400)
    assert f"sqs:{action} " in str(error)


def test_an_error_can_be_told_with_another_remedy() -> None:
    error = error_from_exception(botocore_errors.NoRegionError(), operation=None, queue="orders")
    assert error is not None
    told = error.with_remedy("Ask Dagster.")
    happened = "The client for queue orders: no AWS region is configured."
    assert str(told) == f"{happened} Ask Dagster. [NoRegionError: You must specify a region.]"
    assert type(told) is type(error)
    assert (told.queue, told.code, told.text, told.remedy) == (error.queue, error.code, error.text, "Ask Dagster.")


def test_an_error_without_a_remedy_of_its_own_gets_one() -> None:
    assert (
        str(errors.SqsError("Queue orders is gone.").with_remedy("Make it again."))
        == "Queue orders is gone. Make it again."
    )
