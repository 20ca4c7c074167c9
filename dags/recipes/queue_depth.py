"""Waits for a queue: until it has few messages, and until the oldest one is young. They do not receive."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
from airflow.sdk import dag, task

COUNTED = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


@dag(schedule=None, max_active_runs=1)
def orders_reported() -> None:
    """Report when the queue was worked off."""

    @task.sensor(mode="reschedule", poke_interval=60, timeout=3600)
    def few() -> bool:
        sqs = boto3.client("sqs")
        url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
        counts: Any = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return sum(int(counts[name]) for name in COUNTED) <= 100

    @task.sensor(mode="reschedule", poke_interval=60, timeout=3600)
    def young() -> bool:
        now = datetime.now(UTC)
        ages = boto3.client("cloudwatch").get_metric_statistics(
            Namespace="AWS/SQS",
            MetricName="ApproximateAgeOfOldestMessage",
            Dimensions=[{"Name": "QueueName", "Value": "orders"}],
            StartTime=now - timedelta(minutes=15),
            EndTime=now,
            Period=60,
            Statistics=["Maximum"],
        )["Datapoints"]
        newest = max(ages, key=lambda age: age["Timestamp"], default=None)
        return newest is not None and newest["Maximum"] <= 600

    @task
    def report() -> None:
        print("the orders are worked off")

    [few(), young()] >> report()


orders_reported()
