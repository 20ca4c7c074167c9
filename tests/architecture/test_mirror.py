"""Tests stand where their modules stand: those of `a/b.py` in `tests/a/test_b.py`, or in files of `tests/a/b/`.

A test over several modules is a scenario: `tests/scenarios/<room>/test_<sentence>.py`. The list below names the
modules without tests of their name, and why. It can only shrink: an entry that is no longer true fails a test here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_imports import SOURCE

TESTS: Final = Path(__file__).resolve().parents[1]

FEW_LINES: Final = 40
"""A module of so few lines of code may go without a test of its own."""

TESTED_THROUGH: Final = {
    "airflow/filter_process.py": ("tests/airflow/test_filters.py", "the process in which filters run"),
    "cli/contract/checks.py": ("tests/cli/test_verify.py", "values of the checks that `verify` runs"),
    "cli/contract/client.py": ("tests/cli/test_verify.py", "the service that `verify` checks"),
    "cli/contract/dead_letters.py": ("tests/cli/test_verify.py", "checks that `verify` runs on services with flaws"),
    "cli/contract/fifo_queues.py": ("tests/cli/test_verify.py", "checks that `verify` runs on services with flaws"),
    "cli/contract/ground.py": ("tests/cli/test_verify.py", "steps of the checks that `verify` runs"),
    "cli/contract/running.py": ("tests/cli/test_verify.py", "the run of `verify`"),
    "cli/contract/standard_queues.py": ("tests/cli/test_verify.py", "checks that `verify` runs on services with flaws"),
    "cli/findings.py": ("tests/cli/test_doctor.py", "what `doctor` prints"),
    "cli/move_task.py": ("tests/cli/test_redrive.py", "the move of `redrive`"),
    "cli/output.py": ("tests/cli/test_app.py", "what all commands print"),
    "cli/queue_access.py": ("tests/cli/test_doctor.py", "the calls of `doctor`"),
    "core/calls.py": ("tests/core/ledger", "values that the ledger asks for"),
    "core/events.py": ("tests/core/ledger", "values that the ledger hands out"),
    "ingestion/job.py": ("tests/airflow/spark_operator", "the process that hosts start"),
    "keeper/consuming.py": ("tests/blocking/test_consumer.py", "the common part of the two consumers"),
    "keeper/open_queue.py": ("tests/blocking/test_lease_blocks.py", "the common part of the two kinds of lease"),
    "keeper/session.py": ("tests/blocking/test_lease_blocks.py", "the common part of the two kinds of lease"),
    "spark/delta_places.py": ("tests/spark/sinks/delta/sink", "how a Delta table is reached"),
    "spark/places.py": ("tests/spark/test_ledger.py", "where ledgers and tables are"),
    "spark/workspace.py": ("tests/spark/test_batch_file.py", "where a batch's file is"),
    "spark/sinks/differences.py": ("tests/spark/sinks/delta/test_schema.py", "what tables say of other columns"),
    "spark/sinks/native_delta_sink.py": ("tests/processes/spark/engines/table_formats", "Delta needs its jars"),
    "spark/sinks/row_rules.py": ("tests/processes/spark/engines/table_formats", "Delta and Iceberg need their jars"),
    "spark/sinks/sink.py": ("tests/scenarios/spark/test_the_contract_of_sinks_notices_each_flaw.py", "protocols"),
    "spark/sources/row_flaws.py": ("tests/spark/sources/test_json.py", "how JSON by Spark is checked"),
    "spark/sources/s3_events/allowance.py": (
        "tests/scenarios/spark/test_hostile_objects_cost_a_bounded_amount.py",
        "limits of one message",
    ),
    "spark/sources/s3_events/object_rows.py": (
        "tests/spark/sources/s3_events/test_events_source.py",
        "how the source reads objects",
    ),
    "spark/sources/s3_events/parquet.py": ("tests/spark/sources/s3_events/contents", "one of the formats of contents"),
    "spark/sources/s3_events/parquet_pages.py": (
        "tests/scenarios/spark/test_hostile_objects_cost_a_bounded_amount.py",
        "limits of one message",
    ),
    "spark/sources/source.py": (
        "tests/scenarios/spark/test_strange_envelopes_are_opened_or_refused.py",
        "a protocol, and the readers that sources share",
    ),
    "sqs/boto3.py": ("tests/sqs/client_transport", "each test of the transports runs over it"),
    "sqs/requests.py": ("tests/sqs/client_transport", "what the transports send and read"),
    "testing/audit.py": ("tests/testing/test_memory_sqs.py", "what the memory service writes down"),
    "testing/memory_standard_queue.py": ("tests/testing/test_memory_sqs.py", "the common case of the memory service"),
    "testing/rules_contract.py": (
        "tests/scenarios/spark/test_the_contract_of_sinks_notices_each_flaw.py",
        "tests for users, which need Spark",
    ),
    "testing/service_errors.py": ("tests/testing/test_memory_transport.py", "values that the memory service answers"),
    "testing/sink_contract.py": (
        "tests/scenarios/spark/test_the_contract_of_sinks_notices_each_flaw.py",
        "tests for users, which need Spark",
    ),
    "testing/sink_subject.py": (
        "tests/scenarios/spark/test_the_contract_of_sinks_notices_each_flaw.py",
        "what the contract needs of a sink",
    ),
    "testing/upsert_contract.py": (
        "tests/scenarios/spark/test_the_contract_of_sinks_notices_each_flaw.py",
        "tests for users, which need Spark",
    ),
}
"""Modules that are tested through others: the tests that do, and why."""


def lines_of_code(source: str) -> int:
    """How many lines of a module are code: neither blank nor comments nor docstrings."""
    tree = ast.parse(source)
    told: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in told for number, line in lines)


def has_mirror(module: Path, tests: Path) -> bool:
    """Whether the tests of a module stand where it stands.

    Args:
        module: The module, relative to the package.
        tests: The directory of all tests.
    """
    name = module.stem.strip("_")
    directory = tests / module.parent
    return (directory / f"test_{name}.py").is_file() or any((directory / name).glob("test_*.py"))


def without_mirror(source: Path, tests: Path) -> Iterator[str]:
    """Yield the modules of more than a few lines that have no tests of their name, relative to the package."""
    for path in sorted(source.rglob("*.py")):
        module = path.relative_to(source)
        # The names that an `__init__` passes on are tested where they come from.
        if path.name == "__init__.py" or has_mirror(module, tests):
            continue
        if lines_of_code(path.read_text(encoding="utf-8")) > FEW_LINES:
            yield str(module)


def of_no_module(source: Path, tests: Path) -> Iterator[str]:
    """Yield the test files that stand among those of the package's modules and are of none, relative to the tests."""
    modules = {path.relative_to(source).with_suffix("") for path in source.rglob("*.py")}
    named = {module.parent / module.name.strip("_") for module in modules}
    parts = {module.parts[0] for module in named}
    for path in sorted(tests.rglob("test_*.py")):
        test = path.relative_to(tests)
        is_elsewhere = len(test.parts) > 1 and test.parts[0] not in parts
        if is_elsewhere or test.parent in named or test.parent / test.stem.removeprefix("test_") in named:
            continue
        yield str(test)


def test_each_module_has_tests_of_its_name_or_is_listed() -> None:
    assert set(without_mirror(SOURCE, TESTS)) - TESTED_THROUGH.keys() == set()


def test_listed_modules_have_no_tests_of_their_name() -> None:
    assert TESTED_THROUGH.keys() - set(without_mirror(SOURCE, TESTS)) == set()


def test_the_tests_through_which_a_module_is_tested_exist() -> None:
    paths = {through for through, _ in TESTED_THROUGH.values()}
    assert {path for path in paths if not (TESTS.parent / path).exists()} == set()


def test_each_test_of_a_room_is_of_a_module_there() -> None:
    assert set(of_no_module(SOURCE, TESTS)) == set()


CODE: Final = "a = 1\n" * (FEW_LINES + 1)


@pytest.mark.parametrize(
    ("module", "source", "test", "found"),
    [
        pytest.param("core/ledger.py", CODE, "core/test_ledger.py", [], id="a file of its name"),
        pytest.param("core/ledger.py", CODE, "core/ledger/test_fifo.py", [], id="files in a directory of its name"),
        pytest.param("blocking.py", CODE, "test_blocking.py", [], id="of a module in no room"),
        pytest.param("dagster/_internals.py", CODE, "dagster/test_internals.py", [], id="of a private module"),
        pytest.param("core/limits.py", "a = 1", "core/test_ledger.py", [], id="a module of few lines"),
        pytest.param(
            "core/limits.py", f'"""{CODE}"""\n#', "core/test_ledger.py", [], id="nearly all of it is docstring"
        ),
        pytest.param("core/__init__.py", CODE, "core/test_ledger.py", [], id="what a package passes on"),
        pytest.param("core/ledger.py", CODE, "core/test_leger.py", ["core/ledger.py"], id="a file of another name"),
        pytest.param("core/ledger.py", CODE, "keeper/test_ledger.py", ["core/ledger.py"], id="in another room"),
        pytest.param("core/ledger.py", CODE, "core/ledger/service.py", ["core/ledger.py"], id="no test is in it"),
    ],
)
def test_a_module_without_tests_of_its_name_is_found(
    tmp_path: Path, module: str, source: str, test: str, found: list[str]
) -> None:
    package, tests = made(tmp_path, {module: source}, test)
    assert list(without_mirror(package, tests)) == found


@pytest.mark.parametrize(
    ("test", "is_found"),
    [
        ("core/test_ledger.py", False),
        ("core/ledger/test_fifo.py", False),
        ("test_blocking.py", False),
        ("dagster/test_internals.py", False),
        ("scenarios/core/test_a_lease_ends.py", False),
        ("core/test_fifo_ledger.py", True),
        ("core/ledger/fifo/test_groups.py", True),
        ("keeper/test_ledger.py", True),
        ("test_fifo.py", True),
        ("test_ledger.py", True),
    ],
)
def test_a_test_of_no_module_is_found(tmp_path: Path, test: str, is_found: bool) -> None:
    modules = ("core/ledger.py", "keeper/keeper.py", "dagster/_internals.py", "blocking.py")
    package, tests = made(tmp_path, dict.fromkeys(modules, ""), test)
    assert list(of_no_module(package, tests)) == [test] * is_found


def made(root: Path, modules: dict[str, str], test: str) -> tuple[Path, Path]:
    """A package of these modules and the directory of its tests, which has this file."""
    files = {**{f"package/{name}": text for name, text in modules.items()}, f"tests/{test}": ""}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root / "package", root / "tests"
