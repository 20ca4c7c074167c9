"""docker/compose.yaml as Docker Compose itself reads it: by the library that is its loader, with .env filled in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dotenv import dotenv_values

DOCKER: Final = Path(__file__).resolve().parents[2] / "docker"

LOADER: Final = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
"""The loader as a command, from the Go proxy."""


COMPOSE_FILE: Final = DOCKER / "compose.yaml"
SETTING: Final = re.compile(r"\$\{(\w+):\?\}")


class LoaderMissingError(RuntimeError):
    """There is nothing here that reads a compose file as Docker Compose does."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of a service."""

    source: str
    """The name of a volume, or the absolute path of a file or directory of this machine."""
    target: str
    is_volume: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How a service is asked whether it works; times are in seconds."""

    command: Sequence[str]
    timeout: float
    start_period: float
    start_interval: float


@dataclass(frozen=True, slots=True)
class Service:
    """One service of the stack."""

    name: str
    hostname: str | None
    """Its name for itself; `None` is the id of its container."""
    image: str
    command: Sequence[str] | None
    """With its entry point before it; `None` is the image's own."""
    environment: Mapping[str, str]
    waits_for: Mapping[str, str]
    """The conditions, by the services that it depends on."""
    health_check: HealthCheck | None
    mounts: Sequence[Mount]
    memory_bytes: int
    ports: Sequence[int]
    """The ports of the container that are published."""
    profiles: frozenset[str]
    stop_grace_seconds: float


def load(environment: Mapping[str, str]) -> dict[str, Service]:
    """Read the whole file, with all profiles.

    Args:
        environment: Settings that go before those of .env, for example `{"FLIGHTS_RUN_SECONDS": "60"}`.

    Returns:
        The services by their names, each after those that it waits for.

    Raises:
        LoaderMissingError: There is no Go here to run the loader with.
        subprocess.CalledProcessError: The loader refuses the file; it has said why.
    """
    go = shutil.which("go")
    if go is None:
        raise LoaderMissingError("Go is not installed: compose.yaml is read by Docker Compose's own loader.")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as filled:
        filled.write(filled_in(COMPOSE_FILE.read_text(), {**settings(), **environment}))
        filled.flush()
        read = subprocess.run(
            [go, "run", LOADER, "-format", "json", filled.name],
            cwd=DOCKER,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            check=True,
        )
    services = {name: _service(name, found) for name, found in json.loads(read.stdout)["services"].items()}
    ordered: dict[str, Service] = {}

    def add(name: str) -> None:
        for before in services[name].waits_for:
            add(before)
        ordered.setdefault(name, services[name])

    for name in services:
        add(name)
    return ordered


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """Put settings into the text of compose.yaml, where `${NAME:?}` is the only form that stands for one.

    The loader as a command fills in nothing; `docker compose` hands the settings to it.

    Raises:
        KeyError: A setting is missing.
    """
    return SETTING.sub(lambda found: values[found[1]], text)


def settings() -> dict[str, str]:
    """Read the settings of docker/.env."""
    return {name: value or "" for name, value in dotenv_values(DOCKER / ".env", interpolate=False).items()}


def _service(name: str, found: Mapping[str, Any]) -> Service:
    entrypoint, command = found.get("entrypoint"), found.get("command")
    return Service(
        name=name,
        hostname=found.get("hostname"),
        image=found["image"],
        command=None if command is None and entrypoint is None else [*(entrypoint or ()), *(command or ())],
        environment={key: str(value) for key, value in found.get("environment", {}).items()},
        waits_for={on: how["condition"] for on, how in found.get("depends_on", {}).items()},
        health_check=_health_check(found["healthcheck"]) if "healthcheck" in found else None,
        mounts=[
            Mount(
                mount["source"],
                mount["target"],
                is_volume=mount["type"] == "volume",
                is_read_only=mount.get("read_only", False),
            )
            for mount in found.get("volumes", ())
        ],
        memory_bytes=_bytes(found["mem_limit"]),
        ports=[port["target"] for port in found.get("ports", ())],
        profiles=frozenset(found.get("profiles", ())),
        stop_grace_seconds=_seconds(found.get("stop_grace_period", "10s")),
    )


def _health_check(found: Mapping[str, Any]) -> HealthCheck:
    kind, *command = found["test"]
    return HealthCheck(
        command=command if kind == "CMD" else ["/bin/sh", "-c", *command],
        timeout=_seconds(found["timeout"]),
        start_period=_seconds(found.get("start_period", found["interval"])),
        start_interval=_seconds(found.get("start_interval", found["interval"])),
    )


def _seconds(duration: str) -> float:
    """Read a duration as Go prints it, such as `1m30s`."""
    minutes, _, rest = duration.rpartition("m")
    return float(minutes or 0) * 60 + float(rest.removesuffix("s") or 0)


def _bytes(size: str) -> int:
    return int(size[:-1]) << {"m": 20, "g": 30}[size[-1]]
