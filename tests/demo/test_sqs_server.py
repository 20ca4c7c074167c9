"""The SQS server that the demo and the tests run against."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from demo import sqs_server as module
from demo.sqs_server import SetupMissingError, SqsServer, sqs_server


@pytest.mark.processes
def test_the_server_serves_queues_on_the_loopback_address_and_is_gone_afterwards(tmp_path: Path) -> None:
    with sqs_server(tmp_path) as server:
        queue_url = make_queue(server)
        listening = {
            connection.laddr.ip
            for connection in psutil.Process(server.pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }

    assert queue_url.startswith(server.endpoint_url)
    assert listening == {"127.0.0.1"}
    assert not psutil.pid_exists(server.pid)
    assert server.log_path.parent == tmp_path


@pytest.mark.processes
def test_the_server_is_stopped_when_the_block_raises() -> None:
    pids = []

    def fail() -> None:
        with sqs_server() as server:
            pids.append(server.pid)
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fail()

    assert not psutil.pid_exists(pids[0])


def test_without_its_environment_the_error_names_the_setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path)

    with pytest.raises(SetupMissingError, match="make setup"), sqs_server():
        pass


def make_queue(server: SqsServer) -> str:
    client = server.sqs_client()
    return client.create_queue(QueueName="orders")["QueueUrl"]
