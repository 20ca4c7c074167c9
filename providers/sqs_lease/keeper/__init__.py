"""Keeps batches of leases: the keeper of a process, the driver of each queue, receiving into them."""
