"""What can go wrong with a call on SQS, as exceptions that name the queue and say what to do."""

from __future__ import annotations

from typing import ClassVar

from sqs_lease.core.calls import Verdict


class SqsError(Exception):
    """A call on SQS failed. Its text names the queue, what happened and the remedy.

    Attributes:
        verdict: What the failure means for each lease that the call concerned.
        queue: The queue: its URL, or what the caller gave for it.
        code: The service's error code without prefixes, e.g. ``QueueDoesNotExist``; the exception's name
            where no answer came.
        text: The service's own text, without receipt handles and bodies.
    """

    verdict: ClassVar[Verdict] = Verdict.REFUSED

    def __init__(self, message: str, *, queue: str = "", code: str = "", text: str = "") -> None:
        super().__init__(message)
        self.queue = queue
        self.code = code
        self.text = text


class QueueNotFoundError(SqsError):
    """There is no such queue in the client's region and account, or the caller may not know of it."""


class AccessDeniedError(SqsError):
    """The caller may not do this: IAM, the queue's policy, or the encryption key's policy."""


class CredentialsError(SqsError):
    """The credentials are missing, expired, unknown, or the signature was refused."""


class EncryptionKeyError(SqsError):
    """The KMS key that the queue is encrypted with cannot be used."""


class WrongRegionError(SqsError):
    """The queue is in another region than the one the client calls."""


class EndpointError(SqsError):
    """The endpoint is misconfigured: its certificate is not trusted, or what answers there is not SQS."""


class InvalidRequestError(SqsError):
    """The service (or the client, before sending) refused the request as malformed or not allowed in this state."""


class OverLimitError(SqsError):
    """Too many messages of the queue are in flight: nothing can be received before some are settled."""

    verdict = Verdict.THROTTLED


class ThrottledError(SqsError):
    """Too many requests: try again, more slowly."""

    verdict = Verdict.THROTTLED


class TransientError(SqsError):
    """No answer, or an error on the way: the call may or may not have been carried out. Try again."""

    verdict = Verdict.TRANSIENT


class EndpointUnreachableError(TransientError):
    """No connection to the endpoint: the network is down, or the region or endpoint URL is wrong."""
