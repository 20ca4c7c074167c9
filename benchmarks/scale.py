"""The load that one triggerer carries, by the number of runs: measured, beside the figures of docs/capacity.md.

    python -m benchmarks.scale [--runs 1 10 100 1000] [--messages 1000]

For each number of runs a process of its own (`benchmarks.scale_load`, which says what is real in it and what is not)
takes all leases over at once, as after the death of another triggerer, holds them until each was extended twice, and
settles them. A number takes four minutes and more, because the visibility timeout is the default one. Where other work
keeps the machine busy it takes longer, and the figures stay the same: *share* says how much of the time the process ran
or had nothing to do, and the rest does not count. The computed part
comes from the page's own arithmetic, so the page and this program cannot differ.

A number of runs is carried when no lease lapsed and all was taken over, extended and settled in the time for that.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from demo.processes import LOOPBACK, ROOT, free_port, start_process

PAGE: Final = ROOT / "docs" / "capacity.md"

MESSAGES_A_CALL: Final = 10
CALLS_OF_A_MESSAGE: Final = 3
"""Two extensions and a delete."""

LONGEST_SECONDS: Final = 1800.0

Figures: TypeAlias = Mapping[str, Any]
"""The output of `benchmarks.scale_load`."""

Line: TypeAlias = tuple[str, float, float]
"""A name, what is computed, and what was measured."""


def page_constants() -> Mapping[str, Any]:
    """The constants and functions of the page's arithmetic."""
    (code,) = (
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "def size(" in block
    )
    found: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec", dont_inherit=True), found)
    return found


def compared(runs: int, messages: int, figures: Figures, page: Mapping[str, Any]) -> list[Line]:
    """Compare the page's figures for one triggerer with the measured ones.

    Args:
        runs: Runs at once.
        messages: Messages of each.
        figures: The measured figures.
        page: The result of :func:`page_constants`.
    """
    leases = runs * messages
    phases = {phase["name"]: phase for phase in figures["phases"]}
    lines: list[Line] = [
        ("leases", leases, figures["leases"]),
        ("batches", runs, figures["batches"]),
        ("MB", page["MEGABYTES"] + leases * page["BYTES_A_LEASE"] / 1e6, figures["memory_mb"]),
        ("seconds of the takeover", page["takeover_seconds"](runs, messages), phases["take over"]["seconds"]),
    ]
    if (hold := phases.get("hold")) is not None:
        asked = sum(hold["asked"].values()) / hold["seconds"]
        expected = page["QUESTIONS_A_SECOND"] + runs * page["QUESTIONS_A_SECOND_AND_RUN"]
        lines.append(("questions to Airflow a second, holding", expected, asked))
    if is_finished(figures):
        calls = CALLS_OF_A_MESSAGE * runs * math.ceil(messages / MESSAGES_A_CALL)
        lines.append(("calls to SQS", calls, sum(sum(phase["calls"].values()) for phase in phases.values())))
    return lines


def is_finished(figures: Figures) -> bool:
    """Whether each phase came to its end."""
    return bool(figures["phases"][-1]["finished"])


def is_carried(figures: Figures) -> bool:
    """Whether no lease ended before its work, and each phase came to its end."""
    return is_finished(figures) and not (figures["lapsed"] or figures["lost"])


def show(runs: int, messages: int, figures: Figures, page: Mapping[str, Any]) -> None:
    """Print the tables of one number of runs."""
    print(f"\n{runs:,} runs of {messages:,} messages: {'' if is_carried(figures) else 'NOT '}carried")
    print(f"{'':40} {'computed':>12} {'measured':>12} {'ratio':>7}")
    for name, computed, measured in compared(runs, messages, figures, page):
        print(f"{name:40} {computed:12,.1f} {measured:12,.1f} {measured / computed:7.2f}")
    print(
        f"\n{'phase':<10} {'seconds':>8} {'share %':>7} {'SQS calls/s':>12} {'most':>6} {'Airflow/s':>10} {'most':>6} "
        f"{'CPU %':>6} {'ms/call':>8} {'stub CPU %':>11} {'blocked':>8} {'> 0.2 s':>9}"
    )
    for phase in figures["phases"]:
        print(_phase_line(phase))
    print(
        f"extensions: {figures['extensions']:,}; overdue by more than 1 s: {figures['overdue']:,}, "
        f"at most {figures['most_overdue_seconds']:.1f} s; lapsed: {figures['lapsed']:,}; lost: {figures['lost']:,}\n"
        f"deleted: {figures['deleted']:,}, of them uncertain: {figures['uncertain']:,}; "
        f"least left of a lease: {figures['least_left_seconds']:.0f} s; "
        f"received {figures['held_before_seconds']:.0f} s before the takeover; "
        f"memory before the first run: {figures['base_mb']:.0f} MB",
        flush=True,
    )


def _phase_line(phase: Mapping[str, Any]) -> str:
    seconds = phase["seconds"]
    calls, asked = sum(phase["calls"].values()), sum(phase["asked"].values())
    each = f"{1e3 * phase['cpu_seconds'] / calls:.1f}" if calls else ""
    return (
        f"{phase['name']:<10} {seconds:7.1f}{' ' if phase['finished'] else '+'} "
        f"{100 * seconds / phase['real_seconds']:7.0f} {calls / seconds:12.1f} {phase['busiest_calls']:6} "
        f"{asked / seconds:10.1f} {phase['busiest_asked']:6} "
        f"{100 * phase['cpu_seconds'] / seconds:6.1f} {each:>8} {100 * phase['stub_cpu_seconds'] / seconds:11.1f} "
        f"{phase['blocked_seconds']:8.2f} {phase['blocked_looks']:4}/{phase['looks']:<4}"
    )


def measure(runs: int, messages: int, page: Mapping[str, Any]) -> Figures:
    """Have one triggerer carry so many runs.

    Args:
        runs: Runs at once.
        messages: Messages of each.
        page: The result of :func:`page_constants`.

    Raises:
        subprocess.CalledProcessError: It failed; it wrote why to standard error.
    """
    with tempfile.TemporaryDirectory(prefix="scale-") as temporary:
        home, port = Path(temporary), free_port()
        url = f"http://{LOOPBACK}:{port}"
        connection = {
            "conn_type": "aws",
            "login": "test",
            "password": "testtest",
            "extra": {"endpoint_url": url, "region_name": "us-east-1"},
        }
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT / "providers"), str(ROOT)]),
            "AIRFLOW_HOME": str(home / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "AIRFLOW_CONN_AWS_DEFAULT": json.dumps(connection),
        }
        stub = start_process(
            "The SQS stub",
            [sys.executable, "-m", "benchmarks.sqs_stub", str(port)],
            log_path=home / "sqs-stub.log",
            environment={"PATH": os.environ["PATH"]},
            directory=ROOT,
        )
        try:
            load = {
                "runs": runs,
                "messages": messages,
                "queues": math.ceil(runs * messages / page["IN_FLIGHT_A_QUEUE"]),
                "stub_url": url,
                "path": str(home / "triggers"),
            }
            answer = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "benchmarks.scale_load", "carry", json.dumps(load)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                check=True,
                timeout=LONGEST_SECONDS,
                text=True,
            ).stdout
        finally:
            stub.stop()
    figures: Figures = json.loads(answer.splitlines()[-1])
    return figures


def main(arguments: Iterable[str] | None = None) -> None:
    """Measure each number of runs, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 10, 100, 1_000], help="at once, one after the other")
    parser.add_argument("--messages", type=int, default=1_000, help="of each run")
    given = parser.parse_args(None if arguments is None else list(arguments))
    page = page_constants()
    measured: list[tuple[int, Figures]] = []
    for runs in given.runs:
        figures = measure(runs, given.messages, page)
        show(runs, given.messages, figures, page)
        measured.append((runs, figures))
    carried = _largest_carried(measured)
    print(f"\nThe most that was carried: {f'{carried:,} runs' if carried else 'none'} of {given.messages:,} messages")


def _largest_carried(measured: Sequence[tuple[int, Figures]]) -> int:
    return max((runs for runs, figures in measured if is_carried(figures)), default=0)


if __name__ == "__main__":
    main()
