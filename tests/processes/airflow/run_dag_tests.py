"""Runs DAGs of a file by `dag.test()` in this process, as their author would, and prints what became of their tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import DagBag
from airflow.utils.session import create_session


def states(run: Any) -> dict[str, str | None]:
    with create_session() as session:
        instances = run.get_task_instances(session=session)
        return {one.task_id if one.map_index < 0 else f"{one.task_id}_{one.map_index}": one.state for one in instances}


def main(dag_file: Path, dag_ids: list[str]) -> None:
    dags: Any = DagBag(dag_file).dags
    runs = {dag_id: dags[dag_id].test() for dag_id in dag_ids}
    outcome = {dag_id: {"run": str(run.state), "tasks": states(run)} for dag_id, run in runs.items()}
    print(json.dumps(outcome))  # noqa: T201 - the caller reads it


main(Path(sys.argv[1]), sys.argv[2:])
