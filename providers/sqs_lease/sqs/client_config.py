"""The botocore configuration that the transports work best with."""

from __future__ import annotations

from typing import Final

from botocore.config import Config

from sqs_lease.core.limits import MAX_WAIT_SECONDS

DEFAULT_CONNECTIONS: Final = 64
"""Half for long polls, half for everything else: 32 calls is what a keeper has under way for one queue at most."""

ANSWER_SECONDS: Final = 10.0
"""How long an answer may take, for a long poll beyond its wait; after that it counts as lost."""

_CONNECT_SECONDS: Final = 5.0


def client_config(connections: int = DEFAULT_CONNECTIONS) -> Config:
    """The ``botocore.config.Config`` (or base of an ``AioConfig``) for a client given to a transport.

    botocore's own retries are off (one attempt). The ledger retries an extension with regard to how
    urgent it is, and the receiver a poll with regard to how long it may wait; a retry inside botocore
    sleeps where neither sees it, by up to 20 s a time in its legacy mode, and repeats a FIFO receive or a throttled
    call without being asked. Reads (``queue_url``, ``queue_attributes``) are repeated by the transport.
    A send is not, as it is not idempotent on a standard queue: the ledger decides.

    The read timeout is longer than the longest long poll (20 s); botocore's default of 60 s would
    notice a cut connection only after leases of 30 s had run out.

    Args:
        connections: Most connections open at once, at least 2; 64 by default. One half is for long
            polls, so that receiving never keeps an extension waiting. A process that receives from more than 32
            queues at once needs more.

    Raises:
        ValueError: ``connections`` is less than 2.
    """
    if connections < 2:
        raise ValueError(f"connections must be at least 2, one for receiving and one for the rest, not {connections}")
    return Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=MAX_WAIT_SECONDS + ANSWER_SECONDS,
        max_pool_connections=connections,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # Connections idle between extensions would otherwise be dropped silently by NAT gateways (350 s on AWS).
        tcp_keepalive=True,
    )
