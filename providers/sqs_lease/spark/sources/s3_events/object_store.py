"""Access to objects in S3, which tells an object that cannot be read from a service that does not answer.

The difference decides what happens: the first rejects the message of the object, and the second ends the ingestion, so
that the batch is tried again. Objects are read by boto3 on the executors: it reads versions and needs no jars, whatever
the cluster is. The price is that each executor needs this package and credentials.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from sqs_lease.spark.errors import IngestionError
from sqs_lease.spark.sources.s3_events.allowance import Allowance, SpooledFile
from sqs_lease.spark.sources.s3_events.notification import S3Object
from sqs_lease.sqs.boto3_sessions import boto3_session
from sqs_lease.version import USER_AGENT

_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_REQUEST_TRIES = 5
_TRANSFER_TRIES = 3
_CHUNK_BYTES = 1024 * 1024

# The errors of GetObject, from the Amazon S3 API Reference ("Error responses"). If S3 refuses a request (3xx, 4xx), the
# cause is in the object: it is missing, archived, in another region, encrypted with a key that was not sent, or its key
# is too long. The exceptions below concern every request: wrong or expired credentials, the clock, too many requests.
_REFUSALS: Final = range(300, 500)
_OF_EVERY_REQUEST: Final = frozenset(
    {
        *("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired", "MissingSecurityHeader"),
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidSecurity", "NotSignedUp", "AccountProblem"),
        *("RequestTimeTooSkewed", "RequestExpired", "RequestTimeout", "RequestTimeoutException"),
        *("SlowDown", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
        *("RequestThrottledException", "TooManyRequestsException", "RequestLimitExceeded", "BandwidthLimitExceeded"),
        *("LimitExceededException", "OperationAborted", "408", "429"),
    }
)
# The errors of an object, for answers without a status.
_OF_THE_OBJECT: Final = frozenset(
    {
        *("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "InvalidBucketName", "InvalidArgument", "404"),
        *("AccessDenied", "AllAccessDisabled", "403"),
        # An archived object, and a delete marker.
        *("InvalidObjectState", "MethodNotAllowed", "405"),
    }
)
_OF_ITS_KEY: Final = "KMS."
# Access points and directory buckets: the name decides which server is asked, and that server may not exist.
_ELSEWHERE: Final = re.compile(r"^arn:|--x-s3$")


class ObjectUnavailableError(ValueError):
    """The object cannot be read: it is missing, archived, or access is denied. The text says which."""


class ObjectStoreError(IngestionError):
    """S3 did not return an object that may exist: nothing of the batch is stored, and it can be tried again."""


@dataclass(frozen=True)
class ObjectStore:
    """S3, with the credentials of the environment.

    Attributes:
        connections: The number of objects that are fetched at the same time.
        endpoint_url: Another server with the S3 API; None for AWS, or for the one that the environment sets.
        region: The region; None for the one that the environment sets.
    """

    connections: int
    endpoint_url: str | None = None
    region: str | None = None

    @cached_property
    def client(self) -> Any:
        """The client. Threads may share it."""
        # Each task makes a client, in processes that live on; their sessions share a loader, so the process parses the
        # description of S3 once.
        return boto3_session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            config=Config(
                max_pool_connections=self.connections,
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                retries={"mode": "standard", "max_attempts": _REQUEST_TRIES},
                user_agent_extra=USER_AGENT,
            ),
        )

    def fetch(self, wanted: S3Object, file: SpooledFile, allowance: Allowance) -> int:
        """Write an object to a file, and return its size in bytes. Bytes are counted before they are written.

        Raises:
            ObjectUnavailableError: The object cannot be read.
            ObjectStoreError: S3 did not answer, after several tries.
            OverAllowanceError, SpoolFullError: The message is over one of its limits.
        """
        for attempt in range(1, _TRANSFER_TRIES + 1):
            file.empty()
            answer = self._answer(wanted)
            with answer["Body"] as body:
                # Checked before a byte is read.
                allowance.require_fetchable(answer.get("ContentLength") or 0)
                try:
                    while chunk := body.read(_CHUNK_BYTES):
                        allowance.fetch(len(chunk))
                        file.write(chunk)
                    return file.tell()
                except BotoCoreError as error:
                    # The client repeats requests by itself, but not a transfer that breaks off while it is read.
                    if attempt == _TRANSFER_TRIES:
                        raise self._failure(wanted, type(error).__name__) from error
        raise AssertionError("unreachable")

    def _answer(self, wanted: S3Object) -> Any:
        version = {"VersionId": wanted.version_id} if wanted.version_id else {}
        try:
            return self.client.get_object(Bucket=wanted.bucket, Key=wanted.key, **version)
        except ClientError as error:
            if is_of_the_object(error):
                raise ObjectUnavailableError(code_of(error)) from None
            raise self._failure(wanted, code_of(error)) from error
        except ParamValidationError:
            raise ObjectUnavailableError("the name of the bucket, or the key, is not allowed") from None
        except BotoCoreError as error:
            if _ELSEWHERE.search(wanted.bucket):
                raise ObjectUnavailableError(f"its bucket cannot be reached ({type(error).__name__})") from None
            raise self._failure(wanted, type(error).__name__) from error

    def _failure(self, wanted: S3Object, what: str) -> ObjectStoreError:
        return ObjectStoreError(
            f"S3 did not return {wanted} ({what}), so nothing of this batch is stored and it can be tried again: check "
            "that the executors reach S3, and have credentials for it"
        )


def code_of(error: ClientError) -> str:
    """Return S3's code of an error."""
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def is_of_the_object(error: ClientError) -> bool:
    """Whether S3 refuses this object, and not every request."""
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in _OF_EVERY_REQUEST or code.startswith(f"{_OF_ITS_KEY}Throttling"):
        return False
    return code in _OF_THE_OBJECT or code.startswith(_OF_ITS_KEY) or status in _REFUSALS
