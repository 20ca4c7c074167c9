"""Within the Dagster part, one module asks for what Dagster does not document; nothing is executed here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.import_rules import imports_of
from tests.architecture.test_imports import SOURCE

DAGSTER: Final = SOURCE / "dagster"
INTERNALS: Final = DAGSTER / "_internals.py"

UNDOCUMENTED: Final = {
    "add_event_listener",
    "add_run_tags",
    "all_logs",
    "asset_graph",
    "asset_layer",
    "asset_observation_data",
    "code_location_origin",
    "engine_event",
    "engine_event_data",
    "event_specific_data",
    "execution_plan_snapshot_id",
    "fetch_planned_materializations",
    "get_all_step_deps",
    "get_asset_metadata",
    "get_execution_plan_snapshot",
    "get_output_metadata",
    "get_output_name_for_asset_key",
    "get_partition_key_from_str",
    "get_records_for_run",
    "get_runs",
    "get_step_execution_context",
    "get_subset",
    "handle_new_event",
    "has_seen_output",
    "keys_by_dimension",
    "levels",
    "log_key",
    "partitions_defs",
    "report_engine_event",
    "resolve_run_requests",
    "run_retries_enabled",
    "run_retries_max_retries",
    "run_retries_retry_on_asset_or_op_failure",
    "selected_asset_keys",
    "step_exception",
    "step_materialization_data",
    "step_output_data",
}
"""Attributes of what Dagster exports that its documentation does not have."""

NOT_USED: Final = {
    "all_logs",
    "asset_graph",
    "asset_observation_data",
    "engine_event_data",
    "get_asset_metadata",
    "get_output_metadata",
    "get_runs",
    "step_output_data",
}
"""Those of them that the documented interface, or another one of them, has replaced."""


def private_imports(source: str) -> Iterator[str]:
    """The private modules, and private names, of Dagster's packages that a module imports."""
    for imported in imports_of(source, module="sqs_lease.dagster.a", is_package=False):
        package, *parts = imported.module.split(".")
        if package.startswith("dagster") and any(part.startswith("_") for part in parts):
            yield imported.module


def named(source: str) -> set[str]:
    """The attributes that a module asks for, by themselves or by ``getattr`` and its like; not in texts."""
    tree = list(ast.walk(ast.parse(source)))
    texts = {node.value for node in tree if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.attr for node in tree if isinstance(node, ast.Attribute)} | texts


def others() -> list[Path]:
    return [path for path in sorted(DAGSTER.rglob("*.py")) if path != INTERNALS]


@pytest.mark.parametrize("path", others(), ids=lambda path: str(path.relative_to(DAGSTER)))
def test_no_other_module_asks_for_what_is_private(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert list(private_imports(source)) == []
    assert named(source) & UNDOCUMENTED == set()


def test_listed_names_are_used() -> None:
    assert named(INTERNALS.read_text(encoding="utf-8")) & UNDOCUMENTED == UNDOCUMENTED - NOT_USED


@pytest.mark.parametrize(
    "source",
    [
        "from dagster._core.events import EngineEventData",
        "import dagster._core",
        "def f():\n    from dagster import _core",
        "if TYPE_CHECKING:\n    from dagster._core.execution.retries import RetryMode",
        "from dagster_shared._model import record",
    ],
)
def test_a_private_import_is_found(source: str) -> None:
    assert list(private_imports(source))


@pytest.mark.parametrize(
    "source", ["instance.all_logs(run_id)", "getattr(instance, 'all_logs')", "def f(i):\n    return i.all_logs"]
)
def test_an_undocumented_attribute_is_found(source: str) -> None:
    assert named(source) & UNDOCUMENTED == {"all_logs"}


def test_public_names_and_our_own_are_allowed() -> None:
    source = "import dagster as dg\nfrom dagster import AssetKey\nfrom sqs_lease.dagster._internals import step_key"
    assert list(private_imports(source)) == []
