"""What Airflow shows of this package among its providers (``airflow providers list``)."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from sqs_lease.airflow.options import CONFIG_SECTION, PAYLOAD_OPTION, REPORT_FAILURES_OPTION


def get_provider_info() -> dict[str, Any]:
    """Return the provider's metadata; Airflow finds this function by the entry point ``apache_airflow_provider``."""
    integration = "Amazon SQS leases"
    return {
        "package-name": "sqs-lease",
        "name": "SQS Lease",
        "description": (
            "Receive from Amazon SQS, keep the messages invisible while the DAG works on them, "
            "delete them on success and give them back on failure."
        ),
        "versions": [version("sqs-lease")],
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/",
                "tags": ["service"],
            }
        ],
        "extra-links": ["sqs_lease.airflow.links.SqsQueueLink"],
        "config": {
            CONFIG_SECTION: {
                "description": "Leases of Amazon SQS messages.",
                "options": {
                    REPORT_FAILURES_OPTION: {
                        "description": (
                            "Whether a task process whose work on messages failed for good tells the keeper of the "
                            "messages at once, and by which exception. Without it, failed messages are visible again "
                            "after up to six seconds instead of one, rules by exception and MessageFailed have no "
                            "effect, and nothing but the tasks' states counts. Workers and triggerers need the same "
                            "value."
                        ),
                        "version_added": None,
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                    PAYLOAD_OPTION: {
                        "description": (
                            "Where batches are stored that are too large for XCom: more than 2 000 messages or 16 MiB. "
                            "A URI or an absolute path that workers and triggerers share; payload= of a sensor goes "
                            "before it. Without it such batches are refused, or end at that size."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "s3://aws_default@bucket/leases",
                        "default": None,
                    },
                },
            }
        },
        "operators": [
            {
                "integration-name": integration,
                "python-modules": [
                    "sqs_lease.airflow.events.operator",
                    "sqs_lease.airflow.keeper_operator",
                    "sqs_lease.airflow.redrive",
                    "sqs_lease.airflow.spark_operator",
                ],
            }
        ],
        "queues": ["sqs_lease.airflow.events.message_queue.SqsLeaseMessageQueueProvider"],
        "sensors": [
            {
                "integration-name": integration,
                "python-modules": ["sqs_lease.airflow.queue_depth", "sqs_lease.airflow.sensor"],
            }
        ],
        "triggers": [
            {
                "integration-name": integration,
                "python-modules": [
                    "sqs_lease.airflow.events.trigger",
                    "sqs_lease.airflow.keeping.trigger",
                    "sqs_lease.airflow.queue_depth",
                    "sqs_lease.airflow.receiving.trigger",
                    "sqs_lease.airflow.redrive",
                ],
            }
        ],
    }
