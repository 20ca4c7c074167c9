"""Dagster as real processes: code server, web server and daemon on an instance of their own.

The instance is on PostgreSQL where a database is given, and else on SQLite, in files of the stack's own home.

The code server is `dagster code-server start`: a process that answers, and below it the server that has the
definitions. Reloading the code location replaces the latter; the former one lives until its last run is over. The
server that `dagster api grpc` starts cannot reload. Runs are processes below the server with the definitions (the
default run launcher), and the steps of the multiprocess executor processes below their run.

Nothing listens anywhere but on the loopback address: code server and web server on free ports there, the server with
the definitions on a socket in a directory that goes with the stack.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from demo.dagster_answers import Location, Run
from demo.dagster_api import FINAL_RUN_STATES, DagsterApi
from demo.postgres import postgres_server, save_data
from demo.processes import (
    LOOPBACK,
    ROOT,
    ServerProcess,
    await_stop,
    free_port,
    listens,
    request_stop,
    start_process,
    wait_until,
)
from demo.sessions import send_signal, wait_for

CODE_SERVER, WEB_SERVER, DAEMON = COMPONENTS = ("code-server", "webserver", "daemon")
"""Dagster's processes."""

READY_SECONDS = 180.0

INSTANCE: Mapping[str, Mapping[str, Any]] = {
    "telemetry": {"enabled": False},
    "nux": {"enabled": False},
    "sensors": {"use_threads": True},
    # The default coordinator, which looks for queued runs every five seconds by itself.
    "run_queue": {"dequeue_interval_seconds": 1},
}
"""The settings in `dagster.yaml` of every stack."""


class DagsterSetupError(RuntimeError):
    """Dagster's database could not be made, or its definitions not loaded; the message has Dagster's output."""


@dataclass(frozen=True, slots=True)
class DagsterStack:
    """A running Dagster."""

    home: Path
    """Its `DAGSTER_HOME`: configuration, logs, and the instance where that is on SQLite."""
    url: str
    """The address of the user interface and the GraphQL API."""
    api: DagsterApi
    """The GraphQL API."""
    environment: Mapping[str, str]
    """The environment of its processes; with it, Dagster's own commands act on this stack."""
    code_server_port: int
    processes: dict[str, ServerProcess] = field(default_factory=dict)
    """The processes by the name of their component, see :data:`COMPONENTS`."""
    _commands: dict[str, list[str]] = field(default_factory=dict)
    _started_at: dict[str, float] = field(default_factory=dict)
    _former_code_servers: list[ServerProcess] = field(default_factory=list)

    def start(self, component: str) -> ServerProcess:
        """Start a component, for example one that was killed; its log goes on in the same file.

        A former process of the component is ended first, with its children, but not runs of a code server that
        :meth:`kill_code_server` killed.

        Args:
            component: Its name, see :data:`COMPONENTS`.

        Returns:
            The process, which is also in :attr:`processes`; it may not be ready yet, see :meth:`wait_until_ready`.
        """
        if component in self.processes:
            self.processes[component].stop()
        self._started_at[component] = time.time()
        process = start_process(
            f"Dagster's {component}",
            [sys.executable, "-m", *self._commands[component]],
            # Not in `logs`: what is there Dagster takes for its telemetry.
            log_path=self.home / "process-logs" / f"{component}.log",
            environment=self.environment,
            directory=self.home,
        )
        self.processes[component] = process
        return process

    def wait_until_ready(self, deadline_seconds: float = READY_SECONDS) -> None:
        """Wait until every component does its work.

        Raises:
            DagsterSetupError: The definitions could not be loaded.
            demo.processes.ProcessFailedError: A component ended, or is not ready at the deadline.
        """
        wait_until(
            self._is_ready,
            processes=list(self.processes.values()),
            what="ready",
            deadline_seconds=deadline_seconds,
        )

    def wait_for_run(self, run_id: str, deadline_seconds: float) -> Run:
        """Wait until a run is over.

        Returns:
            The run, whose state is SUCCESS, FAILURE or CANCELED.

        Raises:
            demo.processes.ProcessFailedError: It is not over at the deadline, or the web server ended.
        """
        wait_until(
            lambda: self.api.run(run_id).state in FINAL_RUN_STATES,
            processes=[self.processes[WEB_SERVER]],
            what=f"done with the run {run_id}",
            deadline_seconds=deadline_seconds,
        )
        return self.api.run(run_id)

    def run_worker(self, run_id: str) -> int | None:
        """The id of the process of a run, `None` when none runs."""
        pids = [
            int(event.metadata["pid"])
            for event in self.api.events(run_id)
            if event.event_type == "ENGINE_EVENT" and event.message.startswith("Started process for run")
        ]
        running = [pid for pid in pids if pid in self._code_server_pids()]
        return running[-1] if running else None

    def step_processes(self, run_id: str) -> dict[str, int]:
        """The ids of the processes of a run's steps that run, by the key of the step.

        Only the multiprocess executor starts any: without it, steps run in the process of their run.
        """
        running = self._code_server_pids()
        return {
            event.step: int(event.metadata["pid"])
            for event in self.api.events(run_id)
            if event.event_type == "STEP_WORKER_STARTED"
            and event.step is not None
            and int(event.metadata["pid"]) in running
        }

    def servers_with_definitions(self) -> list[int]:
        """The ids of the processes below the code server that have loaded the definitions.

        One, and after a reload those of former definitions that still have a run, or have not noticed yet that
        they have none.
        """
        return [pid for pid in self.processes[CODE_SERVER].session_pids() if "grpc" in _arguments(pid)]

    def kill_code_server(self) -> None:
        """End the code server at once (SIGKILL), as if it had run out of memory; its runs go on.

        They end with the stack at the latest.
        """
        process = self.processes.pop(CODE_SERVER)
        self._former_code_servers.append(process)
        pids = [process.pid, *(pid for pid in process.session_pids() if "grpc" in _arguments(pid))]
        send_signal(pids, signal.SIGKILL)
        process.popen.wait()
        wait_for(pids, seconds=10.0)

    def stop(self, grace_seconds: float) -> None:
        """End everything: SIGTERM, time to finish, then SIGKILL for whatever is left."""
        processes = [*self.processes.values(), *self._former_code_servers]
        request_stop(processes)
        await_stop(processes, grace_seconds)

    def _code_server_pids(self) -> set[int]:
        current = self.processes.get(CODE_SERVER)
        servers = [*self._former_code_servers, *([current] if current is not None else [])]
        return {pid for server in servers for pid in server.session_pids()}

    def _is_ready(self) -> bool:
        if CODE_SERVER in self.processes and not listens(self.code_server_port):
            return False
        if not self.api.is_up():
            return False
        if CODE_SERVER in self.processes and not _is_loaded(self.api.code_location()):
            return False
        beats = self.api.heartbeats().values()
        return DAEMON not in self.processes or min(beats, default=0.0) >= self._started_at[DAEMON]


@contextmanager
def dagster_stack(
    home: Path,
    definitions: str | Path,
    environment: Mapping[str, str] | None = None,
    *,
    database_url: str | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    stop_grace_seconds: float = 10.0,
) -> Iterator[DagsterStack]:
    """Run Dagster's processes until the block ends.

    Args:
        home: A directory for this stack alone; made when it is missing. An instance in it is used again.
        definitions: A module or a file with the definitions. The checkout is on their import path.
        environment: Environment variables for all of its processes. Dagster's and AWS's variables of the calling
            process are not passed on, the rest of its environment is.
        database_url: A PostgreSQL database for SQLAlchemy, with Dagster's tables (see :func:`dagster_postgres`) or
            empty; `None` makes an instance on SQLite, or uses it again, in `home`.
        settings: More sections of `dagster.yaml`, for example
            `{"run_retries": {"enabled": True, "max_retries": 2}, "run_monitoring": {"enabled": True}}`.
        stop_grace_seconds: How long the processes may take to end by themselves when the block ends.

    Yields:
        The stack, with all components ready.

    Raises:
        DagsterSetupError: Its database could not be made, or the definitions cannot be loaded.
        demo.processes.ProcessFailedError: A component did not start.
    """
    home = home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    if database_url is None:
        _copy_instance(home)
    code_server_port, web_port = free_port(), free_port()
    location = definitions.stem if isinstance(definitions, Path) else definitions
    _write_settings(home, database_url, settings or {})
    workspace = home / "workspace.yaml"
    server = {"host": LOOPBACK, "port": code_server_port, "location_name": location}
    workspace.write_text(json.dumps({"load_from": [{"grpc_server": server}]}))
    source = (
        ["--module-name", definitions]
        if isinstance(definitions, str)
        else ["--python-file", str(definitions.resolve())]
    )
    commands = {
        CODE_SERVER: [
            *("dagster", "code-server", "start", "--host", LOOPBACK, "--port", str(code_server_port)),
            *("--location-name", location, "--working-directory", str(ROOT), *source),
        ],
        WEB_SERVER: ["dagster_webserver", "--host", LOOPBACK, "--port", str(web_port), "--workspace", str(workspace)],
        DAEMON: ["dagster._daemon", "run", "--workspace", str(workspace)],
    }
    url = f"http://{LOOPBACK}:{web_port}"
    # Not in `home`: the path of a socket is at most 107 bytes long.
    with tempfile.TemporaryDirectory(prefix="dagster-") as sockets, DagsterApi(url, location) as api:
        own = _environment(home, Path(sockets), environment or {})
        stack = DagsterStack(home, url, api, own, code_server_port, _commands=commands)
        try:
            stack.start(CODE_SERVER)
            # It notices a code server that comes later; the daemon would fail runs meanwhile.
            stack.start(WEB_SERVER)
            wait_until(
                lambda: listens(code_server_port),
                processes=list(stack.processes.values()),
                what="ready",
                deadline_seconds=READY_SECONDS,
            )
            stack.start(DAEMON)
            stack.wait_until_ready()
            yield stack
        finally:
            stack.stop(stop_grace_seconds)


def dagster_postgres() -> Path:
    """The data of a PostgreSQL server with Dagster's tables and nothing else, made once for each version of Dagster.

    Returns:
        An archive for :func:`demo.postgres.postgres_server`.

    Raises:
        DagsterSetupError: Dagster could not make the tables.
        demo.postgres.PostgresSetupError: The server's data could not be made.
    """
    kept = ROOT / ".demo" / "databases" / f"dagster-{version('dagster')}-postgres.tar"
    if not kept.exists():
        with postgres_server() as server, tempfile.TemporaryDirectory() as home:
            _make_tables(Path(home), server.url)
            save_data(server, kept)
    return kept


def _copy_instance(home: Path) -> None:
    """Put an empty instance on SQLite into a home that has none, as it is made once for each version of Dagster."""
    if (home / "history").exists():
        return
    kept = ROOT / ".demo" / "databases" / f"dagster-{version('dagster')}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
            made = Path(temporary) / "instance"
            made.mkdir()
            _make_tables(made, None)
            # Renaming is atomic. Where another process did the same meanwhile, its equal directory stays.
            with suppress(OSError):
                made.rename(kept)
    for part in ("history", "schedules"):
        shutil.copytree(kept / part, home / part)


def _make_tables(home: Path, database_url: str | None) -> None:
    _write_settings(home, database_url, {})
    result = subprocess.run(
        [sys.executable, "-m", "dagster", "instance", "migrate"],
        env=_environment(home, home, {}),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise DagsterSetupError(f"Dagster could not make its database:\n{result.stdout}")


def _write_settings(home: Path, database_url: str | None, settings: Mapping[str, Mapping[str, Any]]) -> None:
    storage = {} if database_url is None else {"storage": {"postgres": {"postgres_url": database_url}}}
    path = home / "dagster.yaml"
    path.touch(mode=0o600)
    # JSON is YAML, too.
    path.write_text(json.dumps({**INSTANCE, **storage, **settings}))


def _environment(home: Path, sockets: Path, given: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DAGSTER", "AWS_", "PYTHON"))
    }
    own = {
        "DAGSTER_HOME": str(home),
        # The setting of the instance stops the recording only: files in `logs` of the home would be sent all the same.
        "DAGSTER_DISABLE_TELEMETRY": "yes",
        # A run that a busy code server does not start in time fails for good; by default that is after a minute.
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "300",
        "DAGSTER_GRPC_SHUTDOWN_GRACE_PERIOD": "60",
        # The server with the definitions ends when that above it says nothing for so long; by default half a minute.
        "DAGSTER_GRPC_PROXY_HEARTBEAT_TTL_SECONDS": "300",
        "TMPDIR": str(sockets),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "NO_PROXY": f"{LOOPBACK},localhost",
        "no_proxy": f"{LOOPBACK},localhost",
        # Only the given credentials: a stack on this machine must never use a developer's real account.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return {**inherited, **own, **given}


def _is_loaded(location: Location) -> bool:
    if location.error is not None and not location.is_unreachable:
        raise DagsterSetupError(f"Dagster cannot load the definitions: {location.error}")
    return location.server_id is not None


def _arguments(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:  # It ended meanwhile.
        return []
