"""The DAG of the demo, as Airflow reads it: the demo refers to its tasks by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from demo.airflow_runs import DAG_ID, KEEPER_TASK, WORK_TASK
from demo.processes import ROOT
from demo.runs import BATCH_SIZE

READ = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag("dags")
dag = bag.dags[sys.argv[1]]
facts = {
    "errors": bag.import_errors,
    "tasks": {task.task_id: sorted(task.upstream_task_ids) for task in dag.tasks},
    "batch size": dag.task_dict["flights"].max_messages,
    "parameters": sorted(dag.params),
    "imported": [name for name in ("pyspark", "deltalake") if name in sys.modules],
}
print("FACTS" + json.dumps(facts))
"""


def test_the_example_dag_is_what_the_demo_expects_and_loads_no_spark_when_parsed(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", READ, DAG_ID],
        cwd=ROOT,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.partition("FACTS")[2]) == {
        "errors": {},
        "tasks": {"flights": [], WORK_TASK: ["flights"], KEEPER_TASK: ["flights"]},
        "batch size": BATCH_SIZE,
        "parameters": ["fail_first_try", "run_seconds"],
        "imported": [],
    }
