"""The Dagster processes that the demo and the end-to-end tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from demo.dagster_api import DagsterApiError
from demo.dagster_stack import COMPONENTS, DagsterSetupError, DagsterStack, dagster_stack
from demo.processes import wait_until

# In every run, the end-to-end tests stand on these.
pytestmark = pytest.mark.processes

DEFINITIONS = Path(__file__).parent / "greetings.py"
ENVIRONMENT = {"CITY": "Lisbon"}
RUN_SECONDS = 120.0
NAP = {"ops": {"nap": {"config": {"seconds": 600.0}}}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DagsterStack]:
    with dagster_stack(tmp_path_factory.mktemp("dagster"), DEFINITIONS, ENVIRONMENT) as running:
        yield running
        processes = list(running.processes.values())
        sockets = Path(running.environment["TMPDIR"])
    assert not any(process.session_pids() for process in processes)
    assert not sockets.exists()


def step_process(stack: DagsterStack, run_id: str, step: str) -> int:
    wait_until(
        lambda: step in stack.step_processes(run_id),
        processes=list(stack.processes.values()),
        what=f"working on the step {step}",
        deadline_seconds=RUN_SECONDS,
    )
    return stack.step_processes(run_id)[step]


def listening_on(pid: int) -> set[str]:
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:  # A run that ended meanwhile.
        return set()
    # The code server has a socket for IPv6, too, which listens on the IPv4 address by its name there.
    return {
        connection.laddr.ip.removeprefix("::ffff:")
        for connection in connections
        if connection.status == psutil.CONN_LISTEN
    }


def test_an_asset_can_be_materialized_and_read(stack: DagsterStack) -> None:
    run_id = stack.api.materialize("greeting", tags={"day": "Monday"})

    run = stack.wait_for_run(run_id, RUN_SECONDS)

    assert (run.state, run.tags["day"]) == ("SUCCESS", "Monday")
    assert [found.run_id for found in stack.api.runs(tags={"day": "Monday"})] == [run_id]
    (materialization,) = stack.api.materializations("greeting")
    assert materialization.run_id == run_id
    assert materialization.metadata == {
        "words": 4,
        "text": "Good morning from Lisbon",
        "share": 0.5,
        "by": {"Ada": 1},
    }
    (result,) = stack.api.check_results("greeting", "polite")
    assert (result.run_id, result.status, result.metadata) == (run_id, "SUCCEEDED", {"bows": 2})
    assert "Good morning from Lisbon" in [event.message for event in stack.api.events(run_id)]


def test_a_failed_run_says_why_and_can_be_executed_again(stack: DagsterStack) -> None:
    run_id = stack.api.launch("failing")
    assert stack.wait_for_run(run_id, RUN_SECONDS).state == "FAILURE"
    (failure,) = [event for event in stack.api.events(run_id) if event.event_type == "STEP_FAILURE"]
    assert failure.step == "fail"
    assert failure.error is not None
    assert failure.error.endswith("ValueError: out of greetings")

    again = stack.api.reexecute(run_id, "FROM_FAILURE", {"try": "second"})

    run = stack.wait_for_run(again, RUN_SECONDS)
    assert (run.state, run.parent_run_id, run.tags["try"]) == ("FAILURE", run_id, "second")


def test_a_run_can_be_terminated(stack: DagsterStack) -> None:
    run_id = stack.api.launch("sleeping", config=NAP)
    process = step_process(stack, run_id, "nap")
    assert psutil.Process(process).ppid() == stack.run_worker(run_id)

    stack.api.terminate(run_id)

    assert stack.wait_for_run(run_id, RUN_SECONDS).state == "CANCELED"


def test_a_sensor_can_be_tested_started_and_stopped(stack: DagsterStack) -> None:
    tested = stack.api.test_sensor("every_tick")
    assert [(request.run_key, request.tags["asked"]) for request in tested.run_requests] == [("once", "by sensor")]
    assert stack.api.runs(tags={"asked": "by sensor"}) == []

    stack.api.start_sensor("every_tick")
    wait_until(
        lambda: any(tick.run_ids and tick.status != "STARTED" for tick in stack.api.ticks("every_tick")),
        processes=list(stack.processes.values()),
        what="done with a tick of the sensor",
        deadline_seconds=RUN_SECONDS,
    )
    stack.api.stop_sensor("every_tick")

    (tick,) = [tick for tick in stack.api.ticks("every_tick") if tick.run_ids]
    assert (tick.status, tick.error, list(tick.run_keys)) == ("SUCCESS", None, ["once"])
    assert [run.run_id for run in stack.api.runs(tags={"asked": "by sensor"})] == list(tick.run_ids)


def test_a_reload_takes_a_new_process(stack: DagsterStack) -> None:
    before, (process,) = stack.api.code_location(), stack.servers_with_definitions()

    after = stack.api.reload()

    assert after.error is None
    assert after.server_id != before.server_id
    assert set(stack.servers_with_definitions()) - {process} != set()


def test_every_component_listens_on_the_loopback_address_only(stack: DagsterStack) -> None:
    pids = [pid for process in stack.processes.values() for pid in process.session_pids()]

    assert set(stack.processes) == set(COMPONENTS)
    assert set[str]().union(*map(listening_on, pids)) == {"127.0.0.1"}


def test_the_logs_of_the_components_stay_where_they_are(stack: DagsterStack) -> None:
    assert all(process.log_path.exists() for process in stack.processes.values())


def test_a_request_that_dagster_refuses_says_what_it_answered(stack: DagsterStack) -> None:
    with pytest.raises(DagsterApiError, match=r"PipelineNotFoundError to mutation Launch .*no_such_job"):
        stack.api.launch("no_such_job")


def test_a_killed_daemon_can_be_started_again(stack: DagsterStack) -> None:
    killed = stack.processes["daemon"]
    killed.kill()
    assert not killed.session_pids()

    started = stack.start("daemon")
    stack.wait_until_ready()

    assert started.pid != killed.pid
    assert stack.wait_for_run(stack.api.launch("failing"), RUN_SECONDS).state == "FAILURE"


def test_runs_go_on_while_their_code_server_is_killed_and_started_again(stack: DagsterStack) -> None:
    run_id = stack.api.launch("sleeping", config=NAP)
    process = step_process(stack, run_id, "nap")
    worker = stack.run_worker(run_id)

    stack.kill_code_server()
    stack.start("code-server")
    stack.wait_until_ready()

    assert (stack.run_worker(run_id), stack.step_processes(run_id)) == (worker, {"nap": process})
    with pytest.raises(DagsterApiError, match="Could not find a server for run"):
        stack.api.terminate(run_id)
    stack.api.terminate(run_id, mark_as_canceled=True)
    assert stack.api.run(run_id).state == "CANCELED"


def test_definitions_that_cannot_be_loaded_are_told_at_once(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('no definitions today')")

    with pytest.raises(DagsterSetupError, match="no definitions today"), dagster_stack(tmp_path / "home", broken):
        pass
