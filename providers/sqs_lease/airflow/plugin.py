"""The Airflow plugin of this package, found by the entry point ``airflow.plugins`` in every process of Airflow.

The base install may be beside an older Airflow, where only ``lease`` within a task works. Its processes load the entry
point, too, and get an empty plugin: one that cannot be imported would put an error into each of their logs.
"""

from __future__ import annotations

from sqs_lease.airflow.airflow_api.release import is_supported

if is_supported():
    from airflow.sdk.plugins_manager import AirflowPlugin

    from sqs_lease.airflow import failures
    from sqs_lease.airflow.page.site import NAVIGATION_VIEW, RUN_VIEW, URL_PREFIX, LeasesSite

    class SqsLeasePlugin(AirflowPlugin):
        """The listener that reports failed work to its keeper, and the page *SQS leases*."""

        # Lists, because Airflow declares them so.
        name = "sqs_lease"
        listeners = [failures]  # noqa: RUF012
        fastapi_apps = [{"app": LeasesSite(), "url_prefix": URL_PREFIX, "name": "SQS leases"}]  # noqa: RUF012
        external_views = [NAVIGATION_VIEW, RUN_VIEW]  # noqa: RUF012

else:
    from airflow.plugins_manager import AirflowPlugin as OlderAirflowPlugin

    class SqsLeasePlugin(OlderAirflowPlugin):  # type: ignore[no-redef]
        """An empty plugin."""

        name = "sqs_lease"
