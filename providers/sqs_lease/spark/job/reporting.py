"""Reports to Dagster from a job that was started through Dagster Pipes: its log, and its result at the end.

Pipes gives a process two parameters, as environment variables or as arguments: the places of its context and of its
messages. The process that starts the job chooses the places: a local file, the output, S3, or a directory that the
driver sees as files (a Databricks volume, or DBFS, which is mounted at ``/dbfs``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqs_lease.ingestion.result import StoredResult
from sqs_lease.spark.errors import IngestionError
from sqs_lease.version import USER_AGENT

if TYPE_CHECKING:
    from dagster_pipes import PipesContextLoader, PipesMessageWriter

CONTEXT: Final = "DAGSTER_PIPES_CONTEXT"
MESSAGES: Final = "DAGSTER_PIPES_MESSAGES"

MOUNT: Final = Path("/dbfs")
"""The directory where Databricks mounts DBFS. The parameters have DBFS's own paths."""

REPORTED_LOGGER: Final = "sqs_lease"
"""The logger whose records are reported; records of libraries stay in the driver's log."""

Report: TypeAlias = Callable[[StoredResult], None]


class ReportError(IngestionError):
    """The job was started through Dagster Pipes, and cannot report to it."""


@contextmanager
def reporting(parameters: Mapping[str, str], describe: Callable[[Exception], str | None]) -> Iterator[Report]:
    """Report the log of the block, and an error that ends it.

    Args:
        parameters: The parameters of Pipes, by name; empty for a job without Pipes, which reports nothing.
        describe: Returns one line about an error, without anything of a body; None reports nothing.

    Yields:
        A function that reports the result.

    Raises:
        ReportError: ``dagster-pipes`` is not installed here.
    """
    if not parameters:
        yield lambda result: None
        return
    try:
        import dagster_pipes
    except ImportError:
        raise ReportError(
            "this job was started through Dagster Pipes, and dagster-pipes is not installed where it runs: "
            "pip install dagster-pipes there, or start it without Pipes and with --result"
        ) from None
    context, messages = (_mounted(dagster_pipes.decode_param(parameters[name])) for name in (CONTEXT, MESSAGES))
    pipes = dagster_pipes.open_dagster_pipes(
        context_loader=_context_loader(context),
        message_writer=_message_writer(messages),
        params_loader=dagster_pipes.PipesMappingParamsLoader(
            {CONTEXT: dagster_pipes.encode_param(context), MESSAGES: dagster_pipes.encode_param(messages)}
        ),
    )
    handler = _Handler(pipes.log)
    logging.getLogger(REPORTED_LOGGER).addHandler(handler)
    try:
        yield lambda result: pipes.report_custom_message(result.encode())
    except Exception as error:
        if (text := describe(error)) is not None:
            pipes.log.log(logging.ERROR, "%s", text)
        raise
    finally:
        logging.getLogger(REPORTED_LOGGER).removeHandler(handler)
        # Closed without the exception: Pipes would send its traceback, and Spark's texts may quote a body.
        pipes.close()


class _Handler(logging.Handler):
    def __init__(self, log: logging.Logger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.log(record.levelno, "%s", record.getMessage())


def _mounted(place: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate a place to the path that this process can reach."""
    path = place.get("path")
    if not isinstance(path, str) or Path(path).exists():
        return place
    mounted = MOUNT / path.lstrip("/")
    return {**place, "path": str(mounted)} if mounted.exists() else place


def _context_loader(place: Mapping[str, Any]) -> PipesContextLoader:
    import dagster_pipes

    return dagster_pipes.PipesS3ContextLoader(_s3()) if "bucket" in place else dagster_pipes.PipesDefaultContextLoader()


def _message_writer(place: Mapping[str, Any]) -> PipesMessageWriter[Any]:
    import dagster_pipes

    if "bucket" in place:
        return dagster_pipes.PipesS3MessageWriter(_s3())
    if "path" in place and Path(place["path"]).is_dir():
        # One new file for each message, because files in such places cannot be appended to.
        return dagster_pipes.PipesUnityCatalogVolumesMessageWriter()
    return dagster_pipes.PipesDefaultMessageWriter()


def _s3() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(user_agent_extra=USER_AGENT))
