"""S3 notifications: what they say, how the objects are read, and the source that makes records of them."""

from sqs_lease.spark.sources.s3_events.events_source import S3EventsSource
from sqs_lease.spark.sources.s3_events.extended_client import ExtendedClientSource
from sqs_lease.spark.sources.s3_events.object_rows import S3Read

__all__ = ["ExtendedClientSource", "S3EventsSource", "S3Read"]
