"""Errors of calls to SQS, as exceptions that name the queue and the remedy.

There are three kinds. After :class:`UnavailableError` and :class:`ThrottledError` the call was not carried out, and any
call may be repeated. After :class:`TransientError` the call may or may not have been carried out. With all others SQS
refuses the call, and will refuse it again.
"""

from __future__ import annotations

from typing import ClassVar, Self

from sqs_lease.core.calls import Verdict


class SqsError(Exception):
    """The failure of a call to SQS. The text names the queue, the problem and the remedy.

    Attributes:
        verdict: The meaning of the failure for each lease of the call.
        queue: The queue: its URL, or the caller's reference to it.
        code: The service's error code without prefixes, e.g. ``QueueDoesNotExist``; the exception's name if no answer
            came.
        text: The service's own text, without receipt handles and bodies.
        remedy: The part of the error's text that says what to do; empty if it has no such part.
    """

    verdict: ClassVar[Verdict] = Verdict.REFUSED

    def __init__(self, message: str, *, queue: str = "", code: str = "", text: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.queue = queue
        self.code = code
        self.text = text
        self.remedy = remedy

    def with_remedy(self, remedy: str) -> Self:
        """Return the same error with another remedy, such as one in the words of an orchestrator.

        Args:
            remedy: The remedy, in whole sentences.
        """
        said = str(self)
        message = said.replace(self.remedy, remedy) if self.remedy else f"{said} {remedy}"
        return type(self)(message, queue=self.queue, code=self.code, text=self.text, remedy=remedy)


class QueueNotFoundError(SqsError):
    """An error: the queue does not exist in the client's region and account, or the caller may not see it."""


class AccessDeniedError(SqsError):
    """An error: IAM, the queue's policy or the encryption key's policy denies the call."""


class ConfigurationError(SqsError):
    """An error: the AWS configuration is incomplete or unusable: no region, an unknown profile, an unusable file."""


class CredentialsError(SqsError):
    """An error: the credentials are missing, incomplete or unknown, or the signature was refused."""


class EncryptionKeyError(SqsError):
    """An error: the KMS key that encrypts the queue cannot be used."""


class WrongRegionError(SqsError):
    """An error: the queue is in another region than the one the client calls."""


class EndpointError(SqsError):
    """An error: the endpoint is misconfigured. Its URL cannot be used, or its certificate is not trusted."""


class InvalidRequestError(SqsError):
    """An error: the service, or the client before sending, refused the request as malformed or not allowed now."""


class OverLimitError(SqsError):
    """An error: too many messages of the queue are in flight; no more can be received before some are settled."""

    verdict = Verdict.THROTTLED


class ThrottledError(SqsError):
    """An error: there were too many requests. The call was not carried out: try again, more slowly."""

    verdict = Verdict.THROTTLED


class UnavailableError(SqsError):
    """An error: the service was not available. The call was not carried out: try again, even a release."""

    verdict = Verdict.UNAVAILABLE


class EndpointUnreachableError(UnavailableError):
    """An error: no connection to the endpoint. The network is down, or the region, endpoint URL or proxy is wrong."""


class CredentialsUnavailableError(UnavailableError, CredentialsError):
    """An error: the credentials have expired or cannot be fetched right now. A refresh may help, so try again."""


class TransientError(SqsError):
    """An error: the answer was lost, or the service failed while it worked on the call.

    The call may or may not have been carried out. Try again, but never repeat a release at once.
    """

    verdict = Verdict.TRANSIENT


class ForeignAnswerError(TransientError, EndpointError):
    """An answer that is not SQS's: a page of a proxy, a redirect to a login, the answer of another service.

    Such an answer may be temporary, so calls are made again while there is time. If it persists, the client's endpoint
    URL or proxy is wrong, or the network asks for a login. The sender of the answer may still have passed the call on
    to SQS.
    """
