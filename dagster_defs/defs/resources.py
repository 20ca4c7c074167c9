"""The queues, by the names under which assets and ops ask for them."""

import dagster as dg

from dagster_defs.queues import bookings_queue, flights_queue


# A file of their own: Dagster takes nothing else from a file that has such a function.
@dg.definitions
def resources() -> dg.Definitions:
    """The resources of all examples."""
    return dg.Definitions(resources={"flights_queue": flights_queue, "bookings_queue": bookings_queue})
