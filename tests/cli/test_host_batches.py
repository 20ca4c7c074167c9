"""What `sqs-lease watch` reads of Airflow and Dagster, over their public APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from sqs_lease.cli.host_batches import AIRFLOW_PASSWORD, AIRFLOW_TOKEN, AIRFLOW_USER
from sqs_lease.testing.leased_queues import LeasedQueues
from sqs_lease.testing.pytest_plugin import leased_queues
from tests.cli.commands import Ran, sqs_lease

__all__ = ["leased_queues"]

TASK = {
    "dag_id": "orders",
    "dag_run_id": "manual__2026-11-23T12:00:00+00:00",
    "task_id": "keeper",
    "map_index": -1,
    "state": "deferred",
    "start_date": "2026-11-23T12:00:00Z",
}
TASKS = "/api/v2/dags/~/dagRuns/~/taskInstances"
INSTANCES = "/api/v2/dags/orders/dagRuns/manual__2026-11-23T12%3A00%3A00%2B00%3A00/taskInstances"
KEEPS = f"{INSTANCES}/keeper/xcomEntries/keeps"
PROGRESS = f"{INSTANCES}/receive/xcomEntries/settled"
MATERIALIZATION = {
    "runId": "a-run",
    "timestamp": "1795435200000",
    "metadataEntries": [
        {"label": "sqs/received", "intRepr": "10"},
        {"label": "sqs/deleted", "intRepr": "9"},
        {"label": "sqs/dead_lettered", "intRepr": "1"},
        {"label": "sqs/lost", "intRepr": "0"},
        {"label": "sqs/queue", "text": "https://sqs.us-east-1.amazonaws.com/1/orders"},
        {"label": "rows"},
    ],
}


@dataclass(slots=True)
class Host:
    """A host's API: answers by path, or by (status, answer)."""

    url: str = ""
    answers: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)


@pytest.fixture
def host() -> Iterator[Host]:
    running = Host()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            running.requests.append((self.path, dict(self.headers), json.loads(content) if content else None))
            given = running.answers.get(self.path.partition("?")[0], (404, {"detail": "not found"}))
            status, answer = given if isinstance(given, tuple) else (200, given)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = answer  # noqa: N815
        do_POST = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        running.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield running
        server.shutdown()


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, leased_queues: LeasedQueues) -> None:
    for name in (AIRFLOW_TOKEN, AIRFLOW_USER, AIRFLOW_PASSWORD):
        monkeypatch.delenv(name, raising=False)
    leased_queues.create("orders")


def watched(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    ran = sqs_lease("watch", "orders", "--json", *arguments)
    assert ran.exit_code == exit_code, ran
    answer: dict[str, Any] = json.loads(ran.out)
    return answer


def airflow(host: Host) -> None:
    host.answers[TASKS] = {"task_instances": [TASK], "total_entries": 1}
    host.answers[KEEPS] = {"key": "keeps", "value": {"receive_task_id": "receive", "status": {}}}
    host.answers[PROGRESS] = {"key": "settled", "value": {"settled": "dd-rd", "certain_until": None, "counts": {}}}


def words(ran: Ran) -> str:
    return " ".join(ran.out.split())


def test_airflow_tells_of_the_batches_whose_keepers_are_at_work(host: Host) -> None:
    airflow(host)
    (batch,) = watched("--airflow", host.url)["batches"]

    assert (batch["host"], batch["name"], batch["state"]) == ("Airflow", "orders.keeper", "deferred")
    assert batch["counts"] == {"deleted": 3, "released": 1}
    path, headers, _ = host.requests[0]
    assert "operator=SqsLeaseKeeperOperator" in path
    assert "state=deferred" in path
    assert "Authorization" not in headers


@pytest.mark.parametrize("columns", [60, 120])
def test_batches_stand_below_the_queues(host: Host, columns: int) -> None:
    airflow(host)
    ran = sqs_lease("watch", "orders", "--airflow", host.url, columns=columns)

    assert ran.exit_code == 0
    assert "3 deleted, 1" in words(ran)
    assert max(map(len, ran.out.splitlines())) <= columns


def test_a_keeper_that_settled_nothing_yet_is_shown(host: Host) -> None:
    host.answers[TASKS] = {"task_instances": [TASK | {"start_date": None}], "total_entries": 1}
    (batch,) = watched("--airflow", host.url)["batches"]

    assert (batch["counts"], batch["at"]) == ({}, None)


def test_a_token_or_a_login_comes_from_the_environment(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    airflow(host)
    monkeypatch.setenv(AIRFLOW_TOKEN, "a-token")
    watched("--airflow", host.url)
    assert all(headers["Authorization"] == "Bearer a-token" for _, headers, _ in host.requests)

    host.requests.clear()
    host.answers["/auth/token"] = (201, {"access_token": "another-token"})
    monkeypatch.delenv(AIRFLOW_TOKEN)
    monkeypatch.setenv(AIRFLOW_USER, "me")
    monkeypatch.setenv(AIRFLOW_PASSWORD, "a-secret")
    watched("--airflow", host.url)
    (login, *others) = host.requests
    assert (login[0], login[2]) == ("/auth/token", {"username": "me", "password": "a-secret"})
    assert all(headers["Authorization"] == "Bearer another-token" for _, headers, _ in others)


def test_dagster_tells_of_the_last_batch_of_each_asset(host: Host) -> None:
    nodes = [
        {"key": {"path": ["shop", "orders"]}, "assetMaterializations": [MATERIALIZATION]},
        {"key": {"path": ["plain"]}, "assetMaterializations": [MATERIALIZATION | {"metadataEntries": []}]},
        {"key": {"path": ["never"]}, "assetMaterializations": []},
    ]
    host.answers["/graphql"] = {"data": {"assetsOrError": {"__typename": "AssetConnection", "nodes": nodes}}}
    (batch,) = watched("--dagster", host.url)["batches"]

    assert (batch["host"], batch["name"], batch["run"]) == ("Dagster", "shop/orders", "a-run")
    assert batch["counts"] == {"received": 10, "deleted": 9, "dead-lettered": 1, "lost": 0}
    assert "10 received, 9 deleted, 1 dead-lettered" in words(sqs_lease("watch", "orders", "--dagster", host.url))


@pytest.mark.parametrize(
    ("option", "answer", "says"),
    [
        ("--airflow", (401, {}), "Airflow refused"),
        ("--airflow", (403, {}), f"Set {AIRFLOW_TOKEN}, or {AIRFLOW_USER} and {AIRFLOW_PASSWORD}"),
        ("--airflow", (500, {}), "500"),
        ("--dagster", (401, {}), "Dagster refused"),
        ("--dagster", {"errors": [{"message": "no such field"}]}, "no such field"),
    ],
)
def test_a_host_that_does_not_answer_is_trouble_beside_the_queues(
    host: Host, option: str, answer: Any, says: str
) -> None:
    host.answers = {TASKS: answer, "/graphql": answer}
    found = watched(option, host.url, exit_code=1)

    assert [queue["queue"] for queue in found["queues"]] == ["orders"]
    assert says in found["trouble"][0]


def test_in_a_pipe_a_host_that_is_away_is_trouble_too() -> None:
    ran = sqs_lease("watch", "orders", "--airflow", "http://127.0.0.1:1")

    assert ran.exit_code == 1
    assert "Airflow gave no usable answer" in ran.out


def test_a_host_that_is_away_is_trouble_too() -> None:
    found = watched("--airflow", "http://127.0.0.1:1", exit_code=1)

    assert "Airflow gave no usable answer at http://127.0.0.1:1/" in found["trouble"][0]


def test_what_is_no_url_is_refused() -> None:
    ran = sqs_lease("watch", "orders", "--airflow", "airflow")

    assert ran.exit_code == 2
    assert "--airflow takes a URL that begins with http:// or https://, not 'airflow'." in f"{ran.err.strip()}."
