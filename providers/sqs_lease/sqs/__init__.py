"""Access to the SQS API: one transport protocol, its implementations, error classification and receiving.

Internal, except the exceptions in :mod:`sqs_lease.sqs.errors`.
"""
