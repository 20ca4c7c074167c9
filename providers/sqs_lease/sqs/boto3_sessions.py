"""Makes sessions of boto3 that share what botocore reads of its own data files, and nothing else.

A session reads the description of its service and of AWS's regions anew: 80 ms of processor time, which each
``with lease(...)`` would take. Sessions of a process with the same data path have one loader here, like the clients of
one session. Credentials, regions, profiles and handlers of events stay each session's own.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3
    from botocore.loaders import Loader
    from botocore.session import Session


def boto3_session(
    *, profile_name: str | None = None, region_name: str | None = None, source: Session | None = None
) -> boto3.Session:
    """Make a session whose data files are read once in the process.

    Args:
        profile_name: A profile of the AWS configuration files; None as boto3 finds out.
        region_name: The region; None as boto3 finds out.
        source: The session of botocore that it wraps; by default a new one.

    Raises:
        botocore.exceptions.BotoCoreError: The profile does not exist, or the configuration cannot be read.
    """
    # Imported late: Airflow imports this package in every one of its commands, and boto3 takes a while.
    import boto3
    from botocore.session import get_session

    source = get_session() if source is None else source
    session = boto3.Session(botocore_session=source, profile_name=profile_name, region_name=region_name)
    # Not before: boto3 appends a directory to the paths of the loader that it finds, with every session.
    source.register_component("data_loader", _loader(source.get_config_variable("data_path")))
    return session


@cache
def _loader(data_path: str | None) -> Loader:
    """The loader of all sessions with this data path (``AWS_DATA_PATH``).

    What it has read is never changed. Threads that make their first clients at once may read a file each; it has no
    lock, so a process may fork meanwhile.
    """
    from botocore.loaders import create_loader

    return create_loader(data_path)
