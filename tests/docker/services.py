"""The services of compose.yaml as values, with the settings of .env filled in."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from demo.compose.secrets import DATABASE_HOST
from tests.docker.compose_model import COMPOSE_FILE, filled_in, settings
from tests.docker.dockerfile import Dockerfile

DOCKER: Final = COMPOSE_FILE.parent
SETTINGS: Final = settings()
FILLED_IN: Final = filled_in(COMPOSE_FILE.read_text(), SETTINGS)
COMPOSE: Final[Mapping[str, Any]] = yaml.safe_load(FILLED_IN)
SERVICES: Final[Mapping[str, Mapping[str, Any]]] = COMPOSE["services"]
DAGSTER_CONFIGURATION: Final = DOCKER / "dagster"
DOCKERFILE: Final = Dockerfile.read()

POSTGRES_PORT: Final = 5432
PORTS_OF_OTHERS: Final = {DATABASE_HOST: POSTGRES_PORT, "prometheus": 9090, "grafana": 3000}
"""Where the services listen whose images are official ones."""


def is_ours(service: Mapping[str, Any]) -> bool:
    image: str = service["image"]
    return image.startswith("sqs-lease")


def is_server(service: Mapping[str, Any]) -> bool:
    """Whether a service runs for good: all others end, and are not started again."""
    return bool(service.get("restart", "no") != "no")


def in_profile(profile: str) -> dict[str, Mapping[str, Any]]:
    """The services that `docker compose --profile PROFILE up` starts."""
    return {name: service for name, service in SERVICES.items() if profile in service.get("profiles", [profile])}


def command_of(service: Mapping[str, Any]) -> list[str]:
    """The command of a service; empty where that is left to its image."""
    return [*service.get("entrypoint", ()), *service.get("command", ())]


def health_check_of(service: Mapping[str, Any]) -> list[str]:
    """The command of a service's health check; the command line of a shell in its words."""
    kind, *words = service.get("healthcheck", {"test": ["NONE"]})["test"]
    return shlex.split(words[0].replace("$$", "$")) if kind == "CMD-SHELL" else words


def mounts_of(service: Mapping[str, Any]) -> dict[str, str]:
    """The volumes, and files and directories of the checkout, by the paths that a service finds them at."""
    return {target: source for source, target, _ in mounts_with_modes_of(service)}


def mounts_with_modes_of(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """The source and the target of each mount of a service, and whether it is read-only."""
    for mount in service.get("volumes", ()):
        if isinstance(mount, str):
            source, target, *modes = mount.split(":")
            yield source, target, "ro" in ",".join(modes).split(",")
        else:
            yield mount["source"], mount["target"], mount.get("read_only", False)


def is_path(source: str) -> bool:
    """Whether the source of a mount is a path, not a volume."""
    return source.startswith(("/", "."))


def ports_of(name: str) -> set[int]:
    """The ports that a service listens on."""
    service = SERVICES[name]
    ports = {int(word) for word in command_of(service) if word.isdecimal()}
    if name == "sqs":
        ports.add(int(DOCKERFILE.stages["emulator"].pairs("ENV")["GATEWAY_PORT"]))
    if name in PORTS_OF_OTHERS:
        ports.add(PORTS_OF_OTHERS[name])
    if service.get("environment", {}).get("AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK") == "True":
        ports.add(int(airflow_options()["scheduler"]["scheduler_health_check_server_port"]["default"]))
    return ports


@cache
def airflow_options() -> dict[str, dict[str, dict[str, Any]]]:
    """The options of the installed Airflow, by section and name."""
    airflow = find_spec("airflow")
    assert airflow is not None
    assert airflow.submodule_search_locations is not None
    (package,) = airflow.submodule_search_locations
    text = (Path(package) / "config_templates" / "config.yml").read_text()
    # The parser in C, where it is: the file is long.
    sections = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return {section: found["options"] for section, found in sections.items()}
