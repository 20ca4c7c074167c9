"""Messages as S3, SNS and EventBridge write them."""

from __future__ import annotations

import json
from typing import Any


def record(
    bucket: str,
    encoded_key: str,
    *,
    version_id: str | None = None,
    event: str = "ObjectCreated:Put",
    source: str = "aws:s3",
) -> dict[str, Any]:
    """One of the records that S3 sends itself."""
    version = {} if version_id is None else {"versionId": version_id}
    return {
        "eventVersion": "2.1",
        "eventSource": source,
        "awsRegion": "us-east-1",
        "eventTime": "2026-01-02T03:04:05.000Z",
        "eventName": event,
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "to-queue",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {"key": encoded_key, "size": 1024, "eTag": "d41d8cd9", "sequencer": "0055AED6", **version},
        },
    }


def direct(*records: dict[str, Any]) -> str:
    """Write a notification as S3 sends it to a queue."""
    return json.dumps({"Records": records})


def event_bridge(bucket: str, key: str, *, version_id: str | None = None, event: str = "Object Created") -> str:
    """Write a notification as EventBridge sends it to a queue."""
    version = {} if version_id is None else {"version-id": version_id}
    return json.dumps(
        {
            "version": "0",
            "id": "17793124-05d4-b198-2fde-7ededc63b103",
            "detail-type": event,
            "source": "aws.s3",
            "account": "111122223333",
            "time": "2026-01-02T03:04:05Z",
            "region": "us-east-1",
            "resources": [f"arn:aws:s3:::{bucket}"],
            "detail": {
                "version": "0",
                "bucket": {"name": bucket},
                "object": {"key": key, "size": 1024, "etag": "d41d8cd9", "sequencer": "0055AED6", **version},
                "reason": "PutObject",
            },
        }
    )


def in_sns(message: str, attributes: dict[str, Any] | None = None, *, kind: str = "Notification") -> str:
    """Wrap a message as SNS sends it to a queue without raw message delivery."""
    return json.dumps(
        {
            "Type": kind,
            "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
            "TopicArn": "arn:aws:sns:us-east-1:123456789012:uploads",
            "Subject": "Amazon S3 Notification",
            "Message": message,
            "Timestamp": "2026-01-02T03:04:05.000Z",
            "SignatureVersion": "1",
            "Signature": "EXAMPLEw6JRN...",
            "SigningCertURL": "https://sns.us-east-1.amazonaws.com/SimpleNotificationService.pem",
            "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
            **({} if attributes is None else {"MessageAttributes": attributes}),
        }
    )
