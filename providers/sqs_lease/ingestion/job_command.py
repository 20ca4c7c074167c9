"""How the job is called: the arguments of ``python -m sqs_lease.spark.job``, and the environment that it gets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def job_arguments(spec: Mapping[str, Any], manifests: Iterable[str], result: str | None = None) -> list[str]:
    """Return the job's arguments, as whatever submits it takes them.

    Args:
        spec: Source, sink and workspace, see ``sqs_lease/ingestion_spec.py``.
        manifests: Where the messages are, as paths or URIs that the job reaches.
        result: Where it writes its result; None where it is started under Dagster Pipes, which carries the result.
    """
    named = [argument for manifest in manifests for argument in ("--manifest", manifest)]
    return [*named, *(["--result", result] if result is not None else []), "--spec", json.dumps(dict(spec))]


def job_command(python: str, spark: str, arguments: Iterable[str]) -> list[str]:
    """Return the command of a job that runs beside its task, and ends with it.

    Args:
        python: The Python of an environment with ``sqs-lease[spark]``.
        spark: Where Spark runs: a master such as ``local[2]`` or ``spark://host:7077``, or a Connect server
            (``sc://host:15002``).
        arguments: What :func:`job_arguments` returned.
    """
    engine = "--remote" if spark.startswith("sc://") else "--master"
    return [python, "-m", "sqs_lease.spark.job", *arguments, engine, spark, "--end-with-stdin"]


def job_environment(environment: Mapping[str, str], *, leave_out: str) -> dict[str, str]:
    """Return what a job gets of its task's environment: all but the orchestrator's own, which may hold its secrets.

    Args:
        environment: The task's.
        leave_out: What the orchestrator's variables begin with, after underscores.
    """
    passed = {name: value for name, value in environment.items() if not name.lstrip("_").startswith(leave_out)}
    return {**passed, "PYTHONUNBUFFERED": "1"}
