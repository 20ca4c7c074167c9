"""A contract: the behaviour of the SQS API that this package relies on, as checks for any server.

A check makes real calls on queues of its own, and says whether the service behaves as leases need. Three rules keep
a check honest on a slow network and a busy machine:

- A moment is known by the readings of the clock before and after a call, as leases count their deadlines. A message
  came *too early* if even the reading after the answer is too early. It was *hidden* until a moment only if a poll that
  was under way then brought no message.
- If these readings do not decide it, the check does not guess. It raises :class:`TooSlowError`, and is repeated on
  new queues with all its times doubled.
- An answer counts as this package reads it: by its :class:`~sqs_lease.core.calls.Verdict`, not by its text.

This package neither prints nor asks. The command is :mod:`sqs_lease.cli.verify`.
"""
