"""Errors that Airflow answers, and the client of its API; all else is tested with a real one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from demo.airflow_api import AirflowApi, AirflowApiError

DEADLOCK = {"reason": "Database error", "statement": "hidden", "orig_error": "hidden", "message": "look for ID 5"}


class Airflow(BaseHTTPRequestHandler):
    """An API server whose first answers to a deletion are errors."""

    errors: ClassVar[list[Any]]
    deletions: ClassVar[int]

    instances: ClassVar[int] = 0

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if not address.path.endswith("/taskInstances"):
            self._answer(200, {"access_token": "secret"})
            return
        asked = parse_qs(address.query)
        start, limit = int(asked.get("offset", ["0"])[0]), min(100, int(asked["limit"][0]))
        found = [
            {"task_id": "work", "map_index": index, "state": None, "try_number": 0, "end_date": None}
            for index in range(self.instances)[start : start + limit]
        ]
        self._answer(200, {"task_instances": found, "total_entries": self.instances})

    def do_DELETE(self) -> None:
        type(self).deletions += 1
        if self.errors:
            self._answer(500, {"detail": self.errors.pop(0)})
        else:
            self._answer(200, {})

    def _answer(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class names it
        """Write nothing."""


@pytest.fixture
def airflow() -> type[Airflow]:
    class Answering(Airflow):
        errors: ClassVar[list[Any]] = []
        deletions: ClassVar[int] = 0

    return Answering


@pytest.fixture
def api(airflow: type[Airflow]) -> Iterator[AirflowApi]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), airflow)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with AirflowApi(f"http://127.0.0.1:{server.server_port}") as client:
            yield client
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_request_that_the_database_undid_is_made_again(airflow: type[Airflow], api: AirflowApi) -> None:
    airflow.errors = [DEADLOCK, DEADLOCK]
    api.delete_dag("orders")
    assert airflow.deletions == 3


def test_a_database_that_undoes_a_request_every_time_is_an_error(airflow: type[Airflow], api: AirflowApi) -> None:
    airflow.errors = [DEADLOCK] * 100
    with pytest.raises(AirflowApiError, match=r"500 to DELETE /dags/orders: .*Database error"):
        api.delete_dag("orders")
    assert airflow.deletions == 5


@pytest.mark.parametrize("detail", ["a bug", {"reason": "another"}, None])
def test_other_errors_of_airflows_are_not_asked_for_again(
    airflow: type[Airflow], api: AirflowApi, detail: object
) -> None:
    airflow.errors = [detail]
    with pytest.raises(AirflowApiError, match="500"):
        api.delete_dag("orders")
    assert airflow.deletions == 1


@pytest.mark.parametrize("instances", [0, 1, 100, 250])
def test_all_task_instances_are_read_although_airflow_gives_a_hundred_at_a_time(
    airflow: type[Airflow], api: AirflowApi, instances: int
) -> None:
    airflow.instances = instances
    assert [task.map_index for task in api.task_states("orders", "a run")] == [*range(instances)]
