"""Prometheus in place of the official image, which comes from a registry: the same version, built by Go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from demo.processes import ServerProcess, start_process
from demo.prometheus import prometheus_program
from tests.docker.check.network import Network
from tests.docker.compose_model import Service

DATA: Final = "--storage.tsdb.path="


def start_prometheus(service: Service, hosts: Network, directory: Path, log: Path) -> ServerProcess:
    """Start the server with the command line and the configuration of compose.yaml; it may not be ready yet.

    Args:
        service: The service of compose.yaml.
        hosts: The network.
        directory: Where its data go.
        log: Where it logs.
    """
    directory.mkdir(parents=True)
    options = [f"{DATA}{directory}" if option.startswith(DATA) else option for option in service.command or ()]
    for mount in service.mounts:
        if not mount.is_volume:
            options = [option.replace(f"={mount.target}", f"={mount.source}") for option in options]
    return start_process(
        service.name,
        ["/usr/bin/nsenter", f"--net={hosts.namespace(service.name)}", prometheus_program(), *options],
        log_path=log,
        environment={"PATH": os.environ["PATH"]},
        directory=directory,
    )
