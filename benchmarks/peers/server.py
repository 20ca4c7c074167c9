"""The SQS server that all peers share: ElasticMQ, which `requirements/peers.sh` installs.

The server of the tests looks through all messages of a queue with every call, so that thousands of messages would
measure the server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers.programs import installed
from demo.processes import LOOPBACK, free_port, listens, start_process, wait_until
from demo.sqs_server import READY_SECONDS, REGION, SqsServer

_JARS: Final = "elasticmq/target/dependency"


def server_version() -> str:
    """Return the version that runs.

    Raises:
        FileNotFoundError: It is not installed.
    """
    (jar,) = installed(_JARS).glob("elasticmq-server_*.jar")
    return f"ElasticMQ {jar.stem.rpartition('-')[2]}"


@contextmanager
def elasticmq(directory: Path) -> Iterator[SqsServer]:
    """Run the server on the loopback address and a free port, until the block ends.

    Args:
        directory: Where its log goes.

    Yields:
        The server, ready for requests, without queues.

    Raises:
        FileNotFoundError: It is not installed.
        demo.processes.ProcessFailedError: It did not start.
    """
    port = free_port()
    settings = {
        "node-address.protocol": "http",
        "node-address.host": LOOPBACK,
        "node-address.port": port,
        "rest-sqs.bind-hostname": LOOPBACK,
        "rest-sqs.bind-port": port,
        "rest-stats.enabled": "false",
        "aws.region": REGION,
    }
    process = start_process(
        "ElasticMQ",
        [
            "/usr/bin/env",
            "java",
            *(f"-D{name}={value}" for name, value in settings.items()),
            "-cp",
            f"{installed(_JARS)}/*",
            "org.elasticmq.server.Main",
        ],
        log_path=directory / "sqs-server.log",
        environment={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
        directory=directory,
    )
    try:
        wait_until(lambda: listens(port), processes=[process], what="ready", deadline_seconds=READY_SECONDS)
        yield SqsServer(f"http://{LOOPBACK}:{port}", process)
    finally:
        process.stop()
