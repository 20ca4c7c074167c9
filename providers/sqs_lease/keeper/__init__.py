"""Keeps batches of leases: the keeper of a process, the driver of each queue, receiving into them.

Internal, except the names that ``sqs_lease`` exports.
"""
