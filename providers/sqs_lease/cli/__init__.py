"""The command `sqs-lease`: it inspects queues, finds problems with their remedies, and moves messages on request.

It needs the extra ``cli``. Each command has a module; :mod:`sqs_lease.cli.app` puts them together.
"""
