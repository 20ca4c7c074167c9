"""The shared resources of the examples: the queues by their names as resources, and the executor of steps."""

import dagster as dg

from dagster_defs.queues import bookings_queue, deliveries_queue, flights_queue, orders_queue


# In a file of their own, because Dagster ignores all else in a file that has such a function.
@dg.definitions
def shared() -> dg.Definitions:
    """Return the resources, and the executor of jobs without their own."""
    return dg.Definitions(
        resources={
            "flights_queue": flights_queue,
            "bookings_queue": bookings_queue,
            "orders_queue": orders_queue,
            "deliveries_queue": deliveries_queue,
        },
        # Most of these runs have one step, which needs no process beside that of its run.
        executor=dg.in_process_executor,
    )
