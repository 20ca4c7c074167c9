"""Makes sessions of boto3 that share botocore's own constant data, and nothing else.

Each ``with lease(...)`` makes a session. Made in the usual way, a session takes 80 ms of processor time to read the
description of its service and of AWS's regions. Here the sessions of a process with the same data path have one loader,
like the clients of one session. A usual session then takes 12 ms more to register botocore's own handlers of events,
some 130, always the same. Here each session begins with a copy of them, as each client begins with a copy of its
session's. Credentials, regions, profiles and handlers that are added later stay each session's own.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3
    from botocore.hooks import HierarchicalEmitter
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

    source = botocore_session() if source is None else source
    session = boto3.Session(botocore_session=source, profile_name=profile_name, region_name=region_name)
    # Not before: boto3 appends a directory to the paths of the loader that it finds, with every session.
    source.register_component("data_loader", _loader(source.get_config_variable("data_path")))
    return session


def botocore_session() -> Session:
    """Make a session of botocore with its usual handlers of events, as ``botocore.session.get_session`` does."""
    from botocore.session import Session

    return Session(event_hooks=copy(_builtin_handlers()), include_builtin_handlers=False)


@cache
def _builtin_handlers() -> HierarchicalEmitter:
    """The handlers that each session of botocore has from its beginning: functions, which know no session.

    Only copies of it get into sessions, so it is never changed.
    """
    from botocore.hooks import HierarchicalEmitter
    from botocore.session import Session

    emitter = HierarchicalEmitter()
    Session(event_hooks=emitter)
    return emitter


@cache
def _loader(data_path: str | None) -> Loader:
    """The loader of all sessions with this data path (``AWS_DATA_PATH``).

    What it has read is never changed. Threads that make their first clients at once may read a file each; it has no
    lock, so a process may fork meanwhile.
    """
    from botocore.loaders import create_loader

    return create_loader(data_path)
