"""Messages that came through SNS: the envelope is taken off, and what was published is another source's message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody who writes Spark knows it
from pyspark.sql.types import StructType

from sqs_lease.spark import batch_file
from sqs_lease.spark.json_syntax import decode_object
from sqs_lease.spark.sources.attribute_columns import JSON_OPTIONS
from sqs_lease.spark.sources.source import (
    UNREADABLE,
    AroundSource,
    CheckerT,
    KeyedSource,
    KeysOf,
    NotANotificationError,
    PartsChecker,
)

MESSAGE: Final = "Message"
"""The field of the envelope that holds what was published."""

_ATTRIBUTES: Final = "MessageAttributes"
_CONFIRMATIONS: Final = {"SubscriptionConfirmation", "UnsubscribeConfirmation"}
# Of an attribute, the longest name that is used: "Amazon SNS message attributes" in the Amazon SNS Developer Guide.
_NAME_CHARACTERS: Final = 256
_ENVELOPE: Final = "_sqs_lease_envelope"
_SCHEMA: Final = f"{MESSAGE} STRING, {_ATTRIBUTES} MAP<STRING, STRUCT<Type: STRING, Value: STRING>>"


@dataclass(frozen=True)
class SnsEnvelope(AroundSource[CheckerT]):
    """SNS notifications, as a topic sends them to a queue without raw message delivery.

    The published text is handed to another source, with the attributes that were published with it. A body that is not
    a notification is rejected (with raw delivery there is no envelope: use the other source alone), and so are the
    confirmations of subscriptions. The message id and the time stay those of the queue.

    Attributes:
        source: The source of the published texts, for example ``JsonSource("id BIGINT NOT NULL")``.
    """

    @property
    def identity(self) -> str:
        """That of the other source, and that there is an envelope."""
        return f"sns; {self.source.identity}"

    @property
    def keys(self) -> KeysOf | None:
        """See :class:`.source.KeyedSource`: those of what was published."""
        keys_of = self.source.keys if isinstance(self.source, KeyedSource) else None
        return None if keys_of is None else lambda bodies: [_published_key(body, keys_of) for body in bodies]

    def prepared(self, messages: DataFrame) -> DataFrame:
        """See :class:`.source.AroundSource`: with the published text as their body, and what was published with it."""
        envelope = F.col(_ENVELOPE)
        binary = F.lit("Binary")
        # In the shape of the SQS API.
        attributes = F.transform_values(
            envelope.getField(_ATTRIBUTES),
            lambda _, its: F.struct(
                its.getField("Type").alias("DataType"),
                F.when(its.getField("Type") != binary, its.getField("Value")).alias("StringValue"),
                F.when(its.getField("Type") == binary, F.struct(its.getField("Value").alias("base64"))).alias(
                    "BinaryValue"
                ),
            ),
        )
        return (
            messages.withColumn(_ENVELOPE, F.from_json(batch_file.BODY, _SCHEMA, JSON_OPTIONS))
            .withColumns(
                {batch_file.BODY: envelope.getField(MESSAGE), batch_file.MESSAGE_ATTRIBUTES: F.to_json(attributes)}
            )
            .drop(_ENVELOPE)
        )

    def checker(self) -> PartsChecker[CheckerT]:
        """See :class:`.source.Source`."""
        return PartsChecker(self.source.checker(), lambda body: [("in the SNS message: ", unwrap(body))])

    def columns(self, messages: DataFrame, checker: PartsChecker[CheckerT]) -> StructType:
        """See :class:`.source.Source`."""
        return self.source.columns(self.prepared(messages), checker.inner)

    def parse(self, messages: DataFrame, columns: StructType) -> DataFrame:
        """See :class:`.source.Source`."""
        return self.source.parse(self.prepared(messages), columns)


def _published_key(body: str, keys_of: KeysOf) -> str | None:
    try:
        (key,) = keys_of([unwrap(body)])
    except UNREADABLE:
        return None
    return key


def is_envelope(value: Mapping[str, Any]) -> bool:
    """Whether a decoded body is what SNS sends: a notification, or one of its confirmations."""
    return isinstance(value.get("Type"), str) and "TopicArn" in value and MESSAGE in value


def unwrap(body: str) -> str:
    """Take the published text out of a body.

    Raises:
        NotANotificationError: The body is an envelope that holds none.
        sqs_lease.spark.json_syntax.NotJsonError: The body is not a JSON object.
    """
    return published(decode_object(body))


def published(value: Mapping[str, Any]) -> str:
    """Take the published text out of a decoded body; see :func:`unwrap`."""
    if not is_envelope(value):
        raise NotANotificationError(
            "not an SNS notification: where raw message delivery is on, the body is the message itself, and needs no "
            "SnsEnvelope"
        )
    kind = value["Type"]
    if kind in _CONFIRMATIONS:
        raise NotANotificationError(
            f"an SNS {kind}, which carries nothing to store: confirm the subscription, then delete the message"
        )
    if kind != "Notification" or not isinstance(value[MESSAGE], str) or not _is_plain(value):
        raise NotANotificationError("an SNS envelope of an unknown form")
    message: str = value[MESSAGE]
    return message


def _is_plain(envelope: Mapping[str, Any]) -> bool:
    """Whether an envelope holds nothing but texts, so that Spark's parser too takes it apart without exception."""
    others = {name: value for name, value in envelope.items() if name != _ATTRIBUTES}
    attributes = {} if envelope.get(_ATTRIBUTES) is None else envelope[_ATTRIBUTES]
    return (
        _are_texts(others)
        and isinstance(attributes, dict)
        and all(len(name) <= _NAME_CHARACTERS for name in attributes)
        and all(isinstance(its, dict) and _are_texts(its) for its in attributes.values())
    )


def _are_texts(fields: Mapping[str, Any]) -> bool:
    return all(
        len(name) <= _NAME_CHARACTERS and (value is None or isinstance(value, str)) for name, value in fields.items()
    )
