"""Mistakes in a DAG file are told while it is parsed, with what to write instead."""

from __future__ import annotations

import linecache
import warnings
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from sqs_lease.airflow.triggers.receive import ShortVisibilityWarning

REPOSITORY = Path(__file__).parents[2]
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"

HEAD = f'''
from airflow.sdk import Asset, AssetWatcher, DAG, task, task_group, teardown
from airflow.providers.amazon.aws.sensors.sqs import SqsSensor
from sqs_lease.airflow import SqsLeaseKeeperOperator, SqsLeaseSensor, SqsLeaseTrigger, sqs_lease

QUEUE = "{QUEUE}"

@task
def load(messages): ...

@task
def check(message): ...

@task
def after(messages=None, counts=None): ...

'''


class DagFile:
    """A DAG file in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "orders.py"
        self.errors: dict[str, str] = {}

    def parse(self, text: str, *, head: str = HEAD) -> None:
        """Parse it as the DAG processor does."""
        self.path.write_text(head + text)
        bag = DagBag(dag_folder=str(self.path))
        self.errors = bag.import_errors

    @property
    def error(self) -> str:
        (error,) = self.errors.values()
        return error


@pytest.fixture
def dag_file(tmp_path: Path) -> DagFile:
    return DagFile(tmp_path)


def test_a_sensor_that_is_mapped_is_refused(dag_file: DagFile) -> None:
    dag_file.parse("""
with DAG("shop", schedule=None):
    SqsLeaseSensor.partial(task_id="orders").expand(queue_url=["a", "b"])
""")
    assert "'orders' cannot be mapped: its keeper could not tell its batches apart" in dag_file.error
    assert "Write one sqs_lease() for each queue" in dag_file.error


@pytest.mark.parametrize("arguments", ["queue_url=QUEUE", "event=orders"])
def test_a_lease_in_a_mapped_group_is_refused(dag_file: DagFile, arguments: str) -> None:
    dag_file.parse(f"""
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=SqsLeaseTrigger("orders"))])

@task_group
def shop_of(country):
    with sqs_lease("orders", {arguments}) as messages:
        load(messages)

with DAG("shop", schedule=[orders]):
    shop_of.expand(country=["de", "fr"])
""")
    assert "'shop_of.orders' is in the mapped task group 'shop_of'" in dag_file.error
    assert "Write one sqs_lease() for each queue" in dag_file.error


def test_a_lease_in_an_ordinary_group_is_fine(dag_file: DagFile) -> None:
    dag_file.parse("""
@task_group
def shop_of():
    with sqs_lease("orders", queue_url=QUEUE) as messages:
        load(messages)

with DAG("shop", schedule=None):
    shop_of()
""")
    assert dag_file.errors == {}


@pytest.mark.parametrize(
    "reader",
    ["after(messages)", "after.expand(messages=messages)", "after.partial(counts=messages).expand(messages=[1])"],
)
@pytest.mark.parametrize("arguments", ["queue_url=QUEUE", "event=orders"])
def test_a_task_after_the_body_that_reads_the_messages_is_refused(
    dag_file: DagFile, reader: str, arguments: str
) -> None:
    dag_file.parse(f"""
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=SqsLeaseTrigger("orders"))])

with DAG("shop", schedule=[orders]):
    with sqs_lease("orders", {arguments}) as messages:
        loaded = load(messages)
    loaded >> {reader}
""")
    assert (
        "task 'after' of DAG 'shop' reads the messages of the lease 'orders', but is not in its body" in dag_file.error
    )
    assert "Move the task into the body" in dag_file.error


def test_so_is_a_mapped_group_after_the_body(dag_file: DagFile) -> None:
    dag_file.parse("""
@task_group
def late(message):
    check(message)

with DAG("shop", schedule=None):
    with sqs_lease("orders", queue_url=QUEUE) as messages:
        load(messages)
    late.expand(message=messages)
""")
    assert "task 'late.check' of DAG 'shop' reads the messages" in dag_file.error


def test_tasks_after_the_body_may_read_what_the_work_returned(dag_file: DagFile) -> None:
    dag_file.parse("""
with DAG("shop", schedule=None) as dag:
    with sqs_lease("orders", queue_url=QUEUE) as messages:
        loaded = load(messages)
        check.expand(message=messages)
        teardown(lambda messages: None)
    after(counts=loaded) >> after.override(task_id="later")()
    dag.task_dict["orders"] >> after.override(task_id="beside")()
""")
    assert dag_file.errors == {}


@pytest.mark.parametrize(
    ("option", "counterpart"),
    [
        ("sqs_queue=QUEUE", "sqs_queue (use queue_url)"),
        ("queue_url=QUEUE, visibility_timeout=30", "visibility_timeout (use visibility"),
        ("queue_url=QUEUE, num_batches=3", "num_batches (leave it out"),
        ("queue_url=QUEUE, wait_time_seconds=3", "wait_time_seconds (leave it out"),
        ("queue_url=QUEUE, delete_message_on_reception=False", "delete_message_on_reception (leave it out"),
        ('queue_url=QUEUE, region="eu-west-1"', "region (use region_name)"),
        ('queue_url=QUEUE, default_args={"visibility_timeout": 30}', "visibility_timeout (use visibility"),
    ],
    ids=lambda value: value.split("(")[0].strip(),
)
def test_an_option_of_the_stock_sensor_is_refused_with_its_counterpart(
    dag_file: DagFile, option: str, counterpart: str
) -> None:
    dag_file.parse(f"""
with DAG("shop", schedule=None):
    with sqs_lease("wait", {option}) as messages:
        load(messages)
""")
    assert "SqsLeaseSensor 'wait' does not take these options of SqsSensor" in dag_file.error
    assert counterpart in dag_file.error
    assert "docs/migration.md" in dag_file.error


def test_the_queue_of_the_stock_sensor_in_the_dags_default_args_is_refused_where_no_other_is_given(
    dag_file: DagFile,
) -> None:
    dag_file.parse("""
with DAG("shop", schedule=None, default_args={"sqs_queue": QUEUE}):
    with sqs_lease("wait") as messages:
        load(messages)
""")
    assert "sqs_queue (use queue_url)" in dag_file.error


def test_default_args_of_a_dag_may_have_options_for_stock_sensors_too(dag_file: DagFile) -> None:
    dag_file.parse("""
with DAG("shop", schedule=None, default_args={"sqs_queue": QUEUE, "visibility_timeout": 30, "queue_url": QUEUE}):
    SqsSensor(task_id="stock")
    with sqs_lease("wait") as messages:
        load(messages)
""")
    assert dag_file.errors == {}


def test_every_option_of_the_stock_sensor_that_is_refused_is_in_the_migration_page() -> None:
    from sqs_lease.airflow.dag_file import MIGRATION_PAGE, STOCK_OPTIONS

    page = (REPOSITORY / MIGRATION_PAGE).read_text()
    assert [option for option in STOCK_OPTIONS if f"`{option}" not in page] == []


# The warning of a visibility timeout that is too short

SHORT = """
def lease(name):
    with sqs_lease(name, queue_url=QUEUE, visibility=30) as messages:  # here
        load(messages)

with DAG("shop", schedule=None):
    lease("orders")
"""

SHORT_BY_HAND = """
with DAG("shop", schedule=None):
    SqsLeaseSensor(task_id="orders", queue_url=QUEUE, visibility=30)  # here
"""


def short_visibility_warnings(caught: list[warnings.WarningMessage]) -> list[warnings.WarningMessage]:
    return [one for one in caught if issubclass(one.category, ShortVisibilityWarning)]


@pytest.mark.parametrize("text", [SHORT, SHORT_BY_HAND], ids=["context", "sensor"])
def test_the_warning_of_a_short_visibility_timeout_names_the_line_of_the_dag_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "orders.py"
    path.write_text(HEAD + text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "orders"})
    (warning,) = short_visibility_warnings(caught)
    assert warning.filename == str(path)
    assert linecache.getline(str(path), warning.lineno).endswith("# here\n")


def test_it_is_not_repeated_by_each_task_that_parses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So a worker tells a DAG file which task it is parsed for.
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "shop")
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_TASK_ID", "load")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(HEAD + SHORT, {"__name__": "orders"})
    assert short_visibility_warnings(caught) == []


def test_the_demo_does_not_draw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from demo.airflow_runs import DAG_FILE, SETTINGS

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        namespace: dict[str, Any] = {"__name__": "flights"}
        exec(DAG_FILE.read_text(), namespace)
    assert short_visibility_warnings(caught) == []
