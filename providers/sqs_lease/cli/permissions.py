"""The AWS calls of each use of this package: recorded from the code, as data.

`tests/cli/test_permissions.py` runs the code with a recorder between it and the servers. It fails when the
code makes a call that is not here, and when a call is here that the code does not make. :data:`IMPLIED` and
:func:`key_actions` have the permissions that AWS requires beyond the calls themselves, by its documentation.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TypeAlias


class Place(StrEnum):
    """The kind of resource that a permission is for."""

    QUEUE = "queue"
    DEAD_LETTERS = "dead-letter queue"
    FILES = "files"
    """Batches on S3: ``payload=`` in Airflow, ``stored_batch()`` in Dagster, and the files of a job."""
    OBJECTS = "objects"
    """The objects that messages about S3 objects name."""


Needs: TypeAlias = Mapping[Place, frozenset[str]]

LEASE: Final = frozenset(
    {
        "sqs:ChangeMessageVisibility",
        "sqs:DeleteMessage",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ReceiveMessage",
    }
)
DEAD_LETTER: Final = frozenset({"sqs:SendMessage"})
FILES: Final = frozenset({"s3:DeleteObject", "s3:GetObject", "s3:PutObject"})

RECORDED: Final[Mapping[str, Needs]] = {
    # `lease` and `async_lease`, with on_failure=dead_letter().
    "lease": {Place.QUEUE: LEASE, Place.DEAD_LETTERS: DEAD_LETTER},
    # Sensors, triggers, keepers; payload=.
    "airflow": {Place.QUEUE: LEASE, Place.DEAD_LETTERS: DEAD_LETTER, Place.FILES: FILES},
    # Leases, sensors and checks, which count dead letters; stored_batch().
    "dagster": {
        Place.QUEUE: LEASE,
        Place.DEAD_LETTERS: DEAD_LETTER | {"sqs:GetQueueAttributes", "sqs:GetQueueUrl"},
        Place.FILES: FILES,
    },
    # The job: its submitter extends and settles the leases.
    "spark": {
        Place.FILES: frozenset({"s3:GetObject", "s3:PutObject"}),
        Place.OBJECTS: frozenset({"s3:GetObject", "s3:GetObjectVersion"}),
    },
    # `sqs-lease redrive`; SQS itself sends and deletes, see IMPLIED.
    "redrive": {
        Place.QUEUE: frozenset({"sqs:GetQueueAttributes", "sqs:GetQueueUrl"}),
        Place.DEAD_LETTERS: frozenset(
            {
                "sqs:CancelMessageMoveTask",
                "sqs:GetQueueAttributes",
                "sqs:GetQueueUrl",
                "sqs:ListDeadLetterSourceQueues",
                "sqs:ListMessageMoveTasks",
                "sqs:StartMessageMoveTask",
            }
        ),
    },
}

CLEAN_SOURCE: Final[Mapping[str, frozenset[str]]] = {
    "delete": frozenset({"s3:DeleteObject", "s3:DeleteObjectVersion"}),
    "tag": frozenset(
        {
            "s3:GetObjectTagging",
            "s3:GetObjectVersionTagging",
            "s3:PutObjectTagging",
            "s3:PutObjectVersionTagging",
        }
    ),
}
"""The calls of S3EventsSource's `clean_source` for objects, besides reads: recorded, too."""

VERIFY: Final = frozenset(
    {
        "sqs:CancelMessageMoveTask",
        "sqs:ChangeMessageVisibility",
        "sqs:CreateQueue",
        "sqs:DeleteMessage",
        "sqs:DeleteQueue",
        "sqs:GetQueueAttributes",
        "sqs:GetQueueUrl",
        "sqs:ListDeadLetterSourceQueues",
        "sqs:ListMessageMoveTasks",
        "sqs:ReceiveMessage",
        "sqs:SendMessage",
        "sqs:StartMessageMoveTask",
    }
)
"""The calls of `sqs-lease verify` on the queues that it makes: recorded, too. To tag them, AWS requires TagQueue."""

VERIFY_ANYWHERE: Final = frozenset({"sqs:ListQueues"})
"""Its calls that are not about one queue: they find the queues that an earlier run left."""

IMPLIED: Final[Mapping[str, Needs]] = {
    # SQS moves messages with the caller's permissions (StartMessageMoveTask, in the SQS Developer Guide).
    "sqs:StartMessageMoveTask": {
        Place.DEAD_LETTERS: frozenset({"sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"}),
        Place.QUEUE: frozenset({"sqs:SendMessage"}),
    },
}


def needs_of(uses: frozenset[str]) -> Needs:
    """Return the permissions of several uses together, implied ones included.

    Args:
        uses: Keys of :data:`RECORDED`.
    """
    needed: dict[Place, frozenset[str]] = {}
    for use in uses:
        for place, actions in RECORDED[use].items():
            needed[place] = needed.get(place, frozenset()) | actions
    for implying, more in IMPLIED.items():
        if any(implying in actions for actions in list(needed.values())):
            for place, actions in more.items():
                needed[place] = needed.get(place, frozenset()) | actions
    return needed


def key_actions(actions: frozenset[str]) -> frozenset[str]:
    """Return the actions that calls on a queue need on its KMS key, by AWS's documentation.

    Args:
        actions: The SQS actions.
    """
    needed = set()
    if "sqs:ReceiveMessage" in actions:
        needed.add("kms:Decrypt")
    if "sqs:SendMessage" in actions:
        needed |= {"kms:Decrypt", "kms:GenerateDataKey"}
    return frozenset(needed)
