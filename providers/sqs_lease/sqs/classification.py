"""The meaning of errors of SQS, botocore or the network: by code and text, as an exception or as a lease's verdict.

Two questions are answered here. :func:`entry_verdict`: what does the error of one entry mean for its lease?
:func:`error_from_code` and :func:`error_from_exception`: which :class:`SqsError` is a call that failed as a whole?

Each answer says whether the call was carried out. It was *certainly not* if the service turned the call away
before it began (503, throttling) or the request was never sent (no connection, no credentials). It *may have been*
if the answer is missing or useless (500, 502, 504, a time-out, a torn connection). In doubt it may have been: an
extension, a receive or a delete may be repeated in either case, but a release that was carried out and is repeated
can end the lease of the next consumer.

SQS speaks AWS JSON with errors named like shapes (``QueueDoesNotExist``). The header ``x-amzn-query-error`` adds the
older query protocol's name (``AWS.SimpleQueueService.NonExistentQueue``), and botocore prefers that one in
``response["Error"]["Code"]``. Other services of AWS add ``Exception`` or a namespace. All of these spellings are
reduced to one before the look-up in the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sqs_lease.core.calls import Verdict
from sqs_lease.core.failure_rules import printable
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    ConfigurationError,
    CredentialsError,
    CredentialsUnavailableError,
    EncryptionKeyError,
    EndpointError,
    EndpointUnreachableError,
    ForeignAnswerError,
    InvalidRequestError,
    OverLimitError,
    QueueNotFoundError,
    SqsError,
    ThrottledError,
    TransientError,
    UnavailableError,
    WrongRegionError,
)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """An exception, the event in words, and the remedy, in which ``{action}`` stands for the IAM action."""

    error: type[SqsError]
    happened: str
    remedy: str


_NOT_FOUND: Final = _Meaning(
    QueueNotFoundError,
    "there is no such queue",
    "Check its name, account and region, and that the caller may call sqs:{action} on it: "
    "SQS hides a queue from a caller without any permission.",
)
_DENIED: Final = _Meaning(
    AccessDeniedError, "access denied", "Allow sqs:{action} in the caller's IAM policy and the queue's policy."
)
_KEY_DENIED: Final = _Meaning(
    AccessDeniedError,
    "access to the queue's encryption key was denied",
    "Allow kms:Decrypt (and kms:GenerateDataKey to send) on the queue's KMS key.",
)
_KEY_UNUSABLE: Final = _Meaning(
    EncryptionKeyError,
    "the queue's encryption key cannot be used",
    "Check that the queue's KMS key exists, is enabled and is a symmetric encryption key.",
)
_EXPIRED: Final = _Meaning(
    CredentialsUnavailableError,
    "the credentials have expired",
    "Renew them, or use credentials that renew themselves.",
)
_CREDENTIALS_UNAVAILABLE: Final = _Meaning(
    CredentialsUnavailableError,
    "the credentials cannot be fetched right now",
    "Try again; if it persists, check the role, the process or the metadata service that gives them.",
)
_UNKNOWN_CREDENTIALS: Final = _Meaning(
    CredentialsError,
    "the credentials were not accepted",
    "Check the access key, the session token and that they belong to this partition of AWS.",
)
_NO_CREDENTIALS: Final = _Meaning(
    CredentialsError,
    "no usable credentials",
    "Give the client credentials: a role, a profile, environment variables, or in Airflow the connection's login and "
    "password.",
)
_SIGNATURE: Final = _Meaning(
    CredentialsError,
    "the request's signature was refused",
    "Check the secret key, the client's region and this machine's clock.",
)
_ADDRESS: Final = _Meaning(
    WrongRegionError,
    "the endpoint does not know this address",
    "Make the client for the region (and endpoint) that the queue URL names.",
)
_OVER_LIMIT: Final = _Meaning(
    OverLimitError,
    "too many of its messages are in flight (120 000 at most)",
    "Settle messages, take smaller or fewer batches at once, or ask AWS for a higher quota.",
)
_THROTTLED: Final = _Meaning(
    ThrottledError, "too many requests", "Call less often, in larger batches, or ask AWS for a higher quota."
)
_UNAVAILABLE: Final = _Meaning(
    UnavailableError,
    "the service is not available",
    "Try again; if it persists, check AWS's health dashboard.",
)
_TRANSIENT: Final = _Meaning(
    TransientError,
    "the answer was lost, or the service failed",
    "Try again; if it persists, check the network and AWS's health dashboard.",
)
_UNREACHABLE: Final = _Meaning(
    EndpointUnreachableError,
    "the endpoint cannot be reached",
    "Check the client's region, endpoint URL, proxy and network.",
)
_ENDPOINT: Final = _Meaning(
    EndpointError,
    "the client's endpoint is misconfigured",
    "Check the client's region, endpoint URL, proxy and certificates (`verify`, AWS_CA_BUNDLE).",
)
_NO_REGION: Final = _Meaning(
    ConfigurationError,
    "no AWS region is configured",
    "Set region_name, AWS_DEFAULT_REGION or the region of the AWS profile (in Airflow, of the connection), or name the "
    "queue by its ARN or its URL at AWS.",
)
_NO_PROFILE: Final = _Meaning(
    ConfigurationError,
    "the AWS profile does not exist",
    "Correct profile_name or AWS_PROFILE, or add the profile to the AWS configuration file.",
)
_CONFIGURATION: Final = _Meaning(
    ConfigurationError,
    "the AWS configuration cannot be used",
    "Correct the AWS configuration file or setting that the text names.",
)
_FOREIGN: Final = _Meaning(
    ForeignAnswerError,
    "the answer is not from SQS",
    "Try again; if it persists, check the client's endpoint URL, its proxy (HTTPS_PROXY, NO_PROXY), and whether the "
    "network asks for a login.",
)
_NOT_LET_THROUGH: Final = replace(_FOREIGN, error=UnavailableError)
_INVALID: Final = _Meaning(InvalidRequestError, "the request was refused", "Correct the request as the text says.")

_BY_CODE: Final[dict[str, _Meaning]] = {
    **dict.fromkeys(("QueueDoesNotExist", "NonExistentQueue", "ResourceNotFound", "QueueDeletedRecently"), _NOT_FOUND),
    **dict.fromkeys(
        ("AccessDenied", "AuthorizationError", "AuthFailure", "NotAuthorized", "UnauthorizedOperation"),
        _DENIED,
    ),
    **dict.fromkeys(("KmsAccessDenied",), _KEY_DENIED),
    **dict.fromkeys(
        ("KmsDisabled", "KmsInvalidKeyUsage", "KmsInvalidState", "KmsNotFound", "KmsOptInRequired"), _KEY_UNUSABLE
    ),
    **dict.fromkeys(("ExpiredToken", "TokenRefreshRequired"), _EXPIRED),
    **dict.fromkeys(
        (
            "InvalidAccessKeyId",
            "InvalidClientTokenId",
            "InvalidToken",
            "MissingAuthenticationToken",
            "OptInRequired",
            "UnrecognizedClient",
        ),
        _UNKNOWN_CREDENTIALS,
    ),
    **dict.fromkeys(
        ("IncompleteSignature", "InvalidSignature", "RequestExpired", "RequestTimeTooSkewed", "SignatureDoesNotMatch"),
        _SIGNATURE,
    ),
    "InvalidAddress": _ADDRESS,
    "OverLimit": _OVER_LIMIT,
    **dict.fromkeys(
        (
            "KmsThrottled",
            "KmsThrottling",
            "ProvisionedThroughputExceeded",
            "RequestLimitExceeded",
            "RequestThrottled",
            "SlowDown",
            "Throttled",
            "Throttling",
            "TooManyRequests",
        ),
        _THROTTLED,
    ),
    **dict.fromkeys(
        (
            "InternalError",
            "InternalFailure",
            "InternalServerError",
            "InternalService",
            "RequestAborted",  # "aborted before a reply is sent back": perhaps after the work was done
            "RequestTimeout",
        ),
        _TRANSIENT,
    ),
    "ServiceUnavailable": _UNAVAILABLE,
    # Of STS, which asks the identity provider for a role's credentials.
    "IDPCommunicationError": _CREDENTIALS_UNAVAILABLE,
    **dict.fromkeys(("InvalidAction", "InvalidSecurity", "UnknownOperation"), _ENDPOINT),
    # All other codes are the request's own fault. These are listed because some emulators send them with a status of
    # 5xx, which would make them look as if trying again could help.
    **dict.fromkeys(
        (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidAttributeName",
            "InvalidAttributeValue",
            "InvalidBatchEntryId",
            "InvalidIdFormat",
            "InvalidMessageContents",
            "InvalidParameterCombination",
            "InvalidParameterValue",
            "MessageNotInflight",
            "MissingParameter",
            "ReceiptHandleIsInvalid",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
            "ValidationError",
        ),
        _INVALID,
    ),
}

# By class name, looked up along the method resolution order: botocore adds classes from release to release.
_BY_EXCEPTION: Final[dict[str, _Meaning]] = {
    **dict.fromkeys(
        (
            "LoginError",
            "NoAuthTokenError",
            "NoCredentialsError",
            "PartialCredentialsError",
            "SSOError",
        ),
        _NO_CREDENTIALS,
    ),
    # Errors of the sources of credentials: the request to SQS was not even signed.
    **dict.fromkeys(
        ("CredentialRetrievalError", "MetadataRetrievalError", "TokenRetrievalError"), _CREDENTIALS_UNAVAILABLE
    ),
    **dict.fromkeys(
        (
            "ConnectTimeoutError",  # the first three with reserve: see _may_have_been_sent
            "EndpointConnectionError",
            "ProxyConnectionError",
            "ConnectionRefusedError",
            "gaierror",
        ),
        _UNREACHABLE,
    ),
    **dict.fromkeys(
        (
            "ConnectionError",
            "HTTPClientError",  # read timeouts and cut connections among others
            "IncompleteReadError",
            "ResponseParserError",
            "SSLError",  # but see _meaning_of_exception: certificates
            "TimeoutError",
            "OSError",
        ),
        _TRANSIENT,
    ),
    **dict.fromkeys(
        (
            "BaseEndpointResolverError",
            "EndpointProviderError",
            "InvalidEndpointConfigurationError",
            "InvalidProxiesConfigError",
        ),
        _ENDPOINT,
    ),
    "NoRegionError": _NO_REGION,
    "ProfileNotFound": _NO_PROFILE,
    **dict.fromkeys(
        (
            "ConfigNotFound",
            "ConfigParseError",
            "InvalidConfigError",
            "InvalidDefaultsMode",
            "InvalidRegionError",
            "InvalidRetryConfigurationError",
            "UnknownCredentialError",
            "UnknownRegionError",
        ),
        _CONFIGURATION,
    ),
    "BotoCoreError": _INVALID,
}

# The exceptions of urllib3, aiohttp and httpx while they make a connection, before they send any of the request.
_NOT_CONNECTED: Final = frozenset(
    {
        # urllib3
        "NewConnectionError",
        "ConnectTimeoutError",
        # aiohttp
        "ClientConnectorError",
        "ClientHttpProxyError",
        "ConnectionTimeoutError",
        # httpx
        "ConnectError",
        "ConnectTimeout",
        # the operating system
        "ConnectionRefusedError",
        "gaierror",
    }
)

_LOST_CODES: Final = frozenset({"MessageNotInflight", "ReceiptHandleIsInvalid"})
# Parts of texts of InvalidParameterValue, in lower case. Sources: facts of the API, and LocalStack's recorded tests.
_CAPPED_TEXT: Final = re.compile(r"total visibilitytimeout .*beyond the limit", re.DOTALL)
_LOST_TEXTS: Final = (
    "not available for visibility timeout change",
    "message does not exist",
    "receipt handle has expired",
)

_NAMESPACES: Final = re.compile(r"^(?:.*#|AWS\.SimpleQueueService\.)")
_SHOWN_CHARACTERS: Final = 1_000
_READ_CHARACTERS: Final = 10 * _SHOWN_CHARACTERS
_PASSWORD: Final = re.compile(r"(?<=//)\S{1,300}@|[^\s/@:]{1,100}:[^\s/@]{1,200}@")
"""A user name and a password in the URL of an endpoint or a proxy: botocore quotes most of them whole.

The numbers bound the time that a stranger's text takes.
"""
_LONG_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{100,}")


def plain_code(code: str) -> str:
    """Return an error code without protocol, namespace and suffix.

    ``AWS.SimpleQueueService.NonExistentQueue`` -> ``NonExistentQueue``, ``com.amazonaws.sqs#OverLimit`` ->
    ``OverLimit``, ``ThrottlingException`` -> ``Throttling``, ``KMS.DisabledException`` -> ``KmsDisabled``.
    """
    code = _NAMESPACES.sub("", code).removesuffix("Exception")
    return f"Kms{code.removeprefix('KMS.')}" if code.startswith("KMS.") else code


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text of the service for logs: without secrets, on one line and without control characters.

    A proxy, or an error that quotes a value, may have both. Passwords in URLs are replaced by an ellipsis.

    Args:
        text: The text; ``InvalidParameterValue`` quotes the value, which may be a whole receipt handle.
        secrets: Receipt handles and bodies that the call carried. They, and other unbroken strings of 100
            characters and more, are replaced by an ellipsis. A very long text is cut: it is the page of a proxy.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    text = _PASSWORD.sub("…@", text[:_READ_CHARACTERS])
    text = " ".join(printable(_LONG_TOKEN.sub("…", text)).split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def entry_verdict(code: str, text: str, *, sender_fault: bool | None = None) -> Verdict:
    """Return the meaning, for its lease, of the error of one entry of a batch call (change of visibility, or delete).

    Args:
        code: The error code in any spelling.
        text: The service's text: ``InvalidParameterValue`` stands for a lost lease, for the 12-hour limit
            and for a malformed request.
        sender_fault: The entry's ``SenderFault``; decides only for unknown codes.
    """
    plain = plain_code(code)
    lowered = text.lower()
    if plain in _LOST_CODES:
        return Verdict.LOST
    if plain == "InvalidParameterValue":
        if _CAPPED_TEXT.search(lowered):
            return Verdict.CAPPED
        return Verdict.LOST if any(part in lowered for part in _LOST_TEXTS) else Verdict.REFUSED
    meaning = _BY_CODE.get(plain)
    if meaning is not None:
        return meaning.error.verdict
    return Verdict.TRANSIENT if sender_fault is False else Verdict.REFUSED


def error_from_code(
    code: str, text: str, *, operation: str, queue: str, status: int | None = None, secrets: Iterable[str] = ()
) -> SqsError:
    """Return the exception for a call that the service answered with an error.

    Args:
        code: The error code in any spelling.
        text: The service's text.
        operation: The API operation, e.g. ``ReceiveMessage``.
        queue: The queue's URL, or what the caller gave for it.
        status: The HTTP status; decides only about codes that are not known. None if there was none.
        secrets: See :func:`redacted`.
    """
    plain = plain_code(code)
    meaning = _BY_CODE.get(plain) or _meaning_of_status(status)
    return _error(meaning, operation=operation, queue=queue, code=redacted(plain), text=redacted(text, secrets))


def error_from_exception(
    error: Exception, *, operation: str | None, queue: str, secrets: Iterable[str] = ()
) -> SqsError | None:
    """Return the exception for a call in which a client of botocore or aiobotocore raised ``error``.

    Args:
        error: The exception that the client raised.
        operation: The API operation that was called, e.g. ``ReceiveMessage``; None while the client was made.
        queue: The queue's URL, or what the caller gave for it; empty if no queue is known yet.
        secrets: See :func:`redacted`.

    Returns:
        None for a defect: an exception that neither the service, the client's configuration nor the network explains.
    """
    if isinstance(error, ClientError):
        answer: dict[str, Any] = dict(error.response)
        described = answer.get("Error", {})
        code, text = str(described.get("Code", "")), str(described.get("Message", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        called = error.operation_name
        refused = error_from_code(code, text, operation=called, queue=queue, status=status, secrets=secrets)
        if called == operation or refused.verdict is Verdict.THROTTLED:
            return refused
        # The client calls other services for its credentials, e.g. STS's AssumeRole: no call reached SQS.
        meaning = _CREDENTIALS_UNAVAILABLE
        if refused.verdict is Verdict.REFUSED:
            meaning = _Meaning(
                CredentialsError,
                f"{called}, which the client's credentials come from, was refused",
                "Check the role and the credentials of the client.",
            )
        return _error(meaning, operation=operation, queue=queue, code=refused.code, text=refused.text)
    known = isinstance(error, BotoCoreError | OSError) or type(error).__name__ in _BY_EXCEPTION
    if not (known or _is_stale_refresh(error) or _is_invalid_endpoint(error)):
        return None
    text = redacted(str(error) or type(error).__name__, secrets)
    meaning = _meaning_of_exception(error)
    return _error(meaning, operation=operation, queue=queue, code=type(error).__name__, text=text)


def error_from_foreign_answer(
    status: int, text: str, *, operation: str, queue: str, secrets: Iterable[str] = ()
) -> SqsError:
    """Return the exception for a call whose answer is not SQS's: a page of a proxy or a login portal, a redirect.

    The next answer may be a good one, so the error may pass. The sender of the answer may have passed the call on to
    SQS before, as a proxy does that inspects answers; a few statuses mean that it did not.

    Args:
        status: The HTTP status.
        text: The answer's text, or the problem with it.
        operation: The API operation, e.g. ``ReceiveMessage``.
        queue: The queue's URL, or what the caller gave for it.
        secrets: See :func:`redacted`.
    """
    meaning = _meaning_of_foreign_status(status)
    happened = f"{meaning.happened} (HTTP status {status})"
    return _error(
        replace(meaning, happened=happened),
        operation=operation,
        queue=queue,
        code=str(status),
        text=redacted(text, secrets),
    )


@contextmanager
def translate_client_errors(queue: str) -> Iterator[None]:
    """Turn botocore's exceptions while a client is made into errors that name the queue and the remedy.

    Args:
        queue: The queue's URL, name or ARN; empty if no queue is known yet.

    Raises:
        SqsError: The client cannot be made: no region, an unknown profile, no credentials, an unusable setting.
    """
    try:
        yield
    except Exception as error:
        described = error_from_exception(error, operation=None, queue=queue)
        if described is None:
            raise
        raise described from error


def _meaning_of_exception(error: Exception) -> _Meaning:
    names = _names(error)
    certificate = "SSLError" in names and "certificate" in str(error).lower()
    if certificate or _is_invalid_endpoint(error):
        return _ENDPOINT
    if _is_stale_refresh(error):
        return _CREDENTIALS_UNAVAILABLE
    meaning = next((_BY_EXCEPTION[name] for name in names if name in _BY_EXCEPTION), _INVALID)
    return _TRANSIENT if meaning is _UNREACHABLE and _may_have_been_sent(error) else meaning


def _may_have_been_sent(error: Exception) -> bool:
    """Return whether the request may have been sent, in spite of an error about its connection.

    The names of botocore's exceptions do not tell. aiobotocore raises ``EndpointConnectionError`` also for a connection
    that was reset while it waited for the answer, and botocore ``ProxyConnectionError`` for one that a proxy closed.
    The exception of the HTTP library, which botocore keeps, tells.
    """
    cause = getattr(error, "kwargs", {}).get("error")
    if cause is None:
        return False
    # urllib3 wraps errors on the way to a proxy once more.
    cause = getattr(cause, "original_error", cause)
    # The proxy refused to make a tunnel: urllib3 has no exception class for that.
    refused_tunnel = type(cause) is OSError and str(cause).startswith("Tunnel connection failed")
    return not refused_tunnel and _NOT_CONNECTED.isdisjoint(_names(cause))


_UNUSABLE_URL: Final = ("Invalid endpoint", "Invalid IPv6 URL", "Port out of range", "Port could not be cast")
"""The beginnings of the error texts of botocore and :mod:`urllib.parse`."""


def _is_stale_refresh(error: Exception) -> bool:
    """Return whether refreshed credentials had already expired; botocore has no exception class for that."""
    return type(error) is RuntimeError and "refreshed credentials are still expired" in str(error)


def _is_invalid_endpoint(error: Exception) -> bool:
    """Return whether an endpoint URL cannot be used, e.g. without a scheme; botocore has no exception class for that.

    botocore notices some of them when a client is made; others fail at the first call, in the standard library.
    """
    if type(error) is ValueError:
        return str(error).startswith(_UNUSABLE_URL)
    return "URLSchemeUnknown" in _names(getattr(error, "kwargs", {}).get("error", error))


def _names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]


def _meaning_of_status(status: int | None) -> _Meaning:
    if status is None:
        return _INVALID
    if status == 429:
        return _THROTTLED
    if status == 503:
        return _UNAVAILABLE
    if status >= 500 or status == 408:
        return _TRANSIENT
    if status in {401, 403}:
        return _DENIED
    if status == 404 or 300 <= status < 400:
        return _ENDPOINT
    return _INVALID


def _meaning_of_foreign_status(status: int) -> _Meaning:
    # A proxy asks for a password (407), or a network for a login (511), before it passes a call on.
    if status in {407, 511}:
        return _NOT_LET_THROUGH
    # These mean the same from every sender: load balancers and gateways have pages of their own for them.
    if status in {408, 429} or status >= 500:
        return _meaning_of_status(status)
    return _FOREIGN


def _error(meaning: _Meaning, *, operation: str | None, queue: str, code: str, text: str) -> SqsError:
    subject = f"queue {queue}" if queue else "SQS"
    done = f"The client for {subject}" if operation is None else f"{operation} on {subject}"
    # IAM has no actions for batch calls: the action of the call with one entry allows them.
    remedy = meaning.remedy.format(action=(operation or "").removesuffix("Batch"))
    said = f"{code}: {text}" if code and text else code or text
    message = f"{done}: {meaning.happened}. {remedy} [{said}]"
    return meaning.error(message, queue=queue, code=code, text=text, remedy=remedy)
