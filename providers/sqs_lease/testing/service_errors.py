"""The real service's errors, code and text, as values for the answers of :class:`sqs_lease.testing.MemorySqs`."""

from __future__ import annotations

from dataclasses import dataclass

from sqs_lease.core.limits import MAX_BATCH_ENTRIES, MAX_VISIBILITY_SECONDS


@dataclass(frozen=True, slots=True)
class ServiceError:
    """An error as the service states it.

    Attributes:
        code: The error code as botocore shows it, e.g. ``InvalidParameterValue``.
        text: The text, for people; some codes have different meanings by it.
        status: The HTTP status of a call that fails as a whole with it.
    """

    code: str
    text: str
    status: int = 400

    @property
    def sender_fault(self) -> bool:
        """The ``SenderFault`` of a batch entry with this error: whether the request is at fault, not the service."""
        return self.status < 500


class MemorySqsError(Exception):
    """Error of a call on :class:`sqs_lease.testing.MemorySqs` that failed as a whole.

    Attributes:
        error: The service's error.
    """

    def __init__(self, error: ServiceError) -> None:
        super().__init__(f"{error.code}: {error.text}")
        self.error = error


NO_SUCH_QUEUE = ServiceError("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
MALFORMED_HANDLE = ServiceError("ReceiptHandleIsInvalid", "The input receipt handle is invalid.")
NOT_AVAILABLE = ServiceError(
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. "
    "Reason: Message does not exist or is not available for visibility timeout change.",
)
HANDLE_EXPIRED = ServiceError(
    "InvalidParameterValue",
    "Value for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
)
NOT_IN_FLIGHT = ServiceError("MessageNotInflight", "The specified message isn't in flight.")
OVER_LIMIT = ServiceError(
    "OverLimit", "Too many messages in flight: the maximum number of inflight messages is reached."
)
MISSING_BODY = ServiceError("MissingParameter", "The request must contain the parameter MessageBody.")
INVALID_CONTENTS = ServiceError(
    "InvalidMessageContents",
    "Invalid characters found. Valid unicode characters are "
    "#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF",
)
MISSING_GROUP = ServiceError("MissingParameter", "The request must contain the parameter MessageGroupId.")
MISSING_DEDUPLICATION = ServiceError(
    "InvalidParameterValue",
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
)
MESSAGE_TOO_LONG = ServiceError(
    "InvalidParameterValue",
    "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes.",
)
THROTTLED = ServiceError("RequestThrottled", "The request was denied due to request throttling.")
INTERNAL_ERROR = ServiceError("InternalError", "We encountered an internal error. Please try again.", 500)
UNAVAILABLE = ServiceError("ServiceUnavailable", "The service is unavailable. Please try again.", 503)
ACCESS_DENIED = ServiceError(
    "AccessDenied", "Access to the resource is denied: no policy allows the requested action.", 403
)
NO_SUCH_SOURCE = ServiceError(
    "ResourceNotFoundException", "The resource that you specified for the SourceArn parameter doesn't exist.", 404
)
NO_SUCH_DESTINATION = ServiceError(
    "ResourceNotFoundException", "The resource that you specified for the DestinationArn parameter doesn't exist.", 404
)
NO_DEAD_LETTER_QUEUE = ServiceError("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
MOVE_TASK_RUNNING = ServiceError(
    "InvalidParameterValue",
    "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
)
INVALID_TASK_HANDLE = ServiceError("InvalidParameterValue", "Value for parameter TaskHandle is invalid.")
NO_SUCH_TASK = ServiceError("ResourceNotFoundException", "Task does not exist.", 404)


def empty_batch(operation: str) -> ServiceError:
    """Make the error of a batch call, e.g. ``DeleteMessageBatch``, without entries."""
    return ServiceError(
        "AWS.SimpleQueueService.EmptyBatchRequest",
        f"There should be at least one {operation}RequestEntry in the request.",
    )


def too_many_entries(entries: int) -> ServiceError:
    """Make the error of a batch call with more than ten entries."""
    return ServiceError(
        "AWS.SimpleQueueService.TooManyEntriesInBatchRequest",
        f"Maximum number of entries per request are {MAX_BATCH_ENTRIES}. You have sent {entries}.",
    )


def too_many_attributes(attributes: int, most: int) -> ServiceError:
    """Make the error of a message with too many attributes of its sender."""
    return ServiceError(
        "InvalidParameterValue", f"Number of message attributes [{attributes}] exceeds the allowed maximum [{most}]."
    )


def invalid_token(parameter: str) -> ServiceError:
    """Make the error of a group id or deduplication id with forbidden characters, or too many."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value for parameter {parameter} is invalid. "
        f"Reason: {parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
    )


def beyond_total_visibility(seconds: int) -> ServiceError:
    """Make the error of an extension beyond 12 hours from the receive."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for "
        f"the message is beyond the limit [{MAX_VISIBILITY_SECONDS} seconds]",
    )


def out_of_range(parameter: str, value: int, minimum: int, maximum: int) -> ServiceError:
    """Make the error of a number outside its range."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value {value} for parameter {parameter} is invalid. "
        f"Reason: Must be between {minimum} and {maximum}, if provided.",
    )


def wrong_queue_type(parameter: str) -> ServiceError:
    """Make the error of a parameter for FIFO queues on a standard queue, or the other way round."""
    return ServiceError(
        "InvalidParameterValue",
        f"Value for parameter {parameter} is invalid. "
        "Reason: The request include parameter that is not valid for this queue type",
    )
