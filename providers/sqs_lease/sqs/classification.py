"""What an error of SQS, botocore or the network means: by code and text, as an exception or as a lease's verdict.

Two questions are answered here. :func:`entry_verdict`: what does one entry's error mean for its lease?
:func:`error_from_code` and :func:`error_from_exception`: which :class:`SqsError` is a call that failed as a whole?

SQS speaks AWS JSON with errors named like shapes (``QueueDoesNotExist``), and the header
``x-amzn-query-error`` adds the older query protocol's name (``AWS.SimpleQueueService.NonExistentQueue``), which
botocore then prefers in ``response["Error"]["Code"]``. Other services of AWS add ``Exception`` or a namespace.
All of these spellings are brought to one before the tables are asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from sqs_lease.core.calls import Verdict
from sqs_lease.sqs.errors import (
    AccessDeniedError,
    CredentialsError,
    EncryptionKeyError,
    EndpointError,
    EndpointUnreachableError,
    InvalidRequestError,
    OverLimitError,
    QueueNotFoundError,
    SqsError,
    ThrottledError,
    TransientError,
    WrongRegionError,
)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """An exception, what happened, and the remedy (``{operation}`` is the API operation)."""

    error: type[SqsError]
    happened: str
    remedy: str


_NOT_FOUND: Final = _Meaning(
    QueueNotFoundError,
    "there is no such queue",
    "Check its name, account and region, and that the caller may call sqs:{operation} on it: "
    "to a caller without any permission the queue does not exist.",
)
_DENIED: Final = _Meaning(
    AccessDeniedError, "access denied", "Allow sqs:{operation} in the caller's IAM policy and the queue's policy."
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
    CredentialsError, "the credentials have expired", "Renew them, or use credentials that renew themselves."
)
_UNKNOWN_CREDENTIALS: Final = _Meaning(
    CredentialsError,
    "the credentials were not accepted",
    "Check the access key, the session token and that they belong to this partition of AWS.",
)
_NO_CREDENTIALS: Final = _Meaning(
    CredentialsError,
    "no usable credentials",
    "Give the client credentials: a role, a profile, environment variables or the connection's login and password.",
)
_SIGNATURE: Final = _Meaning(
    CredentialsError,
    "the request's signature was refused",
    "Check the secret key, the client's region and this machine's clock.",
)
_ADDRESS: Final = _Meaning(
    WrongRegionError,
    "the endpoint does not know this address",
    "Create the client for the region (and endpoint) that the queue URL names.",
)
_OVER_LIMIT: Final = _Meaning(
    OverLimitError,
    "too many of its messages are in flight (120 000 at most)",
    "Settle messages, take smaller or fewer batches at once, or ask AWS for a higher quota.",
)
_THROTTLED: Final = _Meaning(
    ThrottledError, "too many requests", "Call less often, in larger batches, or ask AWS for a higher quota."
)
_TRANSIENT: Final = _Meaning(
    TransientError,
    "no answer, or an error of the service's own",
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
            "RequestAborted",
            "RequestTimeout",
            "ServiceUnavailable",
        ),
        _TRANSIENT,
    ),
    **dict.fromkeys(("InvalidAction", "InvalidSecurity", "UnknownOperation"), _ENDPOINT),
    # Everything else the service names is the request's own fault; these are listed so that a status code of
    # 5xx, which some emulators send along, does not make them look as if trying again could help.
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

# By class name, looked up along the method resolution order: botocore adds classes from release to release, and
# all of these exist under the same names in every version that the project supports.
_BY_EXCEPTION: Final[dict[str, _Meaning]] = {
    **dict.fromkeys(
        (
            "CredentialRetrievalError",
            "LoginError",
            "NoAuthTokenError",
            "NoCredentialsError",
            "PartialCredentialsError",
            "SSOError",
            "TokenRetrievalError",
        ),
        _NO_CREDENTIALS,
    ),
    **dict.fromkeys(("ConnectTimeoutError", "EndpointConnectionError", "ProxyConnectionError"), _UNREACHABLE),
    **dict.fromkeys(
        (
            "ConnectionError",
            "HTTPClientError",  # read timeouts and cut connections among others
            "IncompleteReadError",
            "MetadataRetrievalError",
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
            "InvalidRegionError",
            "UnknownRegionError",
        ),
        _ENDPOINT,
    ),
    "BotoCoreError": _INVALID,
}

_LOST_CODES: Final = frozenset({"MessageNotInflight", "ReceiptHandleIsInvalid"})
# Parts of texts of InvalidParameterValue, in lower case. Sources: facts of the API, and LocalStack's recorded tests.
_CAPPED_TEXT: Final = re.compile(r"total visibilitytimeout .*beyond the limit", re.DOTALL)
_LOST_TEXTS: Final = (
    "not available for visibility timeout change",
    "message does not exist",
    "receipt handle has expired",
)

_NAMESPACES: Final = re.compile(r"^(?:.*#|AWS\.SimpleQueueService\.)")
_LONG_TOKEN: Final = re.compile(r"[A-Za-z0-9+/=_-]{100,}")


def plain_code(code: str) -> str:
    """An error code without protocol, namespace and suffix.

    ``AWS.SimpleQueueService.NonExistentQueue`` -> ``NonExistentQueue``, ``com.amazonaws.sqs#OverLimit`` ->
    ``OverLimit``, ``ThrottlingException`` -> ``Throttling``, ``KMS.DisabledException`` -> ``KmsDisabled``.
    """
    code = _NAMESPACES.sub("", code).removesuffix("Exception")
    return f"Kms{code.removeprefix('KMS.')}" if code.startswith("KMS.") else code


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text of the service without what must not be logged.

    Args:
        text: The text; ``InvalidParameterValue`` quotes the value, which may be a whole receipt handle.
        secrets: Receipt handles and bodies that the call carried. They, and other unbroken strings of 100
            characters and more, are replaced by an ellipsis.
    """
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    return _LONG_TOKEN.sub("…", text)


def entry_verdict(code: str, text: str, *, sender_fault: bool | None = None) -> Verdict:
    """What the error of one entry of ``ChangeMessageVisibilityBatch`` or ``DeleteMessageBatch`` means for its lease.

    Args:
        code: The error code in any spelling.
        text: The service's text: ``InvalidParameterValue`` stands for a lost lease, for the 12-hour limit
            and for a malformed request.
        sender_fault: The entry's ``SenderFault``; decides only about codes that are not known.
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
    """The exception for a call that the service answered with an error.

    Args:
        code: The error code in any spelling.
        text: The service's text.
        operation: The API operation, e.g. ``ReceiveMessage``.
        queue: The queue's URL, or what the caller gave for it.
        status: The HTTP status; decides only about codes that are not known. None where there was none.
        secrets: See :func:`redacted`.
    """
    plain = plain_code(code)
    meaning = _BY_CODE.get(plain) or _meaning_of_status(status)
    return _error(meaning, operation=operation, queue=queue, code=plain, text=redacted(text, secrets))


def error_from_exception(
    error: Exception, *, operation: str, queue: str, secrets: Iterable[str] = ()
) -> SqsError | None:
    """The exception for a call in which a client of botocore or aiobotocore raised ``error``.

    Args:
        error: What the client raised.
        operation: The API operation that was called, e.g. ``ReceiveMessage``.
        queue: The queue's URL, or what the caller gave for it.
        secrets: See :func:`redacted`.

    Returns:
        None when it is no error of the service, the client's configuration or the network: a defect.
    """
    if isinstance(error, ClientError):
        answer: dict[str, Any] = dict(error.response)
        described = answer.get("Error", {})
        code, text = str(described.get("Code", "")), str(described.get("Message", ""))
        status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
        refused = error_from_code(code, text, operation=operation, queue=queue, status=status, secrets=secrets)
        if error.operation_name == operation or refused.verdict is not Verdict.REFUSED:
            return refused
        # The client calls other services for its credentials, e.g. STS's AssumeRole.
        meaning = _Meaning(
            CredentialsError,
            f"{error.operation_name}, which the client's credentials come from, was refused",
            "Check the role and the credentials of the client.",
        )
        return _error(meaning, operation=operation, queue=queue, code=refused.code, text=refused.text)
    if not isinstance(error, BotoCoreError | OSError) and type(error).__name__ not in _BY_EXCEPTION:
        return None
    text = redacted(str(error) or type(error).__name__, secrets)
    meaning = _meaning_of_exception(error)
    return _error(meaning, operation=operation, queue=queue, code=type(error).__name__, text=text)


def _meaning_of_exception(error: Exception) -> _Meaning:
    names = [kind.__name__ for kind in type(error).__mro__]
    if "SSLError" in names and "certificate" in str(error).lower():
        return _ENDPOINT
    return next((_BY_EXCEPTION[name] for name in names if name in _BY_EXCEPTION), _INVALID)


def _meaning_of_status(status: int | None) -> _Meaning:
    if status is None:
        return _INVALID
    if status == 429:
        return _THROTTLED
    if status >= 500 or status == 408:
        return _TRANSIENT
    if status in {401, 403}:
        return _DENIED
    if status == 404 or 300 <= status < 400:
        return _ENDPOINT
    return _INVALID


def _error(meaning: _Meaning, *, operation: str, queue: str, code: str, text: str) -> SqsError:
    remedy = meaning.remedy.format(operation=operation)
    said = f"{code}: {text}" if code and text else code or text
    return meaning.error(
        f"{operation} on queue {queue}: {meaning.happened}. {remedy} [{said}]", queue=queue, code=code, text=text
    )
