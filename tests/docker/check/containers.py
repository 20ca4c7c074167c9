"""Services of compose.yaml as processes from the built image: their command, environment, volumes, host and memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from demo.processes import ServerProcess, await_stop, start_process
from demo.sessions import send_signal
from tests.docker.check.images import Images
from tests.docker.check.network import Network
from tests.docker.compose_model import Service

CGROUP: Final = Path("/sys/fs/cgroup/memory/sqs-lease-check")
"""Where memory is limited: cgroups of version 1. Elsewhere it is limited by nothing, see :func:`limits_memory`."""

RUN_SECONDS: Final = 600.0
"""How long a service may take that ends by itself."""

# Its pid is in the cgroup before it becomes the container.
_ENTER: Final = 'if [ -n "$1" ]; then echo $$ > "$1/cgroup.procs"; fi && shift && exec "$@"'


class ServiceError(RuntimeError):
    """A service failed, or did not get healthy; the message says which, and shows the end of its log."""


@dataclass(slots=True)
class Memory:
    """The memory that a service may use, and the most that it was seen to use, in bytes."""

    limit: int
    most: int = 0
    kills: int = 0


class Containers:
    """The running services.

    Args:
        images: Where the images are.
        hosts: The network with a host for each service.
        directory: Where volumes and logs go.
    """

    def __init__(self, images: Images, hosts: Network, directory: Path) -> None:
        self._images, self._hosts = images, hosts
        self.volumes, self.logs = directory / "volumes", directory / "logs"
        self.processes: dict[str, ServerProcess] = {}
        self.memory: dict[str, Memory] = {}
        self._containers: dict[str, str] = {}
        self._services: dict[str, Service] = {}
        self._measuring = threading.Thread(target=self._measure, daemon=True)
        self._ended = threading.Event()
        self.logs.mkdir(parents=True)
        self._measuring.start()

    def start(self, service: Service, command: Sequence[str] | None = None) -> ServerProcess:
        """Start a service, or another command in a container like its own.

        Args:
            service: What to start.
            command: What to run in place of its own command.

        Returns:
            The process; it may not be ready yet.
        """
        name = service.name
        self._services[name] = service
        if name not in self._containers:
            self._containers[name] = self._images.call("from", "--pull-never", f"localhost/{service.image}")
            self._images.call("mount", self._containers[name])
            self.memory[name] = Memory(service.memory_bytes)
            if limits_memory():
                group = CGROUP / name
                group.mkdir(parents=True, exist_ok=True)
                (group / "memory.limit_in_bytes").write_text(str(service.memory_bytes))
        process = start_process(
            name,
            self._command(service, command if command is not None else service.command),
            log_path=self.logs / f"{name}.log",
            environment={"PATH": os.environ["PATH"]},
            directory=self.volumes.parent,
        )
        self.processes[name] = process
        return process

    def run(self, service: Service, *arguments: str, entrypoint: int = 0) -> str:
        """Run a service that ends, as `docker compose run` does.

        Args:
            service: What to run.
            *arguments: What to pass in place of its own command.
            entrypoint: How many words of its command are its entry point, which stays.

        Returns:
            Its output.

        Raises:
            ServiceError: Its exit code was not 0, or it did not end.
        """
        own = list(service.command or ())
        log = self.logs / f"{service.name}.log"
        before = log.stat().st_size if log.exists() else 0
        process = self.start(service, [*own[:entrypoint], *arguments] if arguments else own)
        try:
            code = process.popen.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            raise ServiceError(str(process.failure(f"did not end within {RUN_SECONDS:.0f} s"))) from None
        finally:
            self.processes.pop(service.name).kill()
        output = log.read_bytes()[before:].decode(errors="replace")
        if code != 0:
            raise ServiceError(f"{service.name} ended with exit code {code}:\n{output}")
        return output

    def execute(self, service: Service, command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command beside a running service, as `docker compose exec` does.

        Raises:
            subprocess.TimeoutExpired: It took too long.
        """
        return subprocess.run(
            self._command(service, command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )

    def await_health(self, service: Service, deadline_seconds: float) -> None:
        """Wait until a service's own health check says that it works.

        Raises:
            ServiceError: The service ended, or the deadline passed.
        """
        check = service.health_check
        if check is None:
            return
        process, deadline = self.processes[service.name], time.monotonic() + deadline_seconds
        said = ""
        while time.monotonic() < deadline:
            if not process.is_running:
                raise ServiceError(str(process.failure(f"ended with exit code {process.popen.returncode}")))
            try:
                asked = self.execute(service, check.command, check.timeout)
            except subprocess.TimeoutExpired:
                said = f"no answer within {check.timeout:.0f} s"
            else:
                if asked.returncode == 0:
                    return
                said = asked.stdout.strip()
            with suppress(subprocess.TimeoutExpired):
                process.popen.wait(check.start_interval)
        raise ServiceError(str(process.failure(f"is not healthy: {said[-2000:]}")))

    def kill(self, name: str) -> None:
        """End a service at once, as `docker compose kill` does."""
        self.processes.pop(name).kill()

    def stop(self, name: str) -> float:
        """End a service in an orderly way, as `docker compose stop` does.

        Returns:
            How many seconds it took.

        Raises:
            ServiceError: It had to be killed.
        """
        process = self.processes.pop(name)
        began = time.monotonic()
        send_signal(self._first_processes(process), signal.SIGTERM)
        try:
            process.popen.wait(self._services[name].stop_grace_seconds)
        except subprocess.TimeoutExpired:
            await_stop([process], 0.0)
            raise ServiceError(f"{name} did not end by itself within its stop_grace_period.") from None
        process.kill()
        return time.monotonic() - began

    def remove(self) -> None:
        """End what still runs, and remove the containers; volumes and logs stay."""
        self._ended.set()
        self._measuring.join()
        # One after the other, whatever any of them raises.
        with ExitStack() as ending:
            for name in self.memory:
                ending.callback(_remove_group, CGROUP / name)
            for container in self._containers.values():
                ending.callback(self._images.call, "rm", container)
            for process in self.processes.values():
                ending.callback(process.kill)

    def volume(self, name: str) -> Path:
        """The directory of a volume on this machine."""
        return self.volumes / name

    def _command(self, service: Service, command: Sequence[str] | None) -> list[str]:
        container = self._containers[service.name]
        hostname = self._hosts.hostnames[service.name]
        environment = {**service.environment, "HOSTNAME": hostname}
        options = [part for name, value in environment.items() for part in ("--env", f"{name}={value}")]
        for mount in service.mounts:
            source = self._volume(container, mount.source, mount.target) if mount.is_volume else Path(mount.source)
            options += ["--volume", f"{source}:{mount.target}{':ro' if mount.is_read_only else ''}"]
        group = CGROUP / service.name if limits_memory() else ""
        return [
            *("/usr/bin/nsenter", f"--net={self._hosts.namespace(service.name)}"),
            *("sh", "-c", _ENTER, "sh", str(group), "setpriv", "--no-new-privs"),
            *self._images.command("run", "--isolation", "chroot", "--cap-drop", "all"),
            *("--hostname", hostname, "--no-hosts"),
            *("--volume", f"{self._hosts.hosts_file}:/etc/hosts:ro"),
            *(*options, container, "--", *(command or self._own_command(container))),
        ]

    def _own_command(self, container: str) -> list[str]:
        found = json.loads(self._images.call("inspect", container))
        command: list[str] = found["OCIv1"]["config"]["Cmd"]
        return command

    def _volume(self, container: str, name: str, target: str) -> Path:
        """The directory of a volume; a new one gets the owner of what it hides, as on Docker."""
        directory = self.volumes / name.removeprefix("sqs-lease_")
        if not directory.exists():
            hidden = Path(self._images.call("mount", container), target.lstrip("/"))
            directory.mkdir(parents=True)
            if hidden.exists():
                status = hidden.stat()
                os.chown(directory, status.st_uid, status.st_gid)
                shutil.copymode(hidden, directory)
        return directory

    @staticmethod
    def _first_processes(process: ServerProcess) -> list[int]:
        """The processes that a container began with: what `docker stop` sends its signal to."""
        inside = {pid for pid in process.session_pids() if _root(pid) not in ("/", "") and not _is_buildah(pid)}
        return [pid for pid in inside if _parent(pid) not in inside]

    def _measure(self) -> None:
        while not self._ended.wait(1.0):
            for name, memory in list(self.memory.items()):
                with suppress(OSError):
                    lines = (CGROUP / name / "memory.stat").read_text().splitlines()
                    used = int(next(line for line in lines if line.startswith("total_rss ")).split()[1])
                    memory.most = max(memory.most, used)
                    control = (CGROUP / name / "memory.oom_control").read_text().split()
                    memory.kills = int(control[control.index("oom_kill") + 1])


def limits_memory() -> bool:
    """Whether the limits of compose.yaml are enforced on this machine."""
    return CGROUP.parent.is_dir()


def _remove_group(group: Path) -> None:
    with suppress(OSError):
        group.rmdir()


def _root(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/root").readlink())
    except OSError:
        return ""


def _is_buildah(pid: int) -> bool:
    """Whether a process is buildah itself, which enters the container and waits there for the end of the command."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"buildah")
    except OSError:
        return True


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
