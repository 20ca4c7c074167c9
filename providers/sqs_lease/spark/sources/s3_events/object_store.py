"""Fetches objects from S3, and tells an object that cannot be had from a service that does not answer."""

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

_CONNECT_SECONDS = 10
_READ_SECONDS = 60
_REQUEST_TRIES = 5
_TRANSFER_TRIES = 3
_CHUNK_BYTES = 1024 * 1024

# Of GetObject, in the Amazon S3 API Reference ("Error responses"). Whatever S3 refuses (3xx, 4xx) is for the object
# that was asked for: it is missing, archived, in another region, encrypted with a key that was not sent;
# its key is too long.
# The exceptions are for every request: credentials that are wrong or have expired, the clock, and too many requests.
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
# Where an answer does not come with its status.
_OF_THE_OBJECT: Final = frozenset(
    {
        *("NoSuchKey", "NoSuchBucket", "NoSuchVersion", "InvalidBucketName", "InvalidArgument", "404"),
        *("AccessDenied", "AllAccessDisabled", "403"),
        # Archived, and a delete marker.
        *("InvalidObjectState", "MethodNotAllowed", "405"),
    }
)
_OF_ITS_KEY: Final = "KMS."
# Access points, and directory buckets: the name says which server is asked, and there may be none.
_ELSEWHERE: Final = re.compile(r"^arn:|--x-s3$")


class ObjectUnavailableError(ValueError):
    """The object cannot be had: it is missing, archived, or not allowed to be read. The text says which it is."""


class ObjectStoreError(IngestionError):
    """S3 did not give an object that may well be there: nothing of the batch is stored, and it can be tried again."""


@dataclass(frozen=True)
class ObjectStore:
    """S3, with the credentials of the environment that it is used in.

    Attributes:
        connections: How many objects are fetched at the same time.
        endpoint_url: Another server that speaks S3; None for AWS, or what the environment says.
        region: The region; None for what the environment says.
    """

    connections: int
    endpoint_url: str | None = None
    region: str | None = None

    @cached_property
    def client(self) -> Any:
        """The client, which threads may share."""
        # Each task has a store of its own, in processes that live on: they read the description of S3 once.
        return boto3_session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            region_name=self.region,
            config=Config(
                max_pool_connections=self.connections,
                connect_timeout=_CONNECT_SECONDS,
                read_timeout=_READ_SECONDS,
                retries={"mode": "standard", "max_attempts": _REQUEST_TRIES},
            ),
        )

    def fetch(self, wanted: S3Object, file: SpooledFile, allowance: Allowance) -> int:
        """Write an object to a file, and say how many bytes it has. They are counted before they are written.

        Raises:
            ObjectUnavailableError: It cannot be had.
            ObjectStoreError: S3 did not answer, after several tries.
            OverAllowanceError, SpoolFullError: It costs more than it may.
        """
        for attempt in range(1, _TRANSFER_TRIES + 1):
            file.empty()
            answer = self._answer(wanted)
            with answer["Body"] as body:
                # Before a byte of it comes.
                allowance.require_fetchable(answer.get("ContentLength") or 0)
                try:
                    while chunk := body.read(_CHUNK_BYTES):
                        allowance.fetch(len(chunk))
                        file.write(chunk)
                    return file.tell()
                except BotoCoreError as error:
                    # The client tries requests again by itself, but not what breaks off while it is read.
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
            raise ObjectUnavailableError("no bucket can have this name, or no object this key") from None
        except BotoCoreError as error:
            if _ELSEWHERE.search(wanted.bucket):
                raise ObjectUnavailableError(f"its bucket cannot be reached ({type(error).__name__})") from None
            raise self._failure(wanted, type(error).__name__) from error

    def _failure(self, wanted: S3Object, what: str) -> ObjectStoreError:
        return ObjectStoreError(
            f"S3 did not give {wanted} ({what}), so nothing of this batch is stored and all of it can be tried again: "
            "see that the executors reach S3, and have credentials for it"
        )


def code_of(error: ClientError) -> str:
    """What S3 calls an error."""
    code: str = error.response.get("Error", {}).get("Code", "")
    return code


def is_of_the_object(error: ClientError) -> bool:
    """Whether S3 refuses this object, rather than every request."""
    code, status = code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code in _OF_EVERY_REQUEST or code.startswith(f"{_OF_ITS_KEY}Throttling"):
        return False
    return code in _OF_THE_OBJECT or code.startswith(_OF_ITS_KEY) or status in _REFUSALS
