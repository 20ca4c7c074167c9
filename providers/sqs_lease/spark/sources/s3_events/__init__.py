"""S3 notifications: parsing them, reading their objects, and the source that makes records of the objects."""

from sqs_lease.spark.sources.s3_events.events_source import S3EventsSource
from sqs_lease.spark.sources.s3_events.extended_client import ExtendedClientSource
from sqs_lease.spark.sources.s3_events.object_rows import S3Read

__all__ = ["ExtendedClientSource", "S3EventsSource", "S3Read"]
