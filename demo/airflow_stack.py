"""Airflow as real processes: API server, scheduler, DAG processor and triggerer on a database of their own.

The database is PostgreSQL where one is given, as two triggerers need it (:func:`migrated_postgres`), and else SQLite,
in a file of the stack's own home. Airflow itself sets that to write-ahead logging, so readers never wait; writers wait
for one another, here up to a minute instead of SQLite's default of five seconds, and take the write lock when they
begin (`IMMEDIATE`), so that no transaction fails half way because another one wrote meanwhile. That is enough for
the demo, and needs no server and no download. For a test with many runs it is not: the API server of Airflow 3.3 notes
who did what in its event loop, and while it waits there for the write lock, no request that has it comes to its end. So
runs that are triggered while the tasks of others start can hold everything up until the minute is over.

Nothing listens anywhere but on the loopback address: the API server gets a free port there; the log servers of
scheduler and triggerer, which always listen on every address, are left out: all logs are files of one home.
"""

from __future__ import annotations

import base64
import configparser
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from demo.airflow_api import FINAL_RUN_STATES, AirflowApi
from demo.postgres import postgres_server, save_data
from demo.processes import (
    LOOPBACK,
    ROOT,
    ServerProcess,
    await_stop,
    free_port,
    request_stop,
    start_process,
    wait_until,
)

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "api-server": ("api-server", "--workers", "1"),
    "scheduler": ("scheduler", "--skip-serve-logs"),
    "dag-processor": ("dag-processor",),
    "triggerer": ("triggerer", "--skip-serve-logs"),
}
"""Airflow's processes: the arguments of its command by the name of the component."""

WORKER = "worker"
"""The component that runs the tasks of the CeleryExecutor; started on demand only."""

SECOND_TRIGGERER = "triggerer-2"
"""One more component, started on demand only."""

_COMMANDS: Mapping[str, tuple[str, ...]] = {**COMPONENTS, WORKER: ("celery", "worker", "--skip-serve-logs")}

LOCAL_SETTINGS = Path(__file__).with_name("airflow_local_settings.py")

READY_SECONDS = 300.0


class AirflowSetupError(RuntimeError):
    """Airflow's database could not be made; the message has Airflow's output."""


@dataclass(frozen=True, slots=True)
class AirflowStack:
    """A running Airflow."""

    home: Path
    """Its `AIRFLOW_HOME`: configuration, database and logs."""
    url: str
    """The address of the user interface and the REST API; everybody who opens it is an administrator."""
    api: AirflowApi
    """The REST API."""
    environment: Mapping[str, str]
    """The environment of its processes; with it, Airflow's own commands act on this stack."""
    processes: dict[str, ServerProcess] = field(default_factory=dict)
    """The processes by the name of their component, see :data:`COMPONENTS`."""

    def start(self, component: str, *options: str, environment: Mapping[str, str] | None = None) -> ServerProcess:
        """Start a component, for example one that was killed; its log goes on in the same file.

        A former process of the component is ended first, with its children.

        Args:
            component: Its name, see :data:`COMPONENTS`, or :data:`WORKER`; with a number behind it (`scheduler-2`) it
                is one more of that kind.
            options: More options of its command.
            environment: Variables in addition to the stack's, or in their place.

        Returns:
            The process, which is also in :attr:`processes`; it may not be ready yet.
        """
        if component in self.processes:
            self.processes[component].stop()
        process = start_process(
            f"Airflow's {component}",
            [sys.executable, "-m", "airflow", *_COMMANDS[re.sub(r"-\d+$", "", component)], *options],
            log_path=self.home / "logs" / f"{component}.log",
            environment={**self.environment, **(environment or {})},
            directory=self.home,
        )
        self.processes[component] = process
        return process

    def wait_for_dag(self, dag_id: str, deadline_seconds: float = 240.0) -> None:
        """Wait until the DAG can be triggered.

        Raises:
            demo.airflow_api.AirflowApiError: A DAG file could not be imported.
            demo.processes.ProcessFailedError: It did not come in time.
        """
        wait_until(
            lambda: self.api.has_dag(dag_id),
            processes=[self.processes["dag-processor"]],
            what=f"done with the DAG {dag_id}",
            deadline_seconds=deadline_seconds,
        )

    def wait_for_run(self, dag_id: str, run_id: str, deadline_seconds: float) -> str:
        """Wait until a run is over.

        Returns:
            Its state, success or failed.

        Raises:
            demo.processes.ProcessFailedError: It is not over at the deadline, or Airflow's scheduler ended.
        """
        wait_until(
            lambda: self.api.run_state(dag_id, run_id) in FINAL_RUN_STATES,
            processes=[self.processes["scheduler"]],
            what=f"done with the run {run_id} of {dag_id}",
            deadline_seconds=deadline_seconds,
        )
        return self.api.run_state(dag_id, run_id)


@contextmanager
def airflow_stack(
    home: Path,
    dags_folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    database_url: str | None = None,
    components: Sequence[str] = tuple(COMPONENTS),
    stop_grace_seconds: float = 10.0,
) -> Iterator[AirflowStack]:
    """Run Airflow's processes until the block ends.

    Args:
        home: A directory for this stack alone; made when it is missing. A database in it is used again.
        dags_folder: The DAG files; new and changed ones are read within seconds. New DAGs are not paused.
        environment: Environment variables for all of its processes: connections (`AIRFLOW_CONN_...`), variables
            (`AIRFLOW_VAR_...`), and settings (`AIRFLOW__...`), which override the ones made here. Airflow's and
            AWS's variables of the calling process are not passed on, the rest of its environment is.
        database_url: A database with Airflow's tables, for SQLAlchemy (see :func:`migrated_postgres`); None makes
            one of SQLite, or uses it again, in `home`.
        components: The components to start, the API server among them.
        stop_grace_seconds: How long the processes may take to end by themselves when the block ends.

    Yields:
        The stack, with these components healthy.

    Raises:
        AirflowSetupError: Its database could not be made.
        demo.processes.ProcessFailedError: A component did not start.
    """
    home.mkdir(parents=True, exist_ok=True)
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    database = home / "airflow.db"
    _write_settings(home, _settings(home, dags_folder, database_url or _sqlite_url(database), port))
    (home / "config").mkdir(exist_ok=True)
    shutil.copy(LOCAL_SETTINGS, home / "config")
    if database_url is None and not database.exists():
        _copy_database(migrated_database(), database)
    with AirflowApi(url) as api:
        stack = AirflowStack(home, url, api, _environment(home, environment or {}))
        try:
            for component in components:
                stack.start(component)
            awaited = {"metadatabase", *(component.replace("-", "_") for component in components)} - {"api_server"}
            wait_until(
                lambda: all(api.health().get(name) == "healthy" for name in awaited),
                processes=list(stack.processes.values()),
                what="ready",
                deadline_seconds=READY_SECONDS,
            )
            yield stack
        finally:
            processes = list(stack.processes.values())
            request_stop(processes)
            await_stop(processes, stop_grace_seconds)


def migrated_database() -> Path:
    """A database with Airflow's tables and nothing else, made once for each version of Airflow.

    Raises:
        AirflowSetupError: Airflow could not make it.
    """
    kept = ROOT / ".demo" / "databases" / f"airflow-{version('apache-airflow-core')}.db"
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        home = Path(temporary)
        database, copy = home / "airflow.db", home / "copy.db"
        _migrate(home, _sqlite_url(database))
        # A copy is whole by itself, whatever was still to be written back from the log of the original.
        _copy_database(database, copy)
        # Renaming is atomic: another process that did the same meanwhile made an equal file.
        copy.rename(kept)
    return kept


def migrated_postgres() -> Path:
    """The data of a PostgreSQL server with Airflow's tables and nothing else, made once for each version of Airflow.

    Returns:
        An archive for :func:`demo.postgres.postgres_server`.

    Raises:
        AirflowSetupError: Airflow could not make the tables.
        demo.postgres.PostgresSetupError: The server's data could not be made.
    """
    kept = ROOT / ".demo" / "databases" / f"airflow-{version('apache-airflow-core')}-postgres.tar"
    if not kept.exists():
        with postgres_server() as server, tempfile.TemporaryDirectory() as home:
            _migrate(Path(home), server.url)
            save_data(server, kept)
    return kept


def _migrate(home: Path, database_url: str) -> None:
    _write_settings(home, _settings(home, home / "dags", database_url, port=0))
    result = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env=_environment(home, {}),
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise AirflowSetupError(f"Airflow could not make its database:\n{result.stdout}")


def _sqlite_url(database: Path) -> str:
    return f"sqlite:///{database.resolve()}?timeout=60&isolation_level=IMMEDIATE"


def _copy_database(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as original, closing(sqlite3.connect(target)) as copy:
        original.backup(copy)


def _settings(home: Path, dags_folder: Path, database_url: str, port: int) -> dict[str, dict[str, str]]:
    url = f"http://{LOOPBACK}:{port}"
    return {
        "core": {
            "dags_folder": str(dags_folder.resolve()),
            "executor": "LocalExecutor",
            "parallelism": "8",
            "execution_api_server_url": f"{url}/execution/",
            "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "simple_auth_manager_all_admins": "True",
            "load_examples": "False",
            "dags_are_paused_at_creation": "False",
            # On a busy machine everything is slow at first: that is to take time, and not to fail.
            "dagbag_import_timeout": "150",
        },
        "database": {"sql_alchemy_conn": database_url},
        "api": {"host": LOOPBACK, "port": str(port), "base_url": url, "secret_key": secrets.token_hex(32)},
        "api_auth": {"jwt_secret": secrets.token_hex(64)},
        # A request that is given up and sent again may have been carried out: then a task can no longer be started.
        "workers": {"execution_api_timeout": "60"},
        "dag_processor": {
            "dag_file_processor_timeout": "200",
            "refresh_interval": "5",
            "bundle_refresh_check_interval": "1",
            "parsing_processes": "1",
            # Files that did not change; those that did are looked at as soon as that is noticed.
            "min_file_process_interval": "300",
        },
        "scheduler": {"scheduler_idle_sleep_time": "0.5"},
        "logging": {"base_log_folder": str(home.resolve() / "logs"), "colored_console_log": "False"},
    }


def _write_settings(home: Path, settings: Mapping[str, Mapping[str, str]]) -> None:
    # As a file and not as environment variables, so that `AIRFLOW_HOME=... airflow ...` is all that is needed to
    # look into a stack; and because Airflow's processes would otherwise all write the file, at the same time.
    parser = configparser.RawConfigParser()
    parser.read_dict(
        {
            section: {name: value.replace("%", "%%") for name, value in options.items()}
            for section, options in settings.items()
        }
    )
    path = home / "airflow.cfg"
    path.touch(mode=0o600)
    with path.open("w") as file:
        parser.write(file)


def _environment(home: Path, given: Mapping[str, str]) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "AWS_", "PYTHON"))
    }
    own = {
        "AIRFLOW_HOME": str(home.resolve()),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "NO_PROXY": f"{LOOPBACK},localhost",
        # Only the given credentials: a stack on this machine must never use a developer's real account.
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return {**inherited, **own, **given}
