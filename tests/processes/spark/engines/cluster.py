"""A Spark cluster and a Connect server as real processes, started from the pip package alone."""

from __future__ import annotations

import json
import os
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark

from demo.processes import LOOPBACK, ROOT, ServerProcess, await_stop, free_port, request_stop, start_process, wait_until

HOME: Final = Path(pyspark.__file__).parent
READY_SECONDS: Final = 240.0
DONE_SECONDS: Final = 280.0
STOP_SECONDS: Final = 10.0
WORKERS: Final = 2
START_QUICKLY: Final = "-XX:TieredStopAtLevel=1"
"""Options of Java for processes that live for one test."""


@dataclass(frozen=True, slots=True)
class Engine:
    """Where drivers find a running engine.

    Attributes:
        address: The address that sessions use: that of a master or of a Connect server.
        processes: Its processes.
        directory: For logs.
    """

    address: str
    processes: tuple[ServerProcess, ...]
    directory: Path

    def start_driver(self, **order: Any) -> Driver:
        """Start a process that ingests: see `driver`."""
        number = len(list(self.directory.glob("driver-*.log")))
        command = [
            sys.executable,
            "-m",
            "tests.processes.spark.engines.driver",
            json.dumps({"engine": self.address, **order}),
        ]
        process = start_process(
            "driver",
            command,
            log_path=self.directory / f"driver-{number}.log",
            environment=environment(),
            directory=self.directory,
        )
        return Driver(process, self)


@dataclass(frozen=True, slots=True)
class Driver:
    """A process that ingests."""

    process: ServerProcess
    engine: Engine

    def results(self) -> list[dict[str, Any]]:
        """Return its report on each batch, when it has ended."""
        try:
            code = self.process.popen.wait(DONE_SECONDS)
            if code != 0:
                raise self.process.failure(f"ended with exit code {code}")
        finally:
            self.process.kill()
        return self.said()

    def end(self) -> int:
        """Its exit code, when it has ended."""
        try:
            return self.process.popen.wait(DONE_SECONDS)
        finally:
            self.process.kill()

    def wait_until_there(self, directory: Path, pattern: str) -> Path:
        """A file, when it is there."""
        wait_until(
            lambda: any(directory.glob(pattern)),
            processes=[self.process, *self.engine.processes],
            what="as far as the test wants it",
            deadline_seconds=DONE_SECONDS,
        )
        return next(directory.glob(pattern))

    def said(self) -> list[dict[str, Any]]:
        """Return its reports so far."""
        lines = self.process.log_path.read_text().splitlines()
        return [json.loads(line[1:]) for line in lines if line.startswith("@")]


@contextmanager
def standalone_cluster(
    directory: Path, workers: int = WORKERS, *, java_options: str = START_QUICKLY
) -> Iterator[Engine]:
    """A standalone master and workers of one core each, until the block ends.

    Args:
        directory: For logs and what workers write.
        workers: How many.
        java_options: For all its processes.
    """
    port, page = free_port(), free_port()
    address = f"spark://{LOOPBACK}:{port}"
    master = _start(
        "master",
        directory,
        "spark-class",
        "org.apache.spark.deploy.master.Master",
        *("--host", LOOPBACK, "--port", port, "--webui-port", page),
        java_options=java_options,
    )
    processes = [master]
    try:
        _wait_for_port(port, processes)
        for number in range(workers):
            work = directory / f"worker-{number}"
            worker = _start(
                work.name,
                directory,
                "spark-class",
                "org.apache.spark.deploy.worker.Worker",
                *("--host", LOOPBACK, "--port", free_port(), "--webui-port", free_port()),
                *("--cores", 1, "--memory", "1g", "--work-dir", work, address),
                java_options=java_options,
            )
            processes.append(worker)
        wait_until(
            lambda: _state(page).get("aliveworkers") == workers,
            processes=processes,
            what="joined by its workers",
            deadline_seconds=READY_SECONDS,
        )
        yield Engine(address, tuple(processes), directory)
    finally:
        # A driver that goes away lets the workers end its executors.
        _stop(processes)


@contextmanager
def connect_server(directory: Path, master: str, *, java_options: str = START_QUICKLY) -> Iterator[Engine]:
    """A Spark Connect server, until the block ends.

    Args:
        directory: For its log.
        master: Where its executors run.
        java_options: For its process.
    """
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": port,
        **session_settings(),
    }
    server = _start(
        "connect-server",
        directory,
        "spark-submit",
        *("--master", master, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        "spark-internal",
        java_options=java_options,
    )
    try:
        _wait_for_port(port, [server])
        yield Engine(f"sc://{LOOPBACK}:{port}", (server,), directory)
    finally:
        _stop([server])


def session_settings() -> dict[str, str]:
    """The settings of a session on the cluster."""
    return {
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": environment()["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def environment(java_options: str = START_QUICKLY) -> dict[str, str]:
    """The environment of every process."""
    return {
        "PATH": os.environ["PATH"],
        **{name: os.environ[name] for name in ("JAVA_HOME",) if name in os.environ},
        "JDK_JAVA_OPTIONS": java_options,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
    }


def _start(
    name: str, directory: Path, program: str, *arguments: object, java_options: str = START_QUICKLY
) -> ServerProcess:
    return start_process(
        name,
        [HOME / "bin" / program, *map(str, arguments)],
        log_path=directory / f"{name}.log",
        environment=environment(java_options),
        directory=directory,
    )


def _stop(processes: list[ServerProcess]) -> None:
    request_stop(processes)
    await_stop(processes, STOP_SECONDS)


def _wait_for_port(port: int, processes: list[ServerProcess]) -> None:
    def answers() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex((LOOPBACK, port)) == 0

    wait_until(answers, processes=processes, what="ready", deadline_seconds=READY_SECONDS)


def _state(page: int) -> dict[str, Any]:
    # While Spark puts its pages together, another one of them answers here, in HTML.
    with (
        suppress(OSError, json.JSONDecodeError),
        urllib.request.urlopen(f"http://{LOOPBACK}:{page}/json/", timeout=5) as answer,
    ):
        state: dict[str, Any] = json.load(answer)
        return state
    return {}
