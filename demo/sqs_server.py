"""An SQS (and S3) server as a real process of its own: ministack, from the environment `.ministack`."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boto3

from demo.processes import LOOPBACK, ROOT, ServerProcess, free_port, start_process, wait_until

if TYPE_CHECKING:
    from botocore.config import Config
    from types_boto3_sqs import SQSClient

REGION = "us-east-1"

READY_SECONDS = 120.0


class SetupMissingError(RuntimeError):
    """Something that `make setup` provides is not there."""


@dataclass(frozen=True, slots=True)
class SqsServer:
    """A running server."""

    endpoint_url: str
    """For example `http://127.0.0.1:23456`; serves SQS and S3, without authentication."""
    process: ServerProcess
    secret: str = "test"  # noqa: S105 - the server asks for none
    """The secret access key of its clients; the server takes any."""

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self.process.pid

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self.process.log_path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which any AWS client finds this server: endpoint, region, credentials."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    @property
    def airflow_connection(self) -> str:
        """An Airflow connection to this server, as the value of an environment variable `AIRFLOW_CONN_...`."""
        connection = {
            "conn_type": "aws",
            "login": "test",
            "password": self.secret,
            "extra": {"endpoint_url": self.endpoint_url, "region_name": REGION},
        }
        return json.dumps(connection)

    def sqs_client(self, config: Config | None = None) -> SQSClient:
        """A client of its own for this server, with boto3's configuration or another one."""
        return boto3.client(
            "sqs",
            endpoint_url=self.endpoint_url,
            region_name=REGION,
            aws_access_key_id="test",
            aws_secret_access_key=self.secret,
            config=config,
        )


@contextmanager
def sqs_server(directory: Path | None = None, *, services: str = "sqs,s3") -> Iterator[SqsServer]:
    """Run an SQS server on the loopback address and a free port, until the block ends.

    Args:
        directory: Where its log goes; without it, a temporary directory that is removed with the server.
        services: The AWS services that it has.

    Yields:
        The server, ready for requests, without queues or buckets.

    Raises:
        SetupMissingError: `.ministack` is not there.
        demo.processes.ProcessFailedError: The server did not start.
    """
    python = ROOT / ".ministack" / "bin" / "python"
    if not python.exists():
        raise SetupMissingError(f"The SQS server is not installed: {python} is missing. Run `make setup`.")
    with tempfile.TemporaryDirectory(prefix="sqs-server-") as temporary:
        port = free_port()
        environment = {
            "PATH": os.environ["PATH"],
            "TMPDIR": temporary,
            "BIND_HOST": LOOPBACK,
            "GATEWAY_PORT": str(port),
            "SERVICES": services,
            # Listeners of other services that would start on ports of their own.
            "IOT_MTLS_ENABLED": "0",
            "SFTP_ENABLED": "0",
        }
        process = start_process(
            "The SQS server",
            [python, "-m", "ministack"],
            log_path=(directory or Path(temporary)) / "sqs-server.log",
            environment=environment,
            directory=Path(temporary),
        )
        try:
            server = SqsServer(f"http://{LOOPBACK}:{port}", process)
            wait_until(
                lambda: _answers(server.endpoint_url),
                processes=[process],
                what="ready",
                deadline_seconds=READY_SECONDS,
            )
            yield server
        finally:
            process.stop()


def _answers(endpoint_url: str) -> bool:
    # A proxy that the environment names must not be asked for the loopback address.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{endpoint_url}/_ministack/health", timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
