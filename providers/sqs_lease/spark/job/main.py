"""Ingests one batch in a process of its own: reads a manifest and a spec, and leaves a result.

The exit code is 0 when the batch is done and the result is written; 1 after an error, whose line is the last one of the
standard error; 2 for wrong arguments; 143 when the job was asked to end (SIGTERM). It can be started again with the
same manifest after any of them, and while another one runs. Started through Dagster Pipes, it reports there too.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pyspark.errors import PythonException

from sqs_lease.batch_files.manifest import read_manifest
from sqs_lease.core.messages import Message
from sqs_lease.ingestion.spec import S3, IngestionSpec, with_environment
from sqs_lease.spark.ingestion import ingest
from sqs_lease.spark.job.error_text import EXPECTED, note_what_was_raised, one_line, trace
from sqs_lease.spark.job.parts import make_sink, make_source
from sqs_lease.spark.job.reporting import CONTEXT, MESSAGES, Report, reporting
from sqs_lease.spark.job.storage import local_copy, write_text
from sqs_lease.spark.job.termination import EXIT_CODE, Termination, end_with_standard_input
from sqs_lease.spark.progress import cancel_everything
from sqs_lease.spark.session import driver_session

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job.

    Args:
        arguments: The command line without the program; None takes this process's.

    Returns:
        The exit code.
    """
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
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told
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
        epilog="A URI is a path, file:///path or s3://bucket/key; the environment says how S3 is reached.",
    )
    parser.add_argument(
        "--manifest", required=True, action="append", metavar="URI", help="the messages; again for a batch of several"
    )
    parser.add_argument("--result", metavar="URI", help="where the result is written; Dagster Pipes has it reported")
    parser.add_argument("--spec", required=True, metavar="JSON|URI", help="source, sink and workspace")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--master", help="local[2], spark://...; not with spark-submit, which says it itself")
    engine.add_argument("--remote", help="a Spark Connect server, sc://...")
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="end when the standard input does, as after SIGTERM"
    )
    # Pipes gives its parameters so where it cannot set environment variables.
    for name in (CONTEXT, MESSAGES):
        parser.add_argument(f"--{name.lower().replace('_', '-')}", dest=name, help=argparse.SUPPRESS)
    return parser


def _pipes_parameters(options: argparse.Namespace) -> dict[str, str]:
    """The parameters of Dagster Pipes; empty unless the job was started through it."""
    given = {name: getattr(options, name) or os.environ.get(name) for name in (CONTEXT, MESSAGES)}
    return {name: value for name, value in given.items() if value} if all(given.values()) else {}


def _run(options: argparse.Namespace, termination: Termination, report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="sqs-lease-") as temporary:
        directory = Path(temporary)
        spec = _spec(options.spec, directory)
        manifests = [local_copy(uri, directory) for uri in options.manifest]
        # Before Spark is started, which takes seconds: what is wrong with the spec is known by then.
        source = make_source(spec.source, os.environ)
        sink = make_sink(spec.sink, os.environ)
        rejects = None if spec.rejects is None else make_sink(spec.rejects, os.environ)
        conf = with_environment(spec.spark_conf, os.environ)
        with (
            driver_session(master=options.master, remote=options.remote, conf=conf) as spark,
            termination.cancelling(partial(cancel_everything, spark)),
        ):
            try:
                result = ingest(
                    spark,
                    manifests[0] if len(manifests) == 1 else _messages(manifests),
                    source=source,
                    sink=sink,
                    # The executors cannot read from there what the driver writes.
                    workspace=None if spec.workspace.startswith(S3) else spec.workspace,
                    rejects=rejects,
                    still_held=lambda: not termination.asked,
                )
            except PythonException as error:
                note_what_was_raised(error, _messages(manifests))
                raise
            stored = result.stored()
            if options.result is not None:
                write_text(options.result, stored.encode())
            report(stored)


def _spec(given: str, directory: Path) -> IngestionSpec:
    text = given if given.lstrip().startswith("{") else local_copy(given, directory).read_text(encoding="utf-8")
    return IngestionSpec.parse_json(text)


def _messages(manifests: Sequence[Path]) -> Iterator[Message]:
    for manifest in manifests:
        yield from read_manifest(manifest).messages
