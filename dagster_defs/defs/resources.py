"""What the examples share: the queues by the names under which assets and ops ask for them, and how steps are run."""

import dagster as dg

from dagster_defs.queues import bookings_queue, deliveries_queue, flights_queue, orders_queue


# A file of their own: Dagster takes nothing else from a file that has such a function.
@dg.definitions
def shared() -> dg.Definitions:
    """The resources, and the executor of all that has none of its own."""
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
