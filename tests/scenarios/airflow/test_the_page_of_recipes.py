"""The recipes in dags/recipes: what is decided by triggers, in virtual time; the page shows their code.

tests/processes/airflow/test_recipes.py runs the others by `dag.test()`.
"""

from __future__ import annotations

import asyncio
import json
import re
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from sqs_lease.airflow.settlement.rules import WorkTask, work_tasks
from sqs_lease.airflow.triggers.watch import watchers_of
from sqs_lease.testing import MessageState
from tests.airflow.leased_messages import ALL_HELD, LeasedMessages
from tests.airflow.scripted_comms import ScriptedComms

ROOT = Path(__file__).resolve().parents[3]
RECIPES = sorted((ROOT / "dags" / "recipes").glob("*.py"), key=lambda path: path.name)
PAGE = (ROOT / "docs" / "recipes.md").read_text()
INCLUDED = re.findall(r'^```\{\.python\}\n--8<-- "([\w/.]+)"\n```$', PAGE, re.MULTILINE)


def run_recipe(name: str) -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "dags" / "recipes" / f"{name}.py"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_site_shows_the_code_of_each_recipe_and_the_page_leads_to_it(recipe: Path) -> None:
    assert recipe.relative_to(ROOT).as_posix() in INCLUDED
    assert f"](../dags/recipes/{recipe.name})" in PAGE


def test_the_page_shows_nothing_else() -> None:
    assert len(INCLUDED) == PAGE.count("{.python}") == len(RECIPES)


@pytest.fixture
def documents() -> dict[str, Any]:
    """The names of the recipe whose messages start runs of other DAGs."""
    return run_recipe("one_queue_to_many_dags")


def test_documents_start_the_run_that_receives_them(documents: dict[str, Any]) -> None:
    (trigger,) = watchers_of(documents["arriving_documents"])
    sensor = documents["documents_to_dags"]().task_dict["documents"]
    assert sensor.queue_url == trigger.serialize()[1]["queue_url"] == "documents"


def test_a_message_that_comes_again_names_the_same_run(documents: dict[str, Any]) -> None:
    message = {"MessageId": "5fea7756", "Body": '{"kind": "refund", "amount": 7}'}
    first = documents["run_of"]({**message, "ReceiptHandle": "a", "Attributes": {"ApproximateReceiveCount": "1"}})
    again = documents["run_of"]({**message, "ReceiptHandle": "b", "Attributes": {"ApproximateReceiveCount": "2"}})
    assert first == again
    assert (first["trigger_dag_id"], first["trigger_run_id"]) == ("pay_refund", "message-5fea7756")
    other = documents["run_of"]({**message, "MessageId": "0ea9e9d2"})
    assert other["trigger_run_id"] != first["trigger_run_id"]


def test_a_sender_cannot_start_any_dag(documents: dict[str, Any]) -> None:
    with pytest.raises(KeyError):
        documents["run_of"]({"MessageId": "5fea7756", "Body": '{"kind": "documents_to_dags"}'})


def test_text_of_a_sender_is_not_rendered_as_a_template(
    documents: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "{{ 6 * 7 }} {{ conn.orders.password }} {% for one in (1, 2) %}"
    message = {"MessageId": "5fea7756", "Body": json.dumps({"kind": "invoice", "amount": text, text: [text]})}
    monkeypatch.setattr(PlainXComArg, "resolve", lambda *_: [message])
    made = documents["documents_to_dags"]()
    instance = SimpleNamespace(map_index=0)
    context: Any = {"ti": instance, "dag": made, "dag_run": SimpleNamespace(conf={}), "params": {}}
    made.task_dict["run"].render_template_fields(context)
    run = context["task"]
    assert run.conf == {"document": json.loads(message["Body"])}
    assert (run.trigger_dag_id, run.trigger_run_id) == ("book_invoice", "message-5fea7756")


DEFERRED = [
    ("deferrable_jobs", "videos_on_batch", "transcode", "videos"),
    ("one_queue_to_many_dags", "documents_to_dags", "run", "documents"),
]
"""The recipes whose work is deferred: their DAGs, the tasks that work, and those that receive."""


def deferred_work(recipe: str, dag_id: str, task_id: str, receives: str) -> WorkTask:
    (work,) = work_tasks(run_recipe(recipe)[dag_id](), [task_id], receives, f"{receives}_keeper")
    return work


@pytest.mark.parametrize(("recipe", "dag_id", "task_id", "receives"), DEFERRED)
def test_messages_are_held_while_their_work_is_deferred(
    supervisor: ScriptedComms, recipe: str, dag_id: str, task_id: str, receives: str
) -> None:
    work = deferred_work(recipe, dag_id, task_id, receives)
    assert (work.mapped, work.per_message, work.chained) == (True, True, False)
    world = LeasedMessages(supervisor)
    instances = [f"{task_id}_{index}" for index in range(3)]

    async def scenario() -> None:
        keeping = await world.receive_and_keep(work)
        del world.states["load"]
        world.states.update(dict.fromkeys(instances, "deferred"))
        await asyncio.sleep(2 * 3600)
        assert world.message_states() == ALL_HELD
        world.states.update(dict.fromkeys(instances, "success"))
        await keeping.ended()
        assert world.message_states() == {}

    world.run(scenario)


@pytest.mark.parametrize(("recipe", "dag_id", "task_id", "receives"), DEFERRED)
@pytest.mark.parametrize(
    ("ended", "left"),
    [
        ("success", {}),
        ("failed", {"a": MessageState.VISIBLE}),
        # As `skip_when_already_exists` ends it, or a run that is marked: nothing was done on this message.
        ("skipped", {"a": MessageState.VISIBLE}),
        ("removed", {"a": MessageState.VISIBLE}),
        ("upstream_failed", {"a": MessageState.VISIBLE}),
        ("up_for_retry", {"a": MessageState.IN_FLIGHT}),
        ("restarting", {"a": MessageState.IN_FLIGHT}),
        ("scheduled", {"a": MessageState.IN_FLIGHT}),
    ],
)
def test_each_message_is_settled_by_the_end_of_its_own_deferred_work(
    supervisor: ScriptedComms, recipe: str, dag_id: str, task_id: str, receives: str, ended: str, left: Any
) -> None:
    work = deferred_work(recipe, dag_id, task_id, receives)
    world = LeasedMessages(supervisor)
    instances = [f"{task_id}_{index}" for index in range(3)]

    async def scenario() -> None:
        keeping = await world.receive_and_keep(work)
        del world.states["load"]
        world.states.update(zip(instances, (ended, "deferred", "success"), strict=True))
        await asyncio.sleep(60)
        assert world.message_states() == {"b": MessageState.IN_FLIGHT, **left}
        world.states.update(dict.fromkeys(instances[:2], "success"))
        await keeping.ended()

    world.run(scenario)
