"""The Airflow processes that the demo and the end-to-end tests run on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from demo.airflow_api import AirflowApiError
from demo.airflow_stack import COMPONENTS, AirflowStack, airflow_stack

# In every run, the end-to-end tests stand on these.
pytestmark = pytest.mark.processes

DAGS_FOLDER = Path(__file__).parent / "dags_greetings"


@pytest.fixture(scope="module")
def dags_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(DAGS_FOLDER, tmp_path_factory.mktemp("files") / "dags")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, dags_folder: Path) -> Iterator[AirflowStack]:
    home = tmp_path_factory.mktemp("airflow")
    with airflow_stack(home, dags_folder, {"AIRFLOW_VAR_CITY": "Lisbon"}) as running:
        yield running
        processes = list(running.processes.values())
    assert not any(process.session_pids() for process in processes)


def test_a_run_can_be_triggered_and_read(stack: AirflowStack) -> None:
    stack.wait_for_dag("greetings")
    run_id = stack.api.trigger("greetings")

    assert stack.wait_for_run("greetings", run_id, deadline_seconds=90) == "failed"

    assert stack.api.run_states("greetings") == {run_id: "failed"}
    states = {(task.task_id, task.map_index): task.state for task in stack.api.task_states("greetings", run_id)}
    assert states == {
        ("names", -1): "success",
        ("greet", 0): "success",
        ("greet", 1): "success",
        ("greet", 2): "success",
        ("fail", -1): "failed",
    }
    assert stack.api.xcom("greetings", run_id, "names") == ["Ada", "Grace", "Barbara"]
    assert stack.api.xcom("greetings", run_id, "greet", map_index=1) == "Good morning from Lisbon, Grace."
    assert stack.api.xcom("greetings", run_id, "fail") is None
    assert "Good morning from Lisbon, Grace." in stack.api.log("greetings", run_id, "greet", map_index=1)
    assert "out of greetings" in stack.api.log("greetings", run_id, "fail")


def test_new_and_changed_dag_files_are_noticed(stack: AirflowStack, dags_folder: Path) -> None:
    text = (DAGS_FOLDER / "greetings.py").read_text()
    file = dags_folder / "farewells.py"
    file.write_text(text.replace("greetings", "farewells"))
    stack.wait_for_dag("farewells", deadline_seconds=60)

    file.write_text(text.replace("greetings", "last_words"))

    stack.wait_for_dag("last_words", deadline_seconds=60)


def test_every_component_listens_on_the_loopback_address_only(stack: AirflowStack) -> None:
    addresses = {
        connection.laddr.ip
        for process in stack.processes.values()
        for pid in process.session_pids()
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }

    assert set(stack.processes) == set(COMPONENTS)
    assert addresses == {"127.0.0.1"}


def test_a_request_that_airflow_refuses_says_what_it_answered(stack: AirflowStack) -> None:
    with pytest.raises(AirflowApiError, match=r"404 to POST /dags/no_such_dag"):
        stack.api.trigger("no_such_dag")


def test_a_killed_component_can_be_started_again(stack: AirflowStack) -> None:
    killed = stack.processes["triggerer"]
    killed.kill()
    assert not killed.session_pids()

    started = stack.start("triggerer")

    assert started.pid != killed.pid
    assert stack.processes["triggerer"] is started
    assert started.is_running
