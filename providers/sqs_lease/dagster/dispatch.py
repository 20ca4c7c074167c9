"""The choice of a run for each received message: calls the router's functions, and checks their answers.

Dagster refuses *all* runs of an evaluation if one of them has a job that the sensor does not have, or a partition that
does not exist. It finds an invalid run configuration only when the run is made, after the evaluation. So each answer is
checked here, against the definitions of the evaluation, before a run is requested. A message with an unusable answer
fails alone.

The first part is about any sensor's target, for the backlog sensor as well: jobs or assets in each form that sensors
take, and their partitions.

On a FIFO queue, messages of a group that are behind one for another run are given back at once. SQS does not give them
to a consumer before that one is done, so the work keeps the order of the group.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeGuard, TypeVar

import dagster as dg
import msgspec

from sqs_lease.core.calls import Verdict
from sqs_lease.core.failure_rules import DeadLetter, Delete, Expire, Release, Settlement, exception_names
from sqs_lease.core.messages import Message, Receipt
from sqs_lease.dagster._internals import (
    assets_of_job,
    dynamic_partitions,
    is_asset_job,
    job_of_assets,
    refusals,
    with_partition,
    wrong_config,
)
from sqs_lease.dagster.run_batch.folder import BatchFolder
from sqs_lease.sqs.errors import SqsError

if TYPE_CHECKING:
    from sqs_lease.dagster._internals import AssetJob

_T = TypeVar("_T")
RunConfig: TypeAlias = dg.RunConfig | Mapping[str, Any]
Job: TypeAlias = "dg.JobDefinition | AssetJob"
Assets: TypeAlias = (
    dg.AssetSelection
    | dg.AssetsDefinition
    | dg.AssetKey
    | str
    | Sequence[str]
    | Sequence[dg.AssetKey]
    | Sequence[dg.AssetsDefinition]
)
Target: TypeAlias = "Job | Sequence[Job] | Assets"
"""The target of a sensor."""

MOST_RUNS_AT_ONCE: Final = 3
"""Most runs that one evaluation requests: Dagster launches them one after the other, each in about 3 s."""


UNREADABLE_SECONDS: Final = 600.0
"""Time out of reach after which a sensor's evaluations fail, so that Dagster can alert."""


def unreadable_since(error: SqsError, since: float | None, now: float) -> float:
    """Return since when a queue is out of reach, in seconds since the epoch, for an error that passes by itself.

    Raises:
        SqsError: The error does not pass by itself, or the queue is out of reach for too long.
    """
    since = since or now
    if error.verdict is Verdict.REFUSED or now - since >= UNREADABLE_SECONDS:
        raise error
    return since


def jobs_of_a_list(target: Target | None) -> list[str]:
    """Return the names of the jobs of a list; empty if the target is not a list of jobs.

    Raises:
        ValueError: The list has assets in it, too.
    """
    # Asset jobs and asset keys are tuples of a kind, too.
    if type(target) not in (list, tuple) or not isinstance(target, Sequence):
        return []
    names = [str(each.name) for each in target if is_job(each)]
    if names and len(names) < len(target):
        raise ValueError("a sensor has jobs or assets for its target, not both: make an asset job of the assets")
    return names


def is_job(target: object) -> TypeGuard[Job]:
    """Whether it is a job, also one of :func:`dagster.define_asset_job`."""
    return isinstance(target, dg.JobDefinition) or is_asset_job(target)


def target_argument(target: Target | None) -> dict[str, Any]:
    """Return the target as an argument of :class:`dagster.SensorDefinition`, which names a list of jobs differently."""
    return {"jobs": target} if jobs_of_a_list(target) else {"target": target}


class PartitionKeyError(ValueError):
    """Error for a partition that a job cannot have; the text is the end of a sentence about the job."""


def dynamic_keys(definitions: dg.RepositoryDefinition, job: dg.JobDefinition, key: str) -> dict[str, str]:
    """Return the dynamic partitions that a key stands for: keys by the names of partitions definitions.

    Existing partitions are among them: to add them again does no harm.

    Raises:
        PartitionKeyError: The job has no partitions, or its assets have different ones, or this cannot be a key.
    """
    made = definitions.assets_defs_by_key
    of_assets = (made[each].get_asset_spec(each).partitions_def for each in assets_of_job(job) if each in made)
    kinds = {each for each in (job.partitions_def, *of_assets) if each is not None}
    if len(kinds) != 1:
        raise PartitionKeyError("has assets of different partitions" if kinds else "is not partitioned")
    (partitions,) = kinds
    try:
        keys = dynamic_partitions(partitions, key)
        # Dagster would add an invalid dynamic key for good, so the checks of static keys are used.
        dg.StaticPartitionsDefinition(list(keys.values()))
    except refusals():
        raise PartitionKeyError("cannot have a partition with this key") from None
    return keys


def add_requests(added: Iterable[Mapping[str, str]]) -> list[dg.AddDynamicPartitionsRequest]:
    """Return requests to add the partitions of several runs, each once: Dagster refuses duplicates."""
    keys: dict[str, set[str]] = {}
    for each in added:
        for name, key in each.items():
            keys.setdefault(name, set()).add(key)
    return [dg.AddDynamicPartitionsRequest(name, sorted(several)) for name, several in keys.items()]


_SHOWN_CHARACTERS: Final = 60
_SHOWN_MESSAGES: Final = 5
_OUR_TAGS: Final = "sqs_lease/"
"""The beginning of the tags by which a run finds its batch."""

_MOST_BYTES: Final = 2_000
"""Most bytes of a tag, its key and value together, and of a partition key: Postgres has room for 2 704 in its indexes.

Dagster would fail to make the run, after the evaluation.
"""

_ENDS: Final[Mapping[type[Settlement], str]] = {
    Release: "given back",
    DeadLetter: "dead-lettered",
    Expire: "left to expire",
    Delete: "deleted",
}

AssetKeys: TypeAlias = Sequence[dg.AssetKey | str]


class DispatchError(ValueError):
    """Error for messages that cannot be given to a run; the text names the function with the unusable answer."""


class RunConfigError(ValueError):
    """Error for a configuration or partition of a sensor's runs that does not fit its target; the text says why."""


class Destination(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The run that messages go to, as plain values.

    Attributes:
        job: The job's name; None for the sensor's only target.
        partition_key: The partition; None without partitions.
        assets: The keys of the assets to materialize, as ``shop/orders``; None for all of the target.
        run_config: The configuration of the run.
        run_tags: Its tags.
    """

    job: str | None = None
    partition_key: str | None = None
    assets: tuple[str, ...] | None = None
    run_config: dict[str, Any] = {}
    run_tags: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class DispatchFailure:
    """The reason why a message cannot be given to a run.

    Attributes:
        reason: For people; without the message's content.
        errors: The qualified names of the exception's class and those it derives from.
    """

    reason: str
    errors: tuple[str, ...]

    @classmethod
    def by(cls, error: DispatchError) -> DispatchFailure:
        """Describe an exception; if a function raised it, the classes are those of the function's exception."""
        return cls(str(error), exception_names(error.__cause__ or error))


def dispatch_failure_text(
    why: DispatchFailure, receipts: Sequence[Receipt], settlements: Mapping[Receipt, Settlement]
) -> str:
    """Return one line about messages that cannot be given to a run, and how they are settled."""
    ends = sorted({_ENDS[type(settlements[receipt])] for receipt in receipts})
    ids = ", ".join(receipt.message_id for receipt in receipts[:_SHOWN_MESSAGES])
    more = f" and {len(receipts) - _SHOWN_MESSAGES} more" if len(receipts) > _SHOWN_MESSAGES else ""
    return f"{why.reason}: {len(receipts)} messages {' or '.join(ends)} ({ids}{more})"


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The description of a sensor's runs: values, or functions of a message. See ``build_sqs_router``.

    Attributes:
        jobs: The names of the jobs that ``job`` chooses from; empty for a sensor with one target.
    """

    job: Callable[[Message], str | Job] | None = None
    partition_key: str | Callable[[Message], str | None] | None = None
    asset_selection: Callable[[Message], AssetKeys | None] | None = None
    run_config: RunConfig | Callable[[Message], RunConfig | None] | None = None
    run_tags: Mapping[str, str] | Callable[[Message], Mapping[str, str] | None] | None = None
    jobs: Sequence[str] = ()

    @property
    def is_by_message(self) -> bool:
        """Whether messages may go to different runs."""
        return any(map(callable, (self.job, self.partition_key, self.asset_selection, self.run_config, self.run_tags)))

    def destination(self, message: Message | None = None) -> Destination:
        """Call the functions to find the run of a message; without a message, return what is the same for all runs.

        Raises:
            DispatchError: A function raised an exception, or an answer cannot be part of a run's request.
        """
        return Destination(
            job=self._answer("job", message, self._job),
            partition_key=self._answer("partition_key", message, self._partition_key),
            assets=self._answer("asset_selection", message, self._assets),
            run_config=self._answer("run_config", message, self._run_config) or {},
            run_tags=self._answer("run_tags", message, self._run_tags) or {},
        )

    def subject(self, name: str) -> str:
        """Return the beginning of a sentence about an argument's value, such as ``job returned``."""
        return f"{name} returned" if callable(getattr(self, name)) else f"{name} is"

    def _answer(self, name: str, message: Message | None, read: Callable[[Any], _T]) -> _T | None:
        value = getattr(self, name)
        is_function = callable(value)
        if value is None or (is_function and message is None):
            return None
        try:
            answer = value(message) if is_function else value
            # A message has to name a job if it may; all else it may leave out.
            read_answer = None if answer is None and name != "job" else read(answer)
            # The same encoding as in the file of the run.
            msgspec.json.encode(read_answer)
        except DispatchError:
            raise
        except UnicodeEncodeError:
            raise DispatchError(f"{self.subject(name)} text that is not Unicode: a lone surrogate") from None
        except (Exception, SystemExit) as error:
            # Also while the answer is read: it may be a generator. The text is left out, because it may quote the
            # message.
            raise DispatchError(f"{name} raised {type(error).__name__} at {_place(error)}") from error
        return read_answer

    def _job(self, job: Any) -> str:
        name = job.name if is_job(job) else job
        if not isinstance(name, str):
            raise DispatchError(f"{self.subject('job')} {_kind(job)}: it must be a job or a job's name")
        return name

    def _partition_key(self, key: Any) -> str:
        if not (isinstance(key, str) and key):
            raise DispatchError(f"{self.subject('partition_key')} {_kind(key)}: it must be a string, a partition key")
        if _size(key) > _MOST_BYTES:
            raise DispatchError(
                f"{self.subject('partition_key')} {_shown(key)}, a key of more than {_MOST_BYTES} bytes"
            )
        return str(key)

    def _assets(self, assets: Any) -> tuple[str, ...]:
        wrong = f"{self.subject('asset_selection')} {_kind(assets)}: it must be a list of asset keys"
        if isinstance(assets, str | dg.AssetKey) or not isinstance(assets, Iterable):
            raise DispatchError(wrong)
        listed = list(assets)
        if not listed:
            raise DispatchError(f"{self.subject('asset_selection')} an empty list")
        try:
            return tuple(sorted({dg.AssetKey.from_coercible(each).to_user_string() for each in listed}))
        except refusals():
            raise DispatchError(wrong) from None

    def _run_config(self, config: Any) -> dict[str, Any]:
        if isinstance(config, dg.RunConfig):
            config = dg.RunRequest(run_config=config).run_config
        if not isinstance(config, Mapping):
            raise DispatchError(f"{self.subject('run_config')} {_kind(config)}: it must be a mapping or a RunConfig")
        try:
            plain: dict[str, Any] = json.loads(json.dumps(dict(config), allow_nan=False))
        except (TypeError, ValueError) as error:
            raise DispatchError(
                f"{self.subject('run_config')} values that are not JSON ({type(error).__name__})"
            ) from None
        return plain

    def _run_tags(self, tags: Any) -> dict[str, str]:
        if not isinstance(tags, Mapping) or not all(isinstance(each, str) for pair in tags.items() for each in pair):
            raise DispatchError(f"{self.subject('run_tags')} {_kind(tags)}: it must be a dict of str to str")
        for key, value in tags.items():
            wrong = ""
            if key.startswith(_OUR_TAGS):
                wrong = f"that the router sets: {_shown(key)}"
            elif "\0" in key or "\0" in value:
                wrong = "with a NUL character"
            elif _size(key) + _size(value) > _MOST_BYTES:
                wrong = f"of more than {_MOST_BYTES} bytes: {_shown(key)}"
            if wrong:
                raise DispatchError(f"{self.subject('run_tags')} a tag {wrong}")
        return dict(tags)


@dataclass(slots=True)
class Dispatcher:
    """The dispatch of messages to runs during one evaluation, by its definitions.

    Args:
        sensor: The sensor; its target has the jobs and assets.
        dispatch: The description of its runs.
        context: The evaluation's context.
        variables: The context variables of the evaluation's thread, because Dagster keeps state there: other threads
            call within them. By default those of the thread that makes this.
    """

    sensor: dg.SensorDefinition
    dispatch: Dispatch
    context: dg.SensorEvaluationContext
    variables: Context = field(default_factory=copy_context)
    _checked: dict[bytes, str] = field(default_factory=dict)
    _jobs: dict[tuple[str, frozenset[dg.AssetKey]], dg.JobDefinition] = field(default_factory=dict)

    def check(self) -> None:
        """Check the part of the description that is the same for all runs, before messages are received.

        Raises:
            DispatchError: Such a run is not possible with the definitions.
            RunConfigError: The configuration or partition that all runs have does not fit.
            ValueError: There are functions of a message, and the context has no definitions.
        """
        same = self.dispatch.destination()
        if self.dispatch.is_by_message:
            self._definitions()
        elif self.dispatch.run_config is not None or self.dispatch.partition_key is not None:
            self.run_request(same)

    def ask(self, messages: Sequence[Message]) -> list[Destination | DispatchFailure]:
        """Return the run of each message, or why it cannot go to a run."""
        return [self._asked(message) for message in messages]

    def _asked(self, message: Message) -> Destination | DispatchFailure:
        try:
            destination = self.dispatch.destination(message)
            if reason := self.why_not(destination):
                raise DispatchError(reason)  # noqa: TRY301 - one handler for all errors
        except DispatchError as error:
            return DispatchFailure.by(error)
        return destination

    def why_not(self, destination: Destination) -> str:
        """Return why such a run is not possible with the definitions; empty if it is."""
        key = msgspec.json.encode(destination, order="deterministic")
        if key not in self._checked:
            try:
                self.run_request(destination)
            except DispatchError as error:
                self._checked[key] = str(error)
            else:
                self._checked[key] = ""
        return self._checked[key]

    def run_request(
        self, destination: Destination, *, run_key: str | None = None, tags: Mapping[str, str] | None = None
    ) -> tuple[dg.RunRequest, Mapping[str, str]]:
        """Return the request of a run, and the dynamic partitions to add for it: keys by the definition's name.

        Raises:
            DispatchError: Such a run is not possible with the definitions.
            RunConfigError: The configuration or partition that all runs have does not fit.
        """
        wanted = dg.RunRequest(
            run_key=run_key,
            run_config=destination.run_config,
            tags={**destination.run_tags, **(tags or {})},
            job_name=destination.job,
            asset_selection=None
            if destination.assets is None
            else [dg.AssetKey.from_user_string(each) for each in destination.assets],
            partition_key=destination.partition_key,
        )
        if self.context.repository_def is None:
            # Only in a test without definitions and without functions of a message.
            return wanted, {}
        job = self._job(wanted)
        added: dict[str, str] = {}
        resolved = wanted
        if destination.partition_key is not None:
            added = self._added_partitions(job, wanted, destination.partition_key)
            resolved = self._with_partition(wanted, added)
        self._check_run_config(job, resolved)
        return wanted, added

    def _job(self, wanted: dg.RunRequest) -> dg.JobDefinition:
        """Return the job of a request, with the request's assets only."""
        names = self.dispatch.jobs or [str(self.sensor.job_name)]
        name = wanted.job_name or names[0]
        if name not in names:
            said = f"{self.dispatch.subject('job')} {_shown(name)}"
            raise DispatchError(f"{said}, which is not one of the sensor's jobs: {', '.join(names)}")
        selected = frozenset(wanted.asset_selection or ())
        if (name, selected) not in self._jobs:
            self._jobs[name, selected] = self._part_of(self._definitions().get_job(name), selected)
        return self._jobs[name, selected]

    def _part_of(self, job: dg.JobDefinition, selected: frozenset[dg.AssetKey]) -> dg.JobDefinition:
        if not selected:
            return job
        said = self.dispatch.subject("asset_selection")
        if unknown := selected - assets_of_job(job):
            shown = ", ".join(sorted(_shown(key.to_user_string()) for key in unknown))
            raise DispatchError(f"{said} {shown}, which the sensor's target does not have")
        try:
            return job_of_assets(job, selected)
        except dg.DagsterError as error:
            shown = ", ".join(sorted(_shown(key.to_user_string()) for key in selected))
            raise DispatchError(f"{said} {shown}, which cannot run alone ({type(error).__name__})") from None

    def _added_partitions(self, job: dg.JobDefinition, wanted: dg.RunRequest, key: str) -> dict[str, str]:
        try:
            return dynamic_keys(self._definitions(), job, key)
        except PartitionKeyError as error:
            said = f"{self.dispatch.subject('partition_key')} {_shown(key)}"
            raise self._refusal("partition_key", f"{said}, but {_named(job, wanted)} {error}") from None

    def _with_partition(self, wanted: dg.RunRequest, added: Mapping[str, str]) -> dg.RunRequest:
        requests = [dg.AddDynamicPartitionsRequest(name, [key]) for name, key in added.items()]
        try:
            return with_partition(self.sensor, self.context, wanted, requests)
        except refusals() as error:
            said = f"{self.dispatch.subject('partition_key')} {_shown(wanted.partition_key or '')}"
            said += f", which is not a partition of the target ({type(error).__name__})"
            raise self._refusal("partition_key", said) from None

    def _check_run_config(self, job: dg.JobDefinition, resolved: dg.RunRequest) -> None:
        try:
            dg.validate_run_config(job, resolved.run_config)
        except refusals() as error:
            # The text of the error is left out, because it quotes values.
            told = wrong_config(error) if isinstance(error, dg.DagsterInvalidConfigError) else [type(error).__name__]
            said = f"the run configuration does not fit {_named(job, resolved)} ({'; '.join(told)})"
            raise self._refusal("run_config", said) from None

    def _refusal(self, name: str, said: str) -> DispatchError | RunConfigError:
        """Return the error for an impossible run: the message is at fault only if its function gave the answer."""
        return (DispatchError if callable(getattr(self.dispatch, name)) else RunConfigError)(said)

    def _definitions(self) -> dg.RepositoryDefinition:
        definitions: dg.RepositoryDefinition | None = self.context.repository_def
        if definitions is None:
            raise ValueError("the sensor's context has no definitions: build_sensor_context(definitions=...)")
        return definitions


@dataclass(frozen=True, slots=True)
class Part:
    """The messages of one run.

    Attributes:
        destination: The run.
        messages: Its messages, in the order they were received.
    """

    destination: Destination
    messages: list[Message] = field(default_factory=list)


def divided(messages: Sequence[tuple[Message, Destination]], *, is_fifo: bool) -> tuple[list[Part], list[Message]]:
    """Put messages together that go to the same run.

    Args:
        messages: The messages with their runs, in the order they were received.
        is_fifo: Whether the order within message groups counts.

    Returns:
        The parts, and the messages that are behind one of their group for another run: they are to be given back.
    """
    parts: dict[bytes, Part] = {}
    first: dict[str, bytes] = {}
    behind: list[Message] = []
    ended: set[str] = set()
    for message, destination in messages:
        key = msgspec.json.encode(destination, order="deterministic")
        group = message.message_group_id if is_fifo else None
        if group is not None and (group in ended or first.setdefault(group, key) != key):
            ended.add(group)
            behind.append(message)
            continue
        parts.setdefault(key, Part(destination)).messages.append(message)
    return list(parts.values()), behind


def _named(job: dg.JobDefinition, request: dg.RunRequest) -> str:
    return f"job {request.job_name}" if request.job_name else "the sensor's target"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def _size(text: str) -> int:
    """Return the number of bytes in UTF-8; a lone surrogate counts as well."""
    return len(text.encode(errors="surrogatepass"))


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _place(error: BaseException) -> str:
    """Return where an exception was raised, as file and line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


RUN: Final = "run.json"
"""The file in a batch's directory with its run: after a crash, the same run is requested again."""


def write_run(folder: BatchFolder, destination: Destination) -> None:
    """Write the run that a batch goes to.

    Raises:
        OSError: It cannot be written.
    """
    folder.put(RUN, msgspec.json.encode(destination))


def read_run(folder: BatchFolder) -> Destination | None:
    """Read it; None if it does not exist or cannot be decoded.

    Raises:
        OSError: It cannot be read, and may be later.
    """
    return folder.decoded(RUN, msgspec.json.Decoder(Destination).decode)
