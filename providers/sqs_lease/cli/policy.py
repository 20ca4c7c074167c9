"""`sqs-lease policy`: the IAM policy with the least permissions for a use of a queue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from sqs_lease.cli.options import EndpointUrl, Json, Profile, Queues, Region, aws_access
from sqs_lease.cli.output import CommandError, print_json, print_note
from sqs_lease.cli.permissions import CLEAN_SOURCE, Place, key_actions, needs_of
from sqs_lease.cli.queue_access import QueueCaller
from sqs_lease.cli.queue_checks import QueueState
from sqs_lease.cli.session import own_access
from sqs_lease.sqs.client import AwsAccess, make_client
from sqs_lease.sqs.client_transport import check_region
from sqs_lease.sqs.errors import SqsError
from sqs_lease.sqs.validation import queue_reference

_AWS_MANAGED_KEY: Final = "aws/sqs"

_S3_ADDRESS: Final = re.compile(r"s3a?://(?:[^@/]*@)?(?P<bucket>[A-Za-z0-9._-]+)(?P<prefix>(?:/.*)?)", re.DOTALL)

_MEANT_BY_IAM: Final = re.compile(r"[*?$]")
"""Wildcards and the beginning of a policy variable. IAM takes them literally as ``${*}``, ``${?}`` and ``${$}``."""

_MADE_BY: Final = {"aws-cn": "amazonaws.com.cn"}


class CleanSource(StrEnum):
    """The action on an object after its records are stored: `clean_source` of S3EventsSource."""

    DELETE = "delete"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class EncryptedQueue:
    """A queue as a policy names it.

    Attributes:
        arn: Its ARN.
        key: Its KMS key as the queue's attributes name it: an id, an ARN or an alias; None if SQS needs no
            permission for it, or if it is not known.
    """

    arn: str
    key: str | None = None


@dataclass(frozen=True, slots=True)
class QueueAndDeadLetters:
    """A queue, and its dead-letter queue; None without one, or if that is not known."""

    queue: EncryptedQueue | None
    dead_letters: EncryptedQueue | None


@dataclass(frozen=True, slots=True)
class S3Place:
    """A bucket, and the beginning of the keys in it; empty for the whole bucket."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str, option: str) -> S3Place:
        """Read ``s3://bucket/prefix``; a connection of Airflow before the bucket is left out.

        Raises:
            CommandError: It is another kind of address.
        """
        # urlsplit() does not work here: a key may have a "?" or a "#" in it.
        found = _S3_ADDRESS.fullmatch(uri)
        if found is None:
            raise CommandError(f"{option}: {uri!r} is not an address on S3; write s3://bucket/prefix")
        return cls(found["bucket"], found["prefix"].strip("/"))

    def pattern(self, key: str) -> str:
        """Return a pattern of IAM for keys below the prefix, with the prefix's special characters escaped."""
        return _MEANT_BY_IAM.sub(r"${\g<0>}", self.prefix) + key


def policy(
    queues: Queues,
    airflow: Annotated[bool, typer.Option("--airflow", help="For Airflow's triggerers and workers.")] = False,
    dagster: Annotated[bool, typer.Option("--dagster", help="For Dagster's runs, sensors and checks.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="For a Spark job, which needs S3 only.")] = False,
    redrive: Annotated[
        bool, typer.Option("--redrive", help="For moving messages out of the dead-letter queue.")
    ] = False,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--files", metavar="S3-URI", help="The place of stored batches: s3://bucket/prefix. May be repeated."
        ),
    ] = None,
    objects: Annotated[
        list[str] | None,
        typer.Option("--objects", metavar="S3-URI", help="The S3 objects that messages name. May be repeated."),
    ] = None,
    clean_source: Annotated[
        CleanSource | None,
        typer.Option("--clean-source", help="The Spark job's action on these objects after their records are stored."),
    ] = None,
    as_json: Json = False,
    region: Region = None,
    profile: Profile = None,
    endpoint_url: EndpointUrl = None,
) -> None:
    """Print the IAM policy with the least permissions for a use of queues.

    Without an option it is for `lease` in a program; options may be combined. The actions were recorded from the code.
    The dead-letter queue and the KMS keys are looked up; a queue given by its ARN needs no look-up.
    """
    chosen = {"airflow": airflow, "dagster": dagster, "spark": spark, "redrive": redrive}
    uses = frozenset(use for use, is_chosen in chosen.items() if is_chosen) or frozenset({"lease"})
    places = {
        Place.FILES: [S3Place.of(uri, "--files") for uri in files or ()],
        Place.OBJECTS: [S3Place.of(uri, "--objects") for uri in objects or ()],
    }
    if clean_source is not None and not (spark and objects):
        raise CommandError("--clean-source is for --spark with --objects")
    needs = needs_of(uses)
    notes: list[str] = []
    found: list[QueueAndDeadLetters] = []
    if Place.QUEUE in needs:
        access = aws_access(region, profile, endpoint_url)
        for queue in dict.fromkeys(queues):
            found += _look_up(queue, access, is_redrive=uses == {"redrive"}, notes=notes)
    for place, option in ((Place.FILES, "--files"), (Place.OBJECTS, "--objects")):
        if place in needs and not places[place]:
            notes.append(f"The policy allows nothing on S3 for {place}: name the place by {option} s3://bucket/prefix.")
        elif places[place] and place not in needs:
            raise CommandError(f"{option} is for {_uses_of(place)}")
    statements = list(policy_statements(uses, found, places, clean_source))
    if not statements:
        raise CommandError(f"There is nothing to allow. {' '.join(notes)}")
    document = {"Version": "2012-10-17", "Statement": statements}
    if as_json:
        print_json({"policy": document, "notes": notes})
        return
    print_json(document)
    for note in notes:
        print_note(note)


def _uses_of(place: Place) -> str:
    return " or ".join(f"--{use}" for use in ("airflow", "dagster", "spark") if place in needs_of(frozenset({use})))


def policy_statements(
    uses: frozenset[str],
    queues: Iterable[QueueAndDeadLetters],
    places: Mapping[Place, Sequence[S3Place]],
    clean_source: CleanSource | None = None,
) -> Iterator[dict[str, Any]]:
    """Return the statements of a policy.

    Args:
        uses: Keys of :data:`sqs_lease.cli.permissions.RECORDED`.
        queues: The queues.
        places: Places on S3, by their kind.
        clean_source: The action on objects after their records are stored; None if they are left.
    """
    needs = dict(needs_of(uses))
    if clean_source is not None:
        needs[Place.OBJECTS] |= CLEAN_SOURCE[clean_source]
    pairs = list(queues)
    by_place = {
        Place.QUEUE: list(dict.fromkeys(pair.queue for pair in pairs if pair.queue is not None)),
        Place.DEAD_LETTERS: list(dict.fromkeys(pair.dead_letters for pair in pairs if pair.dead_letters is not None)),
    }
    partition = next((queue.arn.split(":")[1] for known in by_place.values() for queue in known), "aws")
    names = {Place.QUEUE: "Queues", Place.DEAD_LETTERS: "DeadLetterQueues"}
    for place, known in by_place.items():
        if known and place in needs:
            yield _statement(names[place], needs[place], [queue.arn for queue in known])
    for place, known in by_place.items():
        actions = key_actions(needs.get(place, frozenset()))
        with_key = [queue for queue in known if queue.key is not None]
        if with_key and actions:
            yield from _key_statements(names[place], actions, with_key)
    for place, title in ((Place.FILES, "Files"), (Place.OBJECTS, "Objects")):
        if place in needs and places.get(place):
            yield _s3_statement(title, needs[place], places[place], partition)


def _statement(
    name: str, actions: Iterable[str], resources: Iterable[str], condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    made = {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": list(dict.fromkeys(resources))}
    return made if condition is None else {**made, "Condition": condition}


def _key_statements(name: str, actions: frozenset[str], queues: Sequence[EncryptedQueue]) -> Iterator[dict[str, Any]]:
    """Yield a statement for the keys of each region, and one for each alias, which cannot be a policy's resource."""
    keys: dict[str, list[str]] = {}
    aliases: list[tuple[str, str, str]] = []
    for queue in queues:
        partition, region, account = queue.arn.split(":")[1], *queue.arn.split(":")[3:5]
        service = f"sqs.{region}.{_MADE_BY.get(partition, 'amazonaws.com')}"
        key = str(queue.key)
        prefix = f"arn:{partition}:kms:{region}:{account}"
        alias = key.rpartition(":")[2] if ":alias/" in key else key
        if alias.startswith("alias/"):
            aliases.append((service, f"{prefix}:key/*", alias))
        else:
            keys.setdefault(service, []).append(key if key.startswith("arn:") else f"{prefix}:key/{key}")
    number = 0
    for number, (service, arns) in enumerate(keys.items()):
        via = {"StringEquals": {"kms:ViaService": service}}
        yield _statement(f"KeysOf{name}{number or ''}", actions, arns, via)
    for place, (service, arn, alias) in enumerate(dict.fromkeys(aliases), start=len(keys)):
        condition = {
            "StringEquals": {"kms:ViaService": service},
            "ForAnyValue:StringEquals": {"kms:ResourceAliases": alias},
        }
        yield _statement(f"KeysOf{name}{place or ''}", actions, [arn], condition)


def _s3_statement(title: str, actions: frozenset[str], places: Sequence[S3Place], partition: str) -> dict[str, Any]:
    keys = [f"arn:{partition}:s3:::{place.bucket}/{place.pattern('/*') if place.prefix else '*'}" for place in places]
    return _statement(title, actions, keys)


def _look_up(queue: str, access: AwsAccess, *, is_redrive: bool, notes: list[str]) -> list[QueueAndDeadLetters]:
    """Find a queue's ARN and key, and those of its dead-letter queue; add a note for each that cannot be found.

    For a redrive, the dead-letter queue itself may be given: then its source queues are found.
    """
    try:
        client: Any = make_client(own_access(access, queue), queue=queue)
        check_region(queue_reference(queue), queue, client.meta.region_name)
        state = _state(client, queue)
    except SqsError as error:
        arn = _arn_of(queue)
        if arn is None:
            raise CommandError(f"{error} Or give the queue by its ARN, which needs no look-up.") from None
        notes.append(
            f"{queue} was not looked up, so its dead-letter queue and KMS keys are not in this policy: {error}"
        )
        return [QueueAndDeadLetters(EncryptedQueue(arn), None)]
    itself = EncryptedQueue(state.arn, _key(state))
    if "deadLetterTargetArn" in state.redrive:
        dead_arn = _arn_at_aws(str(state.redrive["deadLetterTargetArn"]))
        try:
            dead = _state(client, dead_arn)
        except SqsError as error:
            notes.append(f"{dead_arn} was not looked up, so its KMS key is not in this policy: {error}")
            return [QueueAndDeadLetters(itself, EncryptedQueue(dead_arn))]
        return [QueueAndDeadLetters(itself, EncryptedQueue(dead.arn, _key(dead)))]
    if is_redrive:
        answer = QueueCaller(client, queue).dead_letter_sources(state.url)
        try:
            sources = [_state(client, url) for url in answer.content.get("queueUrls", ())]
        except SqsError as error:
            sources = []
            notes.append(f"A source queue of {queue} was not looked up: {error}")
        if sources:
            return [QueueAndDeadLetters(EncryptedQueue(source.arn, _key(source)), itself) for source in sources]
        notes.append(
            f"{queue} has no dead-letter queue, so it is treated as one itself. Name its source queue instead: the "
            "messages go back to it, and the policy needs both."
        )
        return [QueueAndDeadLetters(None, itself)]
    notes.append(f"{queue} has no dead-letter queue, so on_failure=dead_letter() has nowhere to send.")
    return [QueueAndDeadLetters(itself, None)]


def _state(client: Any, queue: str) -> QueueState:
    caller = QueueCaller(client, queue)
    url = queue_reference(queue).url
    if url is None:
        found = caller.url()
        if found.error is not None:
            raise found.error
        url = str(found.content["QueueUrl"])
    answer = caller.attributes(url)
    if answer.error is not None:
        raise answer.error
    state = QueueState(url, answer.content["Attributes"])
    _arn_at_aws(state.arn)
    return state


def _arn_at_aws(arn: str) -> str:
    """Return an ARN if it is one of AWS's; a policy with any other one would allow nothing.

    Raises:
        CommandError: It is another one.
    """
    try:
        is_one = arn.startswith("arn:") and queue_reference(arn) is not None
    except ValueError:
        is_one = False
    if not is_one:
        raise CommandError(f"this server names a queue {arn!r}, which is not an ARN of AWS: IAM policies are for AWS")
    return arn


def _key(state: QueueState) -> str | None:
    key = state.attributes.get("KmsMasterKeyId")
    # The policy of the AWS managed key allows every user of the queue.
    return None if not key or key.rpartition("alias/")[2] == _AWS_MANAGED_KEY else key


def _arn_of(queue: str) -> str | None:
    """Return the ARN in a queue's ARN or URL at AWS; None for other names."""
    if queue.startswith("arn:"):
        return queue
    reference = queue_reference(queue)
    if reference.region is None:
        return None
    account = urlsplit(queue).path.split("/")[1]
    partition = "aws-cn" if reference.region.startswith("cn-") else "aws"
    return f"arn:{partition}:sqs:{reference.region}:{account}:{reference.name}" if account.isdigit() else None
