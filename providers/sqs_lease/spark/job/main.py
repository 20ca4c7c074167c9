"""Job that ingests one batch in a process of its own: it reads a manifest and a spec, and writes a result.

The exit code is 0 when the batch is done and the result is written; 1 after an error, which is the last line of
standard error; 2 for wrong arguments; 143 when the job was asked to end (SIGTERM). It can be started again with the
same manifest after each of them, and while another one runs. If it is started through Dagster Pipes, it reports there
as well.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import boto3
import pyspark
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.errors import PythonException

from sqs_lease import spark
from sqs_lease.batch_files.manifest import join_manifests, read_manifest
from sqs_lease.ingestion.spec import S3, IngestionSpec, Part, SpecError, with_environment
from sqs_lease.spark.errors import WorkspaceError
from sqs_lease.spark.ingestion import ingest
from sqs_lease.spark.job.error_text import EXPECTED, note_what_was_raised, one_line, trace
from sqs_lease.spark.job.reporting import CONTEXT, MESSAGES, Report, reporting
from sqs_lease.spark.job.termination import EXIT_CODE, Termination, end_with_standard_input
from sqs_lease.spark.job_watch import cancel_everything
from sqs_lease.spark.paths import write_whole
from sqs_lease.spark.session import driver_session
from sqs_lease.spark.sinks.jars import require_spark
from sqs_lease.spark.sinks.sink import Sink
from sqs_lease.spark.sources.source import Source
from sqs_lease.version import USER_AGENT

logger = logging.getLogger(__name__)

SOURCE_CLASSES: Final[Mapping[str, str]] = {
    "json": "JsonSource",
    "text": "TextSource",
    "variant": "VariantSource",
    "s3-events": "S3EventsSource",
    "extended-client": "ExtendedClientSource",
    "sns": "SnsEnvelope",
    "elements": "ArrayElements",
    "attributes": "AttributeColumns",
    "parser": "ParserSource",
    "spark": "SparkSource",
}
"""The classes in ``sqs_lease.spark`` by the kind of source that a spec names."""

SINK_CLASSES: Final[Mapping[str, str]] = {
    "delta": "DeltaSink",
    "postgres": "PostgresSink",
    "parquet": "ParquetSink",
    "native-delta": "NativeDeltaSink",
    "iceberg": "IcebergSink",
}
"""The same for sinks."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return the exit code; ``arguments`` are those of this process by default."""
    parser = _parser()
    options = parser.parse_args(arguments)
    pipes = _pipes_parameters(options)
    if options.result is None and not pipes:
        parser.error("--result is needed, because the job was not started through Dagster Pipes")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    termination = Termination()
    termination.install()
    if options.end_with_stdin:
        end_with_standard_input()
    try:
        with reporting(pipes, lambda error: None if termination.asked else one_line(error)) as report:
            _run(options, termination, report)
    except Exception as error:  # noqa: BLE001 - every error is reported
        if termination.asked:
            return EXIT_CODE
        if not isinstance(error, EXPECTED):
            logger.error("the job failed: %s", trace(error))  # noqa: TRY400 - the error's own text may quote a body
        print(f"error: {one_line(error)}", file=sys.stderr, flush=True)  # noqa: T201 - the starter reads the last line
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sqs_lease.spark.job",
        description="Ingest one batch of messages into a table, each exactly once.",
        epilog="A URI is a path, file:///path or s3://bucket/key; the environment has the settings for S3.",
    )
    parser.add_argument(
        "--manifest", required=True, action="append", metavar="URI", help="the messages; again for a batch of several"
    )
    parser.add_argument("--result", metavar="URI", help="the file for the result; not needed with Dagster Pipes")
    parser.add_argument("--spec", required=True, metavar="JSON|URI", help="source, sink and workspace")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--master", help="local[2], spark://...; not with spark-submit, which sets it")
    engine.add_argument("--remote", help="a Spark Connect server, sc://...")
    parser.add_argument("--end-with-stdin", action="store_true", help="end when standard input ends, as after SIGTERM")
    # Pipes passes its parameters so if it cannot set environment variables.
    for name in (CONTEXT, MESSAGES):
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, help=argparse.SUPPRESS)
    return parser


def _pipes_parameters(options: argparse.Namespace) -> dict[str, str]:
    """Return the parameters of Dagster Pipes; empty if the job was not started through it."""
    given = {name: getattr(options, name) or os.environ.get(name) for name in (CONTEXT, MESSAGES)}
    return {name: value for name, value in given.items() if value} if all(given.values()) else {}


def _run(options: argparse.Namespace, termination: Termination, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="sqs-lease-") as temporary:
        directory = Path(temporary)
        given = options.spec
        text = given if given.lstrip().startswith("{") else local_copy(given, directory).read_text(encoding="utf-8")
        spec = IngestionSpec.parse_json(text)
        manifest = _local_manifest(options.manifest, directory)
        # Made before Spark is started, because that takes seconds, and errors of the spec are known without it.
        source = make_source(spec.source, os.environ)
        sink = make_sink(spec.sink, os.environ)
        rejects = None if spec.rejects is None else make_sink(spec.rejects, os.environ)
        if options.remote is None:
            # A server of Spark Connect may have another version, so it is asked when there is a session.
            for one in (sink, rejects):
                require_spark(one, pyspark.__version__)
        conf = with_environment(spec.spark_conf, os.environ)
        with (
            driver_session(master=options.master, remote=options.remote, conf=conf) as session,
            termination.cancelling(partial(cancel_everything, session)),
        ):
            try:
                result = ingest(
                    session,
                    manifest,
                    source=source,
                    sink=sink,
                    # On S3 the executors cannot read the driver's file.
                    workspace=None if spec.workspace.startswith(S3) else spec.workspace,
                    rejects=rejects,
                    still_held=lambda: not termination.asked,
                )
            except PythonException as error:
                note_what_was_raised(error, read_manifest(manifest).messages)
                raise
            stored = result.stored()
            if options.result is not None:
                write_text(options.result, stored.encode())
            report(stored)


def _local_manifest(uris: Sequence[str], directory: Path) -> Path:
    """Return a local manifest with the messages of all given manifests."""
    manifests = [local_copy(uri, directory) for uri in uris]
    if len(manifests) == 1:
        return manifests[0]
    joined = directory / uuid4().hex
    join_manifests(joined, manifests)
    return joined


def make_source(part: Part, environment: Mapping[str, str]) -> Source[Any]:
    """Make the source of a spec; each ``{"env": ...}`` in it stands for a variable of the environment.

    Raises:
        SpecError: A variable is not set, or a function cannot be found.
        SchemaError: Its schema cannot be used.
    """
    parameters = with_environment(part.parameters, environment)
    if "source" in parameters:
        inner = dict(parameters["source"])
        parameters["source"] = make_source(Part(inner.pop("kind"), inner), environment)
    if "function" in parameters:
        parameters["function"] = _function(parameters["function"])
    if "inferred_schema" in parameters:
        parameters["schema"] = spark.InferredSchema(parameters.pop("inferred_schema"))
    source: Source[Any] = getattr(spark, SOURCE_CLASSES[part.kind])(**parameters)
    return source


def make_sink(part: Part, environment: Mapping[str, str]) -> Sink:
    """Make a sink of a spec; see :func:`make_source`."""
    parameters = with_environment(part.parameters, environment)
    for name in ("partition_by", "upsert_by"):
        if name in parameters:
            parameters[name] = tuple(parameters[name])
    sink: Sink = getattr(spark, SINK_CLASSES[part.kind])(**parameters)
    return sink


def _function(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SpecError(
            f"the function {name} of the source cannot be found ({error}): install its package where the job and the "
            "executors run, or add its directory to PYTHONPATH there"
        ) from error


def local_copy(uri: str, directory: Path) -> Path:
    """Return a local file with the content of a URI; a local file is returned itself.

    Args:
        uri: A path, ``file://...`` or ``s3://bucket/key``. An Airflow connection before the bucket is ignored; the
            environment has the settings for S3, as for every AWS client.
        directory: The directory for a copy.

    Raises:
        WorkspaceError: The file cannot be read.
    """
    path = _local_path(uri)
    if path is not None:
        if not path.is_file():
            raise WorkspaceError(f"{uri} is not there: check that the machine of the job reaches that path")
        return path
    copy = directory / uuid4().hex
    bucket, key = _place_on_s3(uri)
    try:
        _s3().download_file(bucket, key, str(copy))
    except (BotoCoreError, ClientError) as error:
        raise WorkspaceError(f"{uri} cannot be read: {error}") from None
    return copy


def write_text(uri: str, text: str) -> None:
    """Write a file that appears whole or not at all, and replaces an older one."""
    path = _local_path(uri)
    try:
        if path is None:
            bucket, key = _place_on_s3(uri)
            _s3().put_object(Bucket=bucket, Key=key, Body=text.encode(), ContentType="application/json")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
    except (OSError, BotoCoreError, ClientError) as error:
        raise WorkspaceError(f"{uri} cannot be written: {error}") from None


def _s3() -> Any:
    return boto3.client("s3", config=Config(user_agent_extra=USER_AGENT))


def _local_path(uri: str) -> Path | None:
    if uri.startswith("s3://"):
        return None
    if uri.startswith("file://"):
        return Path(unquote(urlsplit(uri).path))
    if "://" in uri:
        raise WorkspaceError(f"{uri} is neither a path nor a file:// or s3:// address")
    return Path(uri)


def _place_on_s3(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    bucket = bucket.rpartition("@")[2]
    if not bucket or not key:
        raise WorkspaceError(f"{uri} is not an object on S3: it must be s3://bucket/key")
    return bucket, key
