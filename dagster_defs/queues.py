"""The queues of the examples. Assets and ops take one of these as a resource, by its name."""

from dagster_defs.settings import BOOKINGS_QUEUE, DELIVERIES_QUEUE, FLIGHTS_QUEUE, ORDERS_QUEUE
from sqs_lease.dagster import SqsQueueResource

flights_queue = SqsQueueResource(queue=FLIGHTS_QUEUE)
bookings_queue = SqsQueueResource(queue=BOOKINGS_QUEUE)
orders_queue = SqsQueueResource(queue=ORDERS_QUEUE)
deliveries_queue = SqsQueueResource(queue=DELIVERIES_QUEUE)
