"""The command `sqs-lease`: looks at queues, explains what will bite, and repairs what it is told to.

Needs the extra ``cli``. A module for each command; :mod:`sqs_lease.cli.app` puts them together.
"""
