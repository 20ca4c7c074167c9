"""The recipes in dags/recipes: what is decided by triggers, in virtual time; the page shows their code.

tests/processes/airflow/test_recipes.py runs the others by `dag.test()`.
"""

from __future__ import annotations

import asyncio
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.settlement.dag_work import work_tasks
from sqs_lease.airflow.triggers.watch import watchers_of
from sqs_lease.testing import AuditKind, MessageState
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.watched_queue import EventRuns, WatchedQueue

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted((ROOT / "dags" / "recipes").glob("*.py"), key=lambda path: path.name)
PAGE = (ROOT / "docs" / "recipes.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run_recipe(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "dags" / "recipes" / f"{name}.py"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_page_shows_the_code_of_each_recipe(recipe: Path) -> None:
    _, _, code = recipe.read_text().partition('"""\n\nfrom __future__ import annotations\n\n')
    assert code in BLOCKS
    assert f"](../dags/recipes/{recipe.name})" in PAGE


def test_the_page_shows_nothing_else() -> None:
    assert len(BLOCKS) == len(RECIPES)


def test_one_run_per_message_takes_them_one_after_the_other(watched: WatchedQueue) -> None:
    names = run_recipe("one_run_per_message")
    made = names["report_of_one_message"]()
    assert made.max_active_runs == 1
    sensor = made.task_dict["report"]
    assert (sensor.max_messages, sensor.queue_url) == (1, "reports-one-by-one")
    (trigger,) = watchers_of(names["arriving_report"])

    async def scenario() -> None:
        # The same trigger on this test's queue.
        watcher = watched.triggerer().watch(SqsLeaseTrigger(**{**trigger.serialize()[1], "queue_url": "orders"}))
        runs = EventRuns(watched, watcher, max_active_runs=1, max_messages=1, work_seconds=60)
        watched.send("a", "b", "c")
        await asyncio.sleep(100)
        assert watched.count(AuditKind.RECEIVED) == 2
        await asyncio.sleep(150)
        assert runs.taken == [1, 1, 1]
        await runs.close()
        await watcher.cancel()

    watched.run(scenario)


@pytest.mark.parametrize(("ended", "left"), [("success", {}), ("failed", MessageState.VISIBLE)])
def test_messages_are_held_while_their_jobs_are_deferred(supervisor: ScriptedComms, ended: str, left: Any) -> None:
    videos = run_recipe("deferrable_jobs")["videos_on_batch"]()
    (work,) = work_tasks(videos, ["transcode"], "videos", "videos_keeper")
    assert (work.mapped, work.per_message) == (True, True)
    world = LeasedMessages(supervisor)

    async def scenario() -> None:
        keeping = await world.receive_and_keep(work)
        del world.states["load"]
        world.states.update(dict.fromkeys(("transcode_0", "transcode_1", "transcode_2"), "deferred"))
        await asyncio.sleep(10 * 3600)
        assert world.message_states() == ALL_HELD
        world.states.update({"transcode_0": ended, "transcode_1": "deferred", "transcode_2": "success"})
        await asyncio.sleep(60)
        assert world.message_states() == {"b": MessageState.IN_FLIGHT, **({"a": left} if left else {})}
        world.states["transcode_1"] = "success"
        await keeping.ended()

    world.run(scenario)
