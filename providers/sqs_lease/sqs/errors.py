"""What can go wrong with a call to SQS, as exceptions that name the queue and the remedy.

Three kinds differ in what may be done next. :class:`UnavailableError` and :class:`ThrottledError`: the call was not
carried out and may be repeated, whatever it was. :class:`TransientError`: nobody knows whether it was carried out.
All others: SQS refuses the call, and will refuse it again.
"""

from __future__ import annotations

from typing import ClassVar, Self

from sqs_lease.core.calls import Verdict


class SqsError(Exception):
    """A call to SQS failed. The text names the queue, what happened and the remedy.

    Attributes:
        verdict: What the failure means for each lease of the call.
        queue: The queue: its URL, or what the caller gave for it.
        code: The service's error code without prefixes, e.g. ``QueueDoesNotExist``; the exception's name
            where no answer came.
        text: The service's own text, without receipt handles and bodies.
        remedy: What of the error's text says what to do; empty if that is not known by itself.
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
            remedy: What to do, in whole sentences.
        """
        said = str(self)
        message = said.replace(self.remedy, remedy) if self.remedy else f"{said} {remedy}"
        return type(self)(message, queue=self.queue, code=self.code, text=self.text, remedy=remedy)


class QueueNotFoundError(SqsError):
    """The queue does not exist in the client's region and account, or the caller may not see it."""


class AccessDeniedError(SqsError):
    """IAM, the queue's policy or the encryption key's policy denies the call."""


class ConfigurationError(SqsError):
    """The AWS configuration lacks something or cannot be used: no region, an unknown profile, an unusable file."""


class CredentialsError(SqsError):
    """The credentials are missing, incomplete or unknown, or the signature was refused."""


class EncryptionKeyError(SqsError):
    """The KMS key that encrypts the queue cannot be used."""


class WrongRegionError(SqsError):
    """The queue is in another region than the one the client calls."""


class EndpointError(SqsError):
    """The endpoint is misconfigured: its URL cannot be used, or its certificate is not trusted."""


class InvalidRequestError(SqsError):
    """The service (or the client, before sending) refused the request as malformed or not allowed in this state."""


class OverLimitError(SqsError):
    """Too many messages of the queue are in flight: nothing can be received before some are settled."""

    verdict = Verdict.THROTTLED


class ThrottledError(SqsError):
    """Too many requests. The call was not carried out: try again, more slowly."""

    verdict = Verdict.THROTTLED


class UnavailableError(SqsError):
    """The service was not available. The call was not carried out: try again, even a release."""

    verdict = Verdict.UNAVAILABLE


class EndpointUnreachableError(UnavailableError):
    """No connection to the endpoint: the network is down, or the region, endpoint URL or proxy is wrong."""


class CredentialsUnavailableError(UnavailableError, CredentialsError):
    """The credentials have expired or cannot be fetched right now. A refresh may mend that, so try again."""


class TransientError(SqsError):
    """The answer was lost, or the service failed while it worked on the call.

    The call may or may not have been carried out. Try again, but never repeat a release at once.
    """

    verdict = Verdict.TRANSIENT


class ForeignAnswerError(TransientError, EndpointError):
    """What came back is not SQS's: a page of a proxy, a redirect to a login, the answer of another service.

    One such page may pass, so calls are made again while there is time. If it persists, the client's endpoint URL or
    proxy is wrong, or the network asks for a login. What sent the page may have passed the call on to SQS all the same.
    """
