"""Each DAG in docs/spark-airflow.md is whole: receive, ingest, keep."""

from __future__ import annotations

import re
from typing import Any

import pytest

from demo.processes import ROOT
from sqs_lease.airflow import SqsLeaseKeeperOperator

PAGE = (ROOT / "docs" / "spark-airflow.md").read_text()
BLOCKS = {
    re.findall(r"^def (\w+)\(\)", block, re.MULTILINE)[0]: block
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
}


@pytest.mark.parametrize("name", BLOCKS)
def test_each_dag_of_the_page_is_whole(name: str) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(BLOCKS[name], "spark-airflow.md", "exec"), names)
    tasks = names[name]().task_dict
    keeper = tasks["orders_keeper"]
    assert isinstance(keeper, SqsLeaseKeeperOperator)
    assert keeper.work_task_ids == ["store"]
    assert tasks["store"].upstream_task_ids == {"orders"}
