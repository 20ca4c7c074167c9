"""The cost of waiting keepers for Airflow: requests and SQL statements a second, side by side with an earlier commit.

    python -m benchmarks.airflow_load [--against HEAD~1] [--runs 100] [--instances 50] [--dags 1 22] [--seconds 60]

A real triggerer of Airflow holds a batch for each of so many runs, whose work is mapped: 5 000 task instances by
default. It does so twice, on the package of the other commit and on the working tree's (both copied into a temporary
directory), for each number of DAGs that the runs are spread over. Two phases are measured:

- waiting: all work runs, and nothing changes;
- failing: one task instance a second fails, as its worker would tell: a report, a signal, and then its state.

The installation is that of `benchmarks.triggerer`: SQS is a stub, there is no scheduler, no worker, and the metadata
database is PostgreSQL, where this program writes what those would have written, by Airflow's own models.

Requests are counted where they leave the process that runs triggers. The triggerer's supervisor answers them with the
code of the Execution API, in its own process, so its statements are the API's; the API server has none of them.
Statements are counted in the log of PostgreSQL (`log_statement = all`) by the name of the application, without those
that begin and end transactions, which stand in a line of their own. Rows are those of `task_instance` that PostgreSQL
read, by its statistics. The processor time of the supervisor is what the answers cost Airflow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
from sqlalchemy import text

from benchmarks.cost import ROOT, Side, Table, unpacked
from benchmarks.triggerer import KEEPER_TASK, WORK_TASK, Bench, Scale, bench, package_module

CALM_SECONDS: Final = 90.0
"""How long nothing changes before the first phase: the longer nothing changes, the more seldom a DAG is asked for."""

FAILURE_SECONDS: Final = 1.0
LONGEST_RUN_SECONDS: Final = 1800.0

APPLICATION: Final = "triggerer"
_STATEMENT: Final = re.compile(rf"^{APPLICATION}\|LOG:  (?:statement|execute [^:]*): (.*)$")
_TABLE: Final = re.compile(r"\b(?:FROM|INTO|UPDATE) \"?(\w+)")
_TRANSACTIONS: Final = ("BEGIN", "COMMIT", "ROLLBACK", "SHOW", "SET", "DISCARD")

_PATHS: Final[Mapping[str, str]] = {
    "GetTaskStates": "GET task-instances/states",
    "GetTICount": "GET task-instances/count",
    "GetVariableKeys": "GET variables/keys",
    "DeleteVariable": "DELETE variables/{key}",
    "GetXCom": "GET xcoms/{key}",
    "SetXCom": "POST xcoms/{key}",
}

Figures: TypeAlias = Mapping[str, float]
"""Of one phase: each figure a second, but for those whose names say otherwise."""


class Meter:
    """Counts what happens in a phase.

    Args:
        running: The processes under measurement.
    """

    def __init__(self, running: Bench) -> None:
        self._running = running
        self._supervisor = psutil.Process(running.stack.processes["triggerer"].pid)
        self._postgres = psutil.Process(running.postgres.process.pid)

    def measure(self, seconds: float, each_second: Callable[[], None] | None = None) -> Figures:
        """Count for some time.

        Args:
            seconds: How long.
            each_second: What to do every second meanwhile.
        """
        log = self._running.postgres.process.log_path
        offset, rows, began_at = log.stat().st_size, self._rows(), time.time()
        supervisor, postgres = _cpu(self._supervisor), self._postgres_cpu()
        due_at = began_at
        while (now := time.time()) < began_at + seconds:
            if each_second is not None and now >= due_at:
                each_second()
                due_at += FAILURE_SECONDS
            time.sleep(0.05)
        ended_at = time.time()
        supervisor, postgres = _cpu(self._supervisor) - supervisor, self._postgres_cpu() - postgres
        rows = self._rows() - rows
        with log.open("rb") as file:
            file.seek(offset)
            statements = _statements(file.read().decode(errors="replace").splitlines())
        seen = [second for second in self._running.seen() if began_at < second["at"] <= ended_at]
        requests: Counter[str] = Counter()
        for second in seen:
            requests.update({_PATHS.get(name, name): count for name, count in second["asked"].items()})
        length = ended_at - began_at
        figures = {f"request: {name}": count / length for name, count in requests.items()}
        figures |= {f"statement: {name}": count / length for name, count in statements.items()}
        return {
            **figures,
            "rows": rows / length,
            "supervisor %": 100 * supervisor / length,
            "postgres %": 100 * postgres / length,
            "longest answer ms": 1e3 * max((second["longest_answer_seconds"] for second in seen), default=0.0),
        }

    def _rows(self) -> int:
        statement = (
            "select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) "
            "from pg_stat_user_tables where relname = 'task_instance'"
        )
        with self._running.database.begin() as connection:
            return int(connection.execute(text(statement)).scalar_one())

    def _postgres_cpu(self) -> float:
        used = _cpu(self._postgres)
        for process in self._postgres.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                used += _cpu(process)
        return used


def _cpu(process: psutil.Process) -> float:
    """Processor time in seconds, of the process alone."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _statements(lines: Iterable[str]) -> Counter[str]:
    """How many statements of the triggerer a log of PostgreSQL has, by kind."""
    kinds: Counter[str] = Counter()
    statement: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("\t") and statement:
            statement.append(line.strip())
            continue
        if statement:
            kinds[_kind(" ".join(statement))] += 1
        found = _STATEMENT.match(line)
        statement = [found[1]] if found else []
    return kinds


def _kind(statement: str) -> str:
    """Return the kind of a statement."""
    verb = statement.split(" ", 1)[0].rstrip(";").upper()
    if verb in _TRANSACTIONS or (verb == "SELECT" and " FROM " not in statement):
        return "transactions"
    table = _TABLE.search(statement)
    name = table[1] if table else "?"
    if name == "task_instance" and "task_instance.task_id IN" in statement:
        return "COUNT task states" if "count(*)" in statement else "SELECT task states"
    if name in ("variable", "xcom", "task_instance") or "FROM variable" in statement:
        return f"{verb} {'variable' if 'FROM variable' in statement else name}"
    return "Airflow's own"


class Failures:
    """Fails one instance after the other, each in another run.

    Args:
        running: The processes under measurement.
    """

    def __init__(self, running: Bench) -> None:
        self._running = running
        with running.database.begin() as connection:
            statement = "select dag_id, run_id from dag_run where dag_id <> 'probe' order by dag_id, run_id"
            self._runs = [(row[0], row[1]) for row in connection.execute(text(statement))]
        self._failed = 0

    def fail_one(self) -> None:
        """Leave a report and a signal, and write the state of the one before: Airflow does so up to 5 s later."""
        from airflow.models.variable import Variable
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        report: Any = package_module("airflow.failures", "airflow.failures.report")
        signals: Any = package_module("airflow.airflow_api.polling", "airflow.comms.signals")
        dag_id, run_id, index = self._instance(self._failed)
        with create_session() as session:
            XComModel.set(
                report.FAILURE_KEY,
                report.FailureReport.of(ValueError()).encode(),
                dag_id=dag_id,
                task_id=WORK_TASK,
                run_id=run_id,
                map_index=index,
                session=session,
            )
        key = signals.FailureSignals.to(dag_id, run_id, KEEPER_TASK, [WORK_TASK]).key(WORK_TASK, index)
        Variable.set(key, "")
        if self._failed:
            self._write_state(*self._instance(self._failed - 1))
        self._failed += 1

    def _instance(self, number: int) -> tuple[str, str, int]:
        return *self._runs[number % len(self._runs)], number // len(self._runs)

    def _write_state(self, dag_id: str, run_id: str, index: int) -> None:
        statement = (
            "update task_instance set state = 'failed' "
            "where dag_id = :d and run_id = :r and task_id = :t and map_index = :i"
        )
        with self._running.database.begin() as connection:
            connection.execute(text(statement), {"d": dag_id, "r": run_id, "t": WORK_TASK, "i": index})


def measure(scale: Scale, packages: Path) -> Mapping[str, Figures]:
    """Have a triggerer wait, and then see failures.

    Args:
        scale: How much there is to wait for, and how long each phase is.
        packages: The directory that has its `sqs_lease`.

    Returns:
        The figures of each phase.
    """
    with bench(scale, packages) as running:
        running.defer(idle=False)
        running.stack.processes["dag-processor"].stop()
        with running.database.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in (
                "alter system set log_statement = 'all'",
                "alter system set log_line_prefix = '%a|'",
                "analyze",
                "select pg_reload_conf()",
            ):
                connection.execute(text(statement))
        stack = running.stack
        running.stack = replace(stack, environment={**stack.environment, "PGAPPNAME": APPLICATION})
        running.begin(niceness=0)
        running.phase("start", running.has_started, 300)
        total = scale.keepers * scale.leases
        running.phase(
            "take over", lambda: running.counts()["entries"].get("ChangeMessageVisibilityBatch", 0) >= total, 300
        )
        calm_at = time.time() + CALM_SECONDS
        running.phase("calm down", lambda: time.time() >= calm_at, CALM_SECONDS + 60)
        meter = Meter(running)
        waiting = meter.measure(scale.seconds)
        failing = meter.measure(scale.seconds, Failures(running).fail_one)
        return {"waiting": waiting, "failing": failing}


def measured(side: Side, scale: Scale) -> Mapping[str, Figures]:
    """The figures of one side, from a process of its own.

    Raises:
        subprocess.CalledProcessError: The measurement failed; it wrote why to standard error.
    """
    answer = subprocess.run(
        [
            *[sys.executable, "-W", "ignore", "-m", "benchmarks.airflow_load", "--packages", str(side.packages)],
            *["--runs", str(scale.keepers), "--instances", str(scale.leases), "--dags", str(scale.queues)],
            *["--seconds", str(scale.seconds)],
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(side.packages), str(ROOT)])},
        stdout=subprocess.PIPE,
        check=True,
        timeout=LONGEST_RUN_SECONDS,
        text=True,
    ).stdout
    figures: Mapping[str, Figures] = json.loads(answer.splitlines()[-1])
    return figures


def print_figures(sides: Sequence[Side], phase: str, before: Figures, now: Figures) -> None:
    """Print a table of one phase."""
    table = Table(sides, f"{phase}, a second")
    names = list(dict.fromkeys([*before, *now]))
    for kind, title in (("request: ", "requests"), ("statement: ", "SQL statements")):
        own = [name for name in names if name.startswith(kind)]
        counted = [name for name in own if name != "statement: transactions"]
        table.line(title, [_sum(before, counted)], [_sum(now, counted)], decimals=2)
        for name in sorted(own):
            table.line(f"  {name.removeprefix(kind)}", [before.get(name, 0)], [now.get(name, 0)], decimals=2)
    for name, title in (
        ("rows", "rows of task_instance read"),
        ("supervisor %", "supervisor, % of a processor"),
        ("postgres %", "PostgreSQL, % of a processor"),
        ("longest answer ms", "longest answer, milliseconds"),
    ):
        table.line(title, [before[name]], [now[name]], decimals=1)


def _sum(figures: Figures, names: Iterable[str]) -> float:
    return sum(figures.get(name, 0.0) for name in names)


def main(arguments: Iterable[str] | None = None) -> None:
    """Compare the working tree with a commit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--against", default="HEAD~1", help="the commit to compare with; the parent commit by default")
    parser.add_argument("--runs", type=int, default=100, help="with a keeper each")
    parser.add_argument("--instances", type=int, default=50, help="of the mapped task of each run")
    parser.add_argument("--dags", type=int, nargs="+", default=[1, 22], help="that the runs are spread over, in turn")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each phase")
    parser.add_argument("--packages", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(None if arguments is None else list(arguments))
    scales = [Scale(given.runs, given.instances, dags, given.seconds, mapped=True) for dags in given.dags]
    if given.packages is not None:
        (scale,) = scales
        print(json.dumps(measure(scale, given.packages)))
        return
    with unpacked(given.against) as sides:
        for scale in scales:
            before, now = (measured(side, scale) for side in sides)
            print(f"\n{scale.keepers} runs of {scale.queues} DAGs, {scale.keepers * scale.leases:,} task instances")
            for phase in before:
                print_figures(sides, phase, before[phase], now[phase])


if __name__ == "__main__":
    main()
