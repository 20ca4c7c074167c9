"""Sessions of boto3 that are cheap to make: each ``with lease(...)`` makes one, and a client.

- A usual session takes 80 ms of processor time to read the description of its service and of AWS's regions. The
  sessions of a process with the same data path have one loader, like the clients of one session.
- A usual session registers some 130 handlers of events for all services of AWS, which takes 12 ms. Each of its clients
  copies them, and looks for each event that it ever meets in a list of services that had other names once. Clients of
  :func:`sqs_session` have the handlers that SQS and the sources of credentials need: with leases of 100 messages this
  saves an eighth of all processor time.

Credentials, regions, profiles and handlers that are added later stay each session's own.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Final

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
        source: The session of botocore that it wraps; by default a new, usual one.

    Raises:
        botocore.exceptions.BotoCoreError: The profile does not exist, or the configuration cannot be read.
    """
    # Imported late: Airflow imports this package in every one of its commands, and boto3 takes a while.
    import boto3
    from botocore.session import Session

    source = Session() if source is None else source
    session = boto3.Session(botocore_session=source, profile_name=profile_name, region_name=region_name)
    # Not before: boto3 appends a directory to the paths of the loader that it finds, with every session.
    source.register_component("data_loader", _loader(source.get_config_variable("data_path")))
    return session


def sqs_session() -> Session:
    """Make a session of botocore for clients of SQS, and no other service.

    A handler that is registered with the session reaches no client; one that is registered with a client does.
    """
    from botocore.session import Session

    session = Session(include_builtin_handlers=False)
    session.register_component("event_emitter", copy(_sqs_handlers()))
    return session


_SERVICES: Final = ("", "*", "sqs", "sts", "sso", "sso-oidc", "signin")
"""SQS, and the services that give credentials. Handlers for all services have an empty name, or a star."""


@cache
def _sqs_handlers() -> HierarchicalEmitter:
    """Return those of botocore's own handlers that a client of SQS needs: functions without a session.

    Only copies of it get into sessions, so it never changes.
    """
    from botocore.handlers import BUILTIN_HANDLERS, REGISTER_FIRST, REGISTER_LAST
    from botocore.hooks import HierarchicalEmitter
    from botocore.session import Session

    emitter = HierarchicalEmitter()
    # Register only the handlers needed: one that is removed again leaves an empty place, which every copy copies.
    events = Session(event_hooks=emitter, include_builtin_handlers=False).get_component("event_emitter")
    registers = {REGISTER_FIRST: events.register_first, REGISTER_LAST: events.register_last}
    for event, handler, *place in BUILTIN_HANDLERS:
        kind, _, rest = event.partition(".")
        if kind != "docs" and rest.partition(".")[0] in _SERVICES:
            register = registers[place[0]] if place else events.register
            register(event, handler)
    return emitter


@cache
def _loader(data_path: str | None) -> Loader:
    """Return the loader of all sessions with this data path (``AWS_DATA_PATH``).

    The data that it has read never change. Threads that make their first clients at once may read a file each; it has
    no lock, so a process may fork meanwhile.
    """
    from botocore.loaders import create_loader

    return create_loader(data_path)
