"""The ``User-Agent`` header of a client's requests, built once.

botocore builds its text twice for each request, character by character: 12 % of a call's processor time. The text says
which releases, platform and settings the client was made with, so it is the same each time. botocore has no public
name for what builds it; ``Config(user_agent=...)`` would replace the text, and drop the application's id with it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from types_boto3_sqs import SQSClient

_CREATOR = "_user_agent_creator"


def reuse_user_agent(client: SQSClient) -> None:
    """Let a client that was just made build the text for its first request only.

    Of what botocore counts in it, such as the kind of credentials, it tells what was known then. A release of botocore
    without the names that are used here goes on building it each time.

    Args:
        client: The client; botocore gives each client a creator of its own, so no other one is changed.
    """
    creator: Any = getattr(cast("Any", client), _CREATOR, None)
    if callable(build := getattr(creator, "to_string", None)):
        creator.to_string = cache(build)
