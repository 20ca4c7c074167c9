"""Spark: batches of messages into tables, each message exactly once."""
