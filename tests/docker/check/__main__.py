"""Runs the check: `make docker-check`. It exits with 1 when something is not as docker/README.md says."""

# ruff: noqa: T201 - what it prints is for people

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import httpx
from botocore.exceptions import BotoCoreError, ClientError

from demo.airflow_api import AirflowApiError
from demo.dagster_api import DagsterApiError
from demo.lock import LockedError, locked
from demo.processes import ROOT, ProcessFailedError
from demo.prometheus import PrometheusMissingError, QueryError
from tests.docker.check.containers import ServiceError, limits_memory
from tests.docker.check.images import BASE_IMAGE, KEPT, Images
from tests.docker.check.scenario import CheckError, use
from tests.docker.check.stack import LAST, stack
from tests.docker.check.warnings import secrets_in_logs, warnings_in_logs
from tests.docker.compose_model import LoaderMissingError, Service, load

PROGRAMS = ("buildah", "debootstrap", "go", "ip", "nsenter", "setpriv", "unshare")
"""The programs that the check runs, beside those that `make setup` installs."""

EXTRAS = {"airflow": "apache-airflow", "dagster": "dagster", "spark": "pyspark"}
"""The extras of the image, and the package that an image without it must not have."""

BUILD_TOOLS = ("pip", "pip3", "uv", "gcc", "g++", "make", "git", "curl", "javac")

LOCK = Path("/run/lock/sqs-lease-docker-check")

EXPECTED_ERRORS = (
    AirflowApiError,
    BotoCoreError,
    CheckError,
    ClientError,
    DagsterApiError,
    httpx.HTTPError,
    LoaderMissingError,
    ProcessFailedError,
    PrometheusMissingError,
    QueryError,
    ServiceError,
    subprocess.CalledProcessError,
)
"""Errors whose message says all that one can act on; others are shown with their traceback."""

CLUSTER = "spark://spark-master:7077"


def main() -> int:
    """Run the check.

    Returns:
        The exit code.
    """
    began = time.monotonic()

    def show(line: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - began), 60)
        print(f"  {minutes:2}:{seconds:02}  {line}", flush=True)

    if os.geteuid() != 0:
        print("docker-check must be run as root: it makes network namespaces, and enters images.", file=sys.stderr)
        return 1
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print(
            f"docker-check needs {', '.join(missing)}. On Debian: "
            "apt install buildah debootstrap iproute2 util-linux; and Go 1.24 or newer.",
            file=sys.stderr,
        )
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with locked(LOCK):
            _check(show)
    except KeyboardInterrupt:
        print("Interrupted. Everything that was started has been stopped.", file=sys.stderr)
        return 130
    except LockedError as error:
        print(
            f"Another docker-check runs on this machine, with pid {error.pid}: they would share names.", file=sys.stderr
        )
        return 1
    except EXPECTED_ERRORS as error:
        print(
            f"docker-check failed: {error}\nAll logs are in {LAST / 'logs'} and {KEPT / 'build.log'}.", file=sys.stderr
        )
        return 1
    return 0


def _check(show: Callable[[str], None]) -> None:
    images = Images()
    _build(images, show)
    services = _services()
    with stack(services, images, show) as running:
        memory = running.containers.memory
        try:
            use(running, show)
            running.down()
        finally:
            for name, used in sorted(memory.items()):
                killed = ", which killed processes" if used.kills else ""
                show(f"memory of {name}: {used.most >> 20} of {used.limit >> 20} MiB{killed}")
    if too_small := [name for name, used in memory.items() if used.kills]:
        raise CheckError(f"The memory limit killed processes of {', '.join(too_small)}.")
    if found := secrets_in_logs(LAST):
        raise CheckError(f"Secrets stand in the logs of {', '.join(found)}.")
    lines = warnings_in_logs(LAST / "logs")
    (LAST / "warnings.txt").write_text("".join(f"{line}\n" for line in lines))
    show(f"{len(lines)} kinds of warnings in the logs: {(LAST / 'warnings.txt').relative_to(ROOT)}")
    if not limits_memory():
        show("the memory limits were not tried: there are no cgroups of version 1 here")
    show("all is as docker/README.md says; nothing of it runs any more")


def _services() -> dict[str, Service]:
    """The services; Airflow's Spark is in its tasks, as in .env, and Dagster's on the cluster: both are tried."""
    settings = {"DAGS_DIRECTORY": str(LAST / "dags"), "OTEL_SDK_DISABLED": "false"}
    on_cluster = load({**settings, "SPARK_MASTER": CLUSTER})
    return {
        name: on_cluster[name] if "dagster" in service.profiles else service for name, service in load(settings).items()
    }


def _build(images: Images, show: Callable[[str], None]) -> None:
    """Build the image for each extra and for all, and the emulator; then each again without a network."""
    log = KEPT / "build.log"
    log.unlink(missing_ok=True)
    images.make_base()
    base = images.size_bytes(BASE_IMAGE)
    show(f"the base: Debian with Python, {base / 1e6:.0f} MB")
    tag_of_version = version("sqs-lease")
    wanted: dict[str, tuple[dict[str, str], str | None]] = {
        f"sqs-lease-{extra}:{tag_of_version}": ({"EXTRAS": extra}, None) for extra in EXTRAS
    }
    wanted |= {f"sqs-lease:{tag_of_version}": ({}, None), f"sqs-lease-emulator:{tag_of_version}": ({}, "emulator")}
    for tag, (arguments, target) in wanted.items():
        images.build(tag, log, arguments=arguments, target=target)
        size = images.size_bytes(tag)
        began = time.monotonic()
        images.build(tag, log, arguments=arguments, target=target, offline=True)
        show(
            f"built {tag}: {size / 1e6:.0f} MB, {(size - base) / 1e6:.0f} of them on the base; "
            f"again without a network in {time.monotonic() - began:.0f} s"
        )
        if tools := images.programs(tag, BUILD_TOOLS):
            raise CheckError(f"{tag} has build tools: {', '.join(tools)}.")
    for extra in EXTRAS:
        packages = images.packages(f"sqs-lease-{extra}:{tag_of_version}")
        found = [name for name, package in EXTRAS.items() if package in packages]
        if found != [extra]:
            raise CheckError(f"The image for {extra} has {', '.join(found) or 'none of the three'}.")


if __name__ == "__main__":
    sys.exit(main())
