"""Within the Spark part, one module asks Java for what PySpark, Delta and Iceberg keep to themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.architecture.test_dagster_internals import named
from tests.architecture.test_imports import SOURCE

SPARK: Final = SOURCE / "spark"
JVM: Final = SPARK / "_jvm.py"

PRIVATE: Final = {
    "DeltaLog",
    "Spark3Util",
    "_ensure_initialized",
    "_gateway",
    "_gateway_client",
    "_jsc",
    "_jsparkSession",
    "_jvm",
}
"""The private names that the fenced module uses."""

ALSO_PRIVATE: Final = {"_jc", "_jconf", "_jdf", "_jreader", "_jwrite", "_sc", "loadIcebergTable"}
"""Names that are as private: the fenced module may use them, and no other module."""


def others() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path != JVM]


def test_no_other_module_asks_for_what_is_private() -> None:
    found = {
        str(path.relative_to(SOURCE)): names
        for path in others()
        if (names := named(path.read_text(encoding="utf-8")) & (PRIVATE | ALSO_PRIVATE))
    }
    assert found == {}


def test_listed_names_are_used() -> None:
    assert named(JVM.read_text(encoding="utf-8")) >= PRIVATE


@pytest.mark.parametrize(
    "source", ["spark._jvm.org", "getattr(spark, '_jvm', None)", "def f(jvm):\n    return jvm.org.DeltaLog.forTable"]
)
def test_a_private_name_is_found(source: str) -> None:
    assert named(source) & (PRIVATE | ALSO_PRIVATE)
