"""The provider metadata: the package's entry in ``airflow providers list``, and its options.

Airflow imports this module while it reads its configuration, so it imports nothing of Airflow.

The plugin is not among the metadata. Airflow loads the metadata's plugins only where ``[core] lazy_discover_providers``
is switched off, which is not the default. The entry point ``airflow.plugins`` loads it everywhere. With both, Airflow
3.3.2 shows an import error ("already registered"), and its task processes load no plugin of a later provider.
"""

from __future__ import annotations

from typing import Any, Final

CONFIG_SECTION: Final = "sqs_lease"
REPORT_FAILURES_OPTION: Final = "report_failures"

PAYLOAD_OPTION: Final = "payload"
"""Where batches are stored that are too large for XCom."""


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
                            "Whether a task process reports to the keeper at once that its work on messages failed for "
                            "good, and by which exception. Without the report, the keeper knows only the tasks' "
                            "states: failed messages are visible again after up to six seconds instead of one, rules "
                            "by exception and MessageFailed have no effect, and work that had not begun when its run "
                            "was marked counts as skipped by the DAG. Workers and triggerers need the same value."
                        ),
                        "version_added": None,
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                    PAYLOAD_OPTION: {
                        "description": (
                            "Where batches are stored that are too large for XCom: more than 2 000 messages or 16 MiB. "
                            "A URI or an absolute path that workers and triggerers share; payload= of a sensor "
                            "overrides it. If unset, such batches are refused, or end at that size."
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
                "python-modules": ["sqs_lease.airflow.operators", "sqs_lease.airflow.spark_operator"],
            }
        ],
        "queues": ["sqs_lease.airflow.triggers.message_queue.SqsLeaseMessageQueueProvider"],
        "sensors": [{"integration-name": integration, "python-modules": ["sqs_lease.airflow.sensor"]}],
        "triggers": [
            {
                "integration-name": integration,
                "python-modules": [
                    "sqs_lease.airflow.triggers.watch",
                    "sqs_lease.airflow.triggers.keep",
                    "sqs_lease.airflow.triggers.receive",
                ],
            }
        ],
    }
