"""PostgreSQL in place of the official image, which comes from a registry: the same release, users and first script.

It sets up what that image does from its environment: a user with the password of the file, one database, the scripts
of `/docker-entrypoint-initdb.d`, and no access without the password.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from demo.postgres import copy_programs
from demo.processes import ServerProcess, start_process
from tests.docker.check.network import Network
from tests.docker.compose_model import Service

USER = "nobody"


class Database:
    """The server.

    Args:
        service: The service of compose.yaml.
        hosts: The network.
        directory: Where its programs and data go.
        volumes: Where the volumes of the stack are.
    """

    def __init__(self, service: Service, hosts: Network, directory: Path, volumes: Path) -> None:
        self._service, self._hosts, self._directory = service, hosts, directory
        directory.mkdir(parents=True)
        self._programs = copy_programs(directory) / "bin"
        self._volumes = volumes

    def start(self, log: Path) -> ServerProcess:
        """Make the data, and start the server; it may not be ready yet."""
        environment = self._service.environment
        user, database = environment["POSTGRES_USER"], environment["POSTGRES_DB"]
        data, password = self._directory / "data", self._directory / "password"
        data.mkdir(mode=0o700)
        password.write_text(self._file_of(environment["POSTGRES_PASSWORD_FILE"]).read_text())
        for path in (data, password):
            shutil.chown(path, USER)
        options = ("--username", user, "--pwfile", password, "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync")
        self._call("initdb", "--pgdata", data, *options)
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all all scram-sha-256\n")
        scripts = [
            Path(mount.source)
            for mount in self._service.mounts
            if mount.target.startswith("/docker-entrypoint-initdb.d/")
        ]
        script = f"CREATE DATABASE {database};\n" + "".join(path.read_text() for path in scripts)
        # As the official image does it: by a server that no client reaches, before the real one.
        single: list[str | Path] = [self._programs / "postgres", "--single", "-D", data, "postgres"]
        lines = "\n".join(line for line in script.splitlines() if not line.startswith("--")) + "\n"
        subprocess.run(
            single, input=lines, text=True, user=USER, env={"LC_ALL": "C"}, cwd=data, check=True, stdout=subprocess.PIPE
        )
        return start_process(
            "postgres",
            [
                *("/usr/bin/nsenter", f"--net={self._hosts.namespace('postgres')}", "setpriv"),
                *("--reuid", USER, "--regid", "nogroup", "--clear-groups"),
                *(self._programs / "postgres", "-D", data, "-c", "listen_addresses=*"),
                *("-c", "unix_socket_directories=", "-c", "max_connections=100"),
            ],
            log_path=log,
            environment={"LC_ALL": "C", "PATH": os.environ["PATH"]},
            directory=data,
        )

    def is_healthy(self) -> bool:
        """Ask the service's own health check."""
        assert self._service.health_check is not None
        program, *arguments = self._service.health_check.command
        namespace = f"--net={self._hosts.namespace('postgres')}"
        asked = subprocess.run(
            ["nsenter", namespace, self._programs / program, *arguments], stdout=subprocess.DEVNULL, check=False
        )
        return asked.returncode == 0

    def _file_of(self, target: str) -> Path:
        for mount in self._service.mounts:
            if target.startswith(f"{mount.target}/"):
                return self._volumes / mount.source.removeprefix("sqs-lease_") / target.removeprefix(f"{mount.target}/")
        raise FileNotFoundError(f"No volume of the service postgres has {target}.")

    def _call(self, program: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [self._programs / program, *arguments]
        subprocess.run(command, user=USER, env={"LC_ALL": "C"}, cwd=self._directory, stdout=subprocess.PIPE, check=True)
