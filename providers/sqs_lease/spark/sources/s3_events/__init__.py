"""S3 notifications: what they say, how the objects are read, and the source that makes records of them."""

from sqs_lease.spark.sources.s3_events.events_source import S3EventsSource, S3Read
from sqs_lease.spark.sources.s3_events.listing import ListedObjects, listed_objects

__all__ = ["ListedObjects", "S3EventsSource", "S3Read", "listed_objects"]
