"""Reads the imports of a package from its source and says which of them break the architecture's one-way rule.

Nothing is executed: imports within functions and under ``TYPE_CHECKING`` are seen like all others.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PACKAGE: Final = "sqs_lease"


@dataclass(frozen=True, slots=True)
class Layer:
    """One part of the package, and all that it may import besides itself and the standard library.

    Attributes:
        layers: Other parts of the package.
        distributions: Import names of third-party packages. Type stubs, imported under ``TYPE_CHECKING``
            only, need not be named.
        late: Other parts and third-party packages that it may import within functions, and for types, only: what it
            must do without until it is asked for something that needs them.
        no_standard: Modules of the standard library that it must do without.
    """

    layers: frozenset[str] = frozenset()
    distributions: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    no_standard: frozenset[str] = frozenset()


CLOCKS_AND_INPUT_OUTPUT: Final = frozenset(
    {
        "asyncio",
        "concurrent",
        "http",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
        "sched",
        "select",
        "selectors",
        "signal",
        "socket",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
    }
)
BASE: Final = frozenset({"core", "clock", "daemon_threads", "inbox", "version", "sqs", "keeper"})
BOTO: Final = frozenset({"aiobotocore", "boto3", "botocore"})

LAYERS: Final = {
    "core": Layer(distributions=frozenset({"msgspec"}), no_standard=CLOCKS_AND_INPUT_OUTPUT),
    "clock": Layer(),
    "daemon_threads": Layer(),
    "inbox": Layer(),
    "version": Layer(),
    "sqs": Layer(layers=frozenset({"core", "clock", "daemon_threads", "inbox", "version"}), distributions=BOTO),
    "keeper": Layer(layers=BASE, distributions=frozenset({"msgspec"}), late=frozenset({"opentelemetry"})),
    "blocking": Layer(layers=BASE, distributions=frozenset({"boto3"})),
    "asynchronous": Layer(layers=BASE | {"blocking"}),
    "batch_files": Layer(layers=BASE, distributions=frozenset({"msgspec", "pyarrow"})),
    "ingestion": Layer(layers=BASE | {"batch_files"}, distributions=frozenset({"msgspec"})),
    PACKAGE: Layer(layers=BASE | {"asynchronous", "blocking"}),
    "airflow": Layer(
        layers=BASE | {"batch_files", "ingestion"},
        distributions=BOTO | {"airflow", "greenback", "jsonpath_ng", "msgspec"},
        # Airflow's API server is made of it; no other process of Airflow needs it.
        late=frozenset({"starlette"}),
    ),
    "dagster": Layer(
        layers=BASE | {"batch_files", "blocking", "ingestion"},
        distributions=BOTO | {"dagster", "dagster_pipes", "msgspec", "pydantic", "upath"},
    ),
    "spark": Layer(
        layers=BASE | {"batch_files", "blocking", "ingestion"},
        distributions=frozenset(
            {
                "boto3",
                "botocore",
                "dagster_pipes",
                "deltalake",
                "jiter",
                "msgspec",
                "numpy",
                "psycopg",
                "py4j",
                "pyarrow",
                "pyspark",
            }
        ),
    ),
    "testing": Layer(
        # The contract of sinks is tested on Spark; who imports sqs_lease.testing alone does not load it.
        layers=BASE | {"spark"},
        distributions=frozenset({"botocore", "hypothesis", "pyarrow", "pyspark", "pytest"}),
    ),
    "cli": Layer(
        layers=BASE | {"blocking"},
        distributions=frozenset({"botocore", "rich", "typer"}),
        late=frozenset({"airflow", "cryptography", "dagster", "packaging"}),
    ),
}
"""The layers by the directory or module that they are; the package's own ``__init__`` offers the base's names."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import of one module, by its full name; ``type_checking``: it is never executed; ``late``: in a function."""

    module: str
    line: int
    type_checking: bool
    late: bool


def layer_of(module: str) -> str:
    """The layer that a module of the package belongs to: its room, or for what is in none the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else PACKAGE


def imports_of(source: str, *, module: str, is_package: bool) -> Iterator[Import]:
    """All imports of a module, relative ones resolved, wherever they stand in it."""
    tree = ast.parse(source)
    not_run = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in branch.body
        for node in ast.walk(statement)
    }
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in not_run, id(node) in late)
        elif isinstance(node, ast.ImportFrom):
            parent = ""
            if node.level:
                above = node.level - 1 if is_package else node.level
                parts = module.split(".")
                parent = ".".join(parts[: len(parts) - above])
            origin = ".".join(filter(None, (parent, node.module)))
            for alias in node.names:
                # `from a.b import c`: c may be a module or a name in one; the full name tells the layer either way.
                yield Import(f"{origin}.{alias.name}", node.lineno, id(node) in not_run, id(node) in late)


def violations(root: Path) -> Iterator[str]:
    """Every import in the package at ``root`` that its layer must not make, as ``file:line: what is wrong``."""
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root.parent)
        is_package = path.name == "__init__.py"
        module = ".".join(relative.parent.parts if is_package else relative.with_suffix("").parts)
        layer = layer_of(module)
        for imported in imports_of(path.read_text(encoding="utf-8"), module=module, is_package=is_package):
            if (wrong := _wrong(layer, imported)) is not None:
                yield f"{relative}:{imported.line}: {layer} must not import {imported.module} ({wrong})"


def _wrong(layer: str, imported: Import) -> str | None:
    top = imported.module.partition(".")[0]
    rule = LAYERS[layer]
    late = rule.late if imported.late or imported.type_checking else frozenset()
    if top == PACKAGE:
        other = layer_of(imported.module)
        return None if other == layer or other in rule.layers | late else f"{other} is not below it"
    if top in sys.stdlib_module_names:
        return "it does no I/O and has no clock" if top in rule.no_standard else None
    if top in rule.distributions | late or (imported.type_checking and top.startswith("types_")):
        return None
    return "not among its dependencies"
