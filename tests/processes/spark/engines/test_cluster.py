"""Ingestion on a standalone cluster, and through Spark Connect, with real processes that are killed.

Master, workers, Connect server and drivers run on one machine: they share its file system, as a real cluster shares a
network file system or S3, and nothing here says how those behave.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.processes.spark.engines.cluster import Engine, connect_server, standalone_cluster
from tests.processes.spark.engines.driver import DOOR, OPENED
from tests.spark.driver import AFTER_THE_ADMISSION, AFTER_THE_APPLICATION, BEFORE_THE_COMMIT, BEFORE_WRITING
from tests.spark.samples import named_files, staged_files, stored_ids

# A cluster is six Javas. Without one, `test_drivers.py` kills drivers in the short form, too.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

MOMENTS = (BEFORE_WRITING, BEFORE_THE_COMMIT, AFTER_THE_ADMISSION, AFTER_THE_APPLICATION)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def connect(cluster: Engine) -> Iterator[Engine]:
    with connect_server(cluster.directory, cluster.address) as running:
        yield running


def test_a_batch_lands_once_although_an_executor_is_killed(cluster: Engine, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    os.mkfifo(gate / DOOR)
    steps = [{"messages": [1, 2, 3]}, {"messages": [3, 4, 5], "gate": str(gate)}]
    driver = cluster.start_driver(root=str(tmp_path), steps=steps)
    worker = driver.wait_until_there(gate, "worker-*")

    executor = executor_of(int(worker.name.partition("-")[2]))
    (gate / OPENED).touch()
    executor.send_signal(signal.SIGKILL)

    first, second = driver.results()
    assert (first["ingested"], first["duplicates"]) == (3, 0)
    assert (second["ingested"], second["duplicates"], second["rejected"]) == (2, 1, {})
    assert stored_ids(tmp_path / "table") == ["m1", "m2", "m3", "m4", "m5"]
    assert staged_files(tmp_path / "table") == named_files(tmp_path / "table")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_batch_of_a_killed_driver_lands_once_when_it_is_run_again(
    cluster: Engine, tmp_path: Path, moment: str
) -> None:
    killed = cluster.start_driver(root=str(tmp_path), steps=[{"messages": [1, 2, 3], "die": moment}])
    assert killed.end() == -signal.SIGKILL

    again = cluster.start_driver(root=str(tmp_path), steps=[{"messages": [1, 2, 3]}, {"messages": [3, 4]}])
    first, second = again.results()
    assert (first["ingested"], first["duplicates"]) == (3, 0)
    assert (second["ingested"], second["duplicates"]) == (1, 1)
    assert stored_ids(tmp_path / "table") == ["m1", "m2", "m3", "m4"]


def test_a_connect_session_ingests_as_any_other(connect: Engine, tmp_path: Path) -> None:
    steps = [{"messages": [1, 2, 3]}, {"messages": [2, 3, 4]}, {"messages": [1, 2, 3]}]
    first, second, third = connect.start_driver(root=str(tmp_path), steps=steps).results()
    assert (first["ingested"], first["duplicates"]) == (3, 0)
    assert (second["ingested"], second["duplicates"]) == (1, 2)
    assert (third["ingested"], third["duplicates"], third["batch_id"]) == (3, 0, first["batch_id"])
    assert stored_ids(tmp_path / "table") == ["m1", "m2", "m3", "m4"]


def executor_of(python_worker: int) -> psutil.Process:
    """The executor that started a Python worker."""
    return next(
        process
        for process in psutil.Process(python_worker).parents()
        if any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())
    )
