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
from airflow.triggers.base import BaseEventTrigger

from sqs_lease.airflow import SqsLeaseTrigger
from sqs_lease.airflow.settlement.dag_work import work_tasks
from sqs_lease.testing import MessageState
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms
from tests.airflow.virtual_triggerer import KEEP
from tests.airflow.watched_queue import WatchedQueue, bodies_of

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


def test_the_watcher_of_one_run_per_message_receives_the_next_one_when_the_last_was_settled(
    queue: WatchedQueue,
) -> None:
    names = run_recipe("one_run_per_message")
    made = names["report_of_one_message"]()
    assert made.max_active_runs == 1
    (watcher,) = names["arriving_report"].watchers
    trigger = watcher.trigger
    assert isinstance(trigger, SqsLeaseTrigger)
    assert isinstance(trigger, BaseEventTrigger)

    async def scenario() -> None:
        triggerer = queue.triggerer()
        # The same trigger on this test's queue.
        kwargs = {**trigger.serialize()[1], "queue_url": "orders"}
        running = triggerer.watch(SqsLeaseTrigger(**kwargs))
        queue.send("a", "b")
        first = (await queue.fired(running))[0]
        taken = await queue.claim([first])
        assert bodies_of(taken) == ["a"]
        keeping = queue.keep(triggerer, taken)
        await asyncio.sleep(3600)
        assert queue.message_states() == [MessageState.IN_FLIGHT, MessageState.VISIBLE]
        queue.states["load"] = "success"
        await keeping.ended()
        queue.states[KEEP.task_id] = "success"
        second = (await queue.fired(running, len(running.events) + 1))[-1]
        assert second.batch_id != first.batch_id
        await running.cancel()

    queue.run(scenario)


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
