"""The scheme ``sqs+lease``: makes ``MessageQueueTrigger(scheme="sqs+lease", ...)`` a :class:`SqsLeaseTrigger`.

Only Airflow's common-messaging provider loads this module; the rest of the package does not need that provider.
"""

from __future__ import annotations

from typing import Final

from airflow.sdk.exceptions import AirflowOptionalProviderFeatureException

from sqs_lease.airflow.triggers.watch import SqsLeaseTrigger

try:
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
except ImportError as error:
    # Airflow loads this module for the provider's metadata, and skips it silently on this exception.
    raise AirflowOptionalProviderFeatureException(
        "the scheme 'sqs+lease' of MessageQueueTrigger needs apache-airflow-providers-common-messaging"
    ) from error

SCHEME: Final = "sqs+lease"


class SqsLeaseMessageQueueProvider(BaseMessageQueueProvider):
    """The scheme ``sqs+lease``; its arguments are those of the trigger."""

    scheme = SCHEME

    def trigger_class(self) -> type[SqsLeaseTrigger]:
        """Return the trigger's class."""
        return SqsLeaseTrigger
