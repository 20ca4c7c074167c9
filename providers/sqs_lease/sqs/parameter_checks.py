"""botocore's checks of a call's parameters, left out for the three calls that a transport makes all the time.

botocore looks at each value of each call: 7 % of the processor time of a call with ten receipts. A client can only be
made with these checks for all calls or for none. The clients made here are made without them, and check by a handler
of events instead. A transport leaves them out for the calls that it builds itself, from values that it checked or got
from SQS (:mod:`sqs_lease.sqs.validation`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from botocore import validate

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

UNCHECKED: Final = frozenset({"ReceiveMessage", "ChangeMessageVisibilityBatch", "DeleteMessageBatch"})
"""The calls of a transport that are not checked again."""

_EVENT: Final = "before-parameter-build.sqs"
_ID: Final = "sqs-lease-parameters"


def check_all_calls(client: SQSClient) -> None:
    """Let a client that was made with ``parameter_validation=False`` check its calls as any other client does."""
    client.meta.events.register_last(_EVENT, _check, unique_id=_ID)


def check_rare_calls(client: SQSClient) -> None:
    """Let a client of a transport check all calls but :data:`UNCHECKED`.

    A client that was not made here goes on checking those, too, unless it was made without checks.
    """
    client.meta.events.unregister(_EVENT, _check, unique_id=_ID)
    client.meta.events.register_last(_EVENT, _check_rare, unique_id=_ID)


def _check(params: Any, model: Any, **_: Any) -> None:
    if model.input_shape is not None:
        validate.validate_parameters(params, model.input_shape)


def _check_rare(params: Any, model: Any, **_: Any) -> None:
    if model.name not in UNCHECKED:
        _check(params, model)
