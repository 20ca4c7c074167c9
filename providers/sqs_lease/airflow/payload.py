"""The messages of a batch between tasks: through XCom or, when there are many, in files at a path of the user.

Files hold the messages and the sealed leases, and Airflow gets references only. For a batch ``b`` of
``payload="s3://aws_default@bucket/leases"`` the files are

- ``s3://aws_default@bucket/leases/b.parquet``: the messages, a manifest (``sqs_lease/batch_files/manifest.py``);
- ``s3://aws_default@bucket/leases/b.leases``: the leases, encrypted with Airflow's Fernet key.

They are written before anything refers to them, and the keeper removes them after everything was settled. The
path is a directory that all workers and triggerers reach: a local one only if all of them share a file system.

All access goes through Airflow's ``ObjectStoragePath``, which blocks, so it runs in threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar

from airflow.sdk import BaseXCom, ObjectStoragePath
from airflow.sdk.configuration import conf

from sqs_lease.airflow.airflow_api.requests import RETURN_VALUE_KEY, NoAnswerError, RunOfTask, pull
from sqs_lease.airflow.dag_file import is_final
from sqs_lease.airflow.handover import HandedLease, OtherKeyError, PayloadError, seal_leases
from sqs_lease.airflow.provider_info import CONFIG_SECTION, PAYLOAD_OPTION
from sqs_lease.batch_files.manifest_extra import require_manifests
from sqs_lease.core.messages import Message, plain_attributes
from sqs_lease.daemon_threads import DaemonThreads

logger = logging.getLogger(__name__)

STORAGE_SECONDS: Final = 120.0
"""How long writing or reading a batch's files may take; 10 000 messages of 10 kB on an object store take seconds."""

_FILES: Final = DaemonThreads(16, "sqs-lease files")
"""Threads for files only: a file system that hangs must not block other work."""

READ_TRIES: Final = 4
READ_PAUSE_SECONDS: Final = 3.0
"""Pause before leases are read again: they are not extended meanwhile, so the pause is short."""

INLINE_BYTES: Final = 16 * 1024 * 1024
"""The size of a batch that goes through XCom without files, in bytes of bodies and message attributes.

A triggerer's event loop is blocked while a value is serialised and sent: so long for 200 MB that leases are extended
late. At this size the sensor stops receiving; messages that are on their way then still belong to the batch.
"""

MANIFESTS: Final = "sqs_lease_manifests"
"""The key that marks a return value as a reference to manifests."""

MANIFEST_EXTRAS: Final = "airflow,manifest"
"""The package's extras that manifests need in Airflow."""

BatchValue: TypeAlias = Sequence[Mapping[str, Any]] | Mapping[str, Any]
"""The receiving task's return value: the messages, or ``{"sqs_lease_manifests": [uri, ...], "messages": number}``."""

_T = TypeVar("_T")


def check_payload(payload: object, task_id: str) -> None:
    """Check the ``payload`` of a sensor while the DAG is parsed; a template is checked when its value is known.

    Raises:
        TypeError: It is not a string.
        ValueError: It is neither a URI nor an absolute path.
        ModuleNotFoundError: A package that writes manifests is not installed.
    """
    if is_final(payload):
        if not isinstance(payload, str):
            raise TypeError(f"payload of {task_id!r} must be a string, a URI or an absolute path, not {payload!r}")
        if not (payload.startswith("/") or "://" in payload):
            raise ValueError(
                f"payload of {task_id!r} must be a URI (s3://connection@bucket/prefix, file:///directory) or an "
                f"absolute path that all workers and triggerers share, not {payload!r}"
            )
    require_manifests(f"payload of {task_id!r}", MANIFEST_EXTRAS, "leave payload out")


def default_payload() -> str | None:
    """Return where this installation stores batches that are too large for XComs; None if unset.

    Raises:
        ValueError: It is neither a URI nor an absolute path.
        ModuleNotFoundError: A package that writes manifests is not installed.
    """
    location = conf.get(CONFIG_SECTION, PAYLOAD_OPTION, fallback=None) or None
    if location is not None:
        check_payload(location, f"the configuration, [{CONFIG_SECTION}] {PAYLOAD_OPTION}")
    return location


def published_bytes(message: Message) -> int:
    """Return how many bytes a message adds to a batch that goes through XCom: its body and its own attributes."""
    body = message.body
    size = len(body) if body.isascii() else len(body.encode(errors="replace"))
    return size + (len(json.dumps(plain_attributes(message.message_attributes))) if message.message_attributes else 0)


def why_unpublishable(message: Message, *, stored: bool) -> str | None:
    """Return why Airflow cannot take a message, without quoting it; None if it can.

    One such message would otherwise fail the whole batch, now and each time it is received again.

    Args:
        message: The message.
        stored: Whether the batch is stored in files (``payload``): files take messages that XComs do not.
    """
    written_down = (message.message_id, message.receipt.handle, message.message_group_id or "")
    if not all(isinstance(text, str) and _is_unicode(text) for text in written_down):
        return "its id, its receipt handle or its group is not a text that can be written down"
    try:
        attributes = plain_attributes(message.message_attributes)
    except TypeError as error:
        return str(error)
    if stored:
        return None
    remedy = "it can be stored in a file, with payload=, or sent without that"
    if (size := published_bytes(message)) > INLINE_BYTES:
        return f"it has {size} bytes, and more than {INLINE_BYTES} do not go through XCom; {remedy}"
    parts = (part for value in attributes.values() for part in value.values() if isinstance(part, str))
    if any("\0" in text or not _is_unicode(text) for text in (message.body, *attributes, *parts)):
        return f"it has characters that a database refuses; {remedy}"
    if attributes and not _comes_back(attributes):
        return f"an attribute has a name that Airflow uses itself; {remedy}"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _comes_back(attributes: dict[str, dict[str, Any]]) -> bool:
    """Whether Airflow's serialisation takes the attributes, and gives them back unchanged."""
    try:
        serialised = BaseXCom.serialize_value(attributes)
        return bool(BaseXCom.deserialize_value(SimpleNamespace(value=serialised)) == attributes)
    except Exception:  # noqa: BLE001 - it raises whatever fits: AttributeError, TypeError, ImportError, ...
        return False


async def publishable(
    payload: str | None, handed: HandedLease, messages: Sequence[Message], receiving: RunOfTask
) -> tuple[HandedLease, dict[str, Any], BatchValue]:
    """Store a batch, if it is to be stored.

    Args:
        payload: Where to store it; None publishes the messages themselves.
        handed: The leases.
        messages: The messages, in the order of the leases.
        receiving: The task that received it.

    Returns:
        The leases with their place in the store, the same as plain values, and the return value of the task.

    Raises:
        PayloadError: They cannot be stored.
    """
    if payload is None:
        return handed, handed.encode(receiving), [message.as_dict() for message in messages]
    stored = await in_thread(write_batch, payload, handed, messages)
    return stored, stored.encode(receiving), {MANIFESTS: [stored.manifest_uri], "messages": len(messages)}


def write_batch(payload: str, handed: HandedLease, messages: Sequence[Message]) -> HandedLease:
    """Write the files of a batch. It blocks.

    Args:
        payload: The directory, as a URI or an absolute path.
        handed: The leases.
        messages: The messages, in the order of the leases.

    Returns:
        The same leases, with their place in the store.

    Raises:
        PayloadError: The files cannot be written; a part that was written is removed.
    """
    # Imported here, because only payload= needs pyarrow.
    from sqs_lease.batch_files.manifest import write_manifest

    stem = f"{payload.rstrip('/')}/{handed.batch_id}"
    manifest_uri, leases_uri = f"{stem}.parquet", f"{stem}.leases"
    stored = replace(handed, manifest_uri=manifest_uri, leases_uri=leases_uri)
    try:
        manifest = _path(manifest_uri)
        if manifest.protocol in ("", "file"):
            # Object stores have no directories to make.
            manifest.parent.mkdir(parents=True, exist_ok=True)
        write_manifest(manifest, batch_id=handed.batch_id, queue_url=handed.queue_url, messages=messages)
        with _path(leases_uri).open("wb") as file:
            file.write(seal_leases(handed.written).encode("ascii"))
    except Exception as error:
        remove_batch(stored)
        raise PayloadError(
            f"{len(messages)} messages of {handed.queue_url} cannot be stored at payload={payload!r} "
            f"({_error_text(error)}). Check that the path exists, that its connection may write there and that the "
            "packages for it are installed (apache-airflow-providers-amazon[s3fs] for s3://), or leave payload out"
        ) from error
    return stored


def remove_batch(handed: HandedLease) -> None:
    """Remove the files of a batch, if it has any; a file that cannot be removed is logged. It blocks."""
    for uri in (handed.manifest_uri, handed.leases_uri):
        if uri is not None:
            _remove(uri)


def _remove(uri: str) -> None:
    try:
        _path(uri).unlink(missing_ok=True)
    except Exception as error:  # noqa: BLE001 - each store has its own errors, and nothing depends on the file now
        logger.warning("%s cannot be removed (%s); nothing needs it now", uri, _error_text(error))


def read_messages(messages: BatchValue) -> list[dict[str, Any]]:
    """Return the messages of a batch in a work task, whether they came through XCom or by ``payload``.

    For example::

        @task
        def load(orders):
            for message in read_messages(orders):
                store(message["Body"])

    It blocks while it reads.

    Args:
        messages: The value of the lease, as the work task got it.

    Returns:
        A mapping for each message with ``MessageId``, ``Body``, ``Attributes`` and ``MessageAttributes``, in the
        order of the batch.

    Raises:
        PayloadError: A manifest cannot be read, or is gone because all of its messages were settled.
        TypeError: ``messages`` is not the value of a lease.
    """
    if isinstance(messages, Mapping):
        return [message.as_dict() for message in _stored_messages(messages)]
    if isinstance(messages, Sequence) and all(isinstance(message, Mapping) for message in messages):
        return [dict(message) for message in messages]
    raise TypeError(f"read_messages() takes the value of a lease (sqs_lease(...) as value), not {type(messages)}")


def _stored_messages(reference: Mapping[str, Any]) -> Iterator[Message]:
    if MANIFESTS not in reference:
        raise TypeError("read_messages() takes the value of a lease (sqs_lease(...) as value), not another mapping")
    from sqs_lease.batch_files.manifest import ManifestError, read_manifest

    for uri in reference[MANIFESTS]:
        try:
            yield from read_manifest(_path(uri)).messages
        except FileNotFoundError as error:
            raise PayloadError(
                f"{uri} is gone: the keeper removes it after it has settled every message. Clear the receiving task to "
                "receive again what came back; if the run is under way, check that all workers reach that path"
            ) from error
        except ManifestError as error:
            raise PayloadError(str(error)) from error
        except Exception as error:
            raise PayloadError(
                f"{uri} cannot be read ({_error_text(error)}): check its connection and permissions"
            ) from error


def messages_of(published: BatchValue | None) -> list[Message]:
    """Build the messages from the receiving task's return value; None gives no messages. It blocks.

    Raises:
        PayloadError: A manifest cannot be read.
    """
    return [Message.from_api(message) for message in read_messages(published or [])]


def read_lease(plain: Mapping[str, Any], receiving: RunOfTask) -> HandedLease:
    """Build a lease from its plain values, and read it from the store if it is there. It blocks.

    Args:
        plain: The plain values.
        receiving: The task that received it.

    Raises:
        OtherKeyError: The leases cannot be decrypted.
        PayloadError: The leases cannot be read, or are not those of the task's batch.
    """
    handed = HandedLease.decode(plain, receiving)
    if (uri := handed.leases_uri) is None:
        return handed
    try:
        with _path(uri).open("rb") as file:
            sealed = file.read().decode("ascii")
    except FileNotFoundError as error:
        raise PayloadError(
            f"{uri}, the leases of {handed.messages} messages of {handed.queue_url}, is not there. If they were "
            "settled before, it was removed then: clear the receiving task to receive again. Else check that all "
            "triggerers reach that path: until then those leases are not extended"
        ) from error
    except Exception as error:
        raise PayloadError(
            f"the leases of {handed.messages} messages of {handed.queue_url} cannot be read from {uri} "
            f"({_error_text(error)}): check that triggerers reach that path. Until then they are not extended"
        ) from error
    return handed.with_leases(sealed, receiving)


async def remove_files(handed: HandedLease) -> None:
    """Remove the files of a batch, if it has any, in a thread; a file that cannot be removed is logged."""
    if handed.manifest_uri is not None:
        try:
            await in_thread(remove_batch, handed)
        except PayloadError as error:
            logger.warning("The files of batch %s are left: %s", handed.batch_id, error)


async def in_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    """Call one of the functions above in a thread.

    Raises:
        PayloadError: The function raised it, or took too long.
    """
    try:
        async with asyncio.timeout(STORAGE_SECONDS):
            return await _FILES.run(call, *arguments)
    except TimeoutError:
        raise PayloadError(f"the store of the batch's files did not answer within {STORAGE_SECONDS:g} s") from None


async def load_lease(plain: Mapping[str, Any], receiving: RunOfTask) -> HandedLease:
    """Build a lease from its plain values, in a thread, because it may read files; try again while that fails.

    Raises:
        OtherKeyError: The leases cannot be decrypted.
        PayloadError: The leases cannot be read, or are not those of the task's batch.
    """
    for _ in range(READ_TRIES - 1):
        try:
            return await in_thread(read_lease, plain, receiving)
        except OtherKeyError:
            raise
        except PayloadError as error:
            logger.warning("Trying again in %g s: %s", READ_PAUSE_SECONDS, error)
            await asyncio.sleep(READ_PAUSE_SECONDS)
    return await in_thread(read_lease, plain, receiving)


def _path(uri: str) -> Any:
    return ObjectStoragePath(uri)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


async def find_refused(messages: Sequence[Message], put: Callable[[BatchValue], Awaitable[None]]) -> frozenset[str]:
    """Find the messages that Airflow refuses by themselves, after it refused all of them as one value.

    It halves the value again and again, so one message among 1 000 takes 20 requests.

    Args:
        messages: All of them.
        put: Publishes other messages in place of all. The value of its last call has no meaning.

    Returns:
        Their ids; empty if Airflow takes each of them.

    Raises:
        CommsError: Airflow takes no message at all, or gave no answer.
    """

    async def search(some: Sequence[Message]) -> list[str]:
        try:
            await put([message.as_dict() for message in some])
        except NoAnswerError:
            raise
        except Exception:  # noqa: BLE001 - a back end of the user's own raises whatever fits
            if len(some) == 1:
                return [some[0].message_id]
            half = len(some) // 2
            return [*await search(some[:half]), *await search(some[half:])]
        return []

    await put([])
    return frozenset(await search(messages))


class PublishedMessages:
    """The messages of one batch, read when the first one is needed and kept from then on.

    Args:
        task: The receiving task in the run.
        manifest_uri: Where they are stored, as the sealed lease says; None if they are in XCom.
    """

    def __init__(self, task: RunOfTask, manifest_uri: str | None = None) -> None:
        self._task = task
        self._manifest_uri = manifest_uri
        self._messages: dict[str, Message] | None = None
        # Many messages that failed together are needed together; the file, which may be large, is read once.
        self._reading = asyncio.Lock()

    async def __call__(self, message_ids: Sequence[str]) -> Mapping[str, Message]:
        """Return messages by id; ids that are not of the batch are missing.

        Raises:
            CommsError: Airflow does not give what was published.
            PayloadError: It was stored in files, which cannot be read.
        """
        async with self._reading:
            if self._messages is None:
                messages = await in_thread(messages_of, await self._published())
                self._messages = {message.message_id: message for message in messages}
        return {name: self._messages[name] for name in message_ids if name in self._messages}

    async def _published(self) -> BatchValue | None:
        if self._manifest_uri is not None:
            return {MANIFESTS: [self._manifest_uri]}
        published = await pull(self._task, RETURN_VALUE_KEY)
        # The seal does not cover a file that only the XCom names, so it is not read.
        return None if isinstance(published, Mapping) else published
