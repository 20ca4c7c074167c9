"""`make check` runs the tests that are nearest to what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.suite.affected import SourceTree

FILES = {
    "providers/ours/__init__.py": "from ours.core.ledger import Ledger",
    "providers/ours/core/__init__.py": "",
    "providers/ours/core/ledger.py": "",
    "providers/ours/core/heap.py": "",
    "providers/ours/keeper.py": "from ours.core import heap\nfrom ours.core.ledger import Ledger",
    "providers/ours/deep.py": "",
    "providers/ours/unused.py": "",
    "providers/ours/broken.py": "from ours import (",
    "providers/ours/airflow.py": "def f():\n    import ours.deep",
    "tests/core/test_ledger.py": "from ours.core.ledger import Ledger",
    "tests/core/test_face.py": "from ours import Ledger",
    "tests/keeper/helpers.py": "from ours.keeper import Keeper",
    "tests/keeper/test_keeper.py": "from tests.keeper.helpers import held",
    "tests/airflow/conftest.py": "from ours.airflow import sensor",
    "tests/airflow/test_sensor.py": "",
    "tests/docs/test_page.py": "PAGE = 'how-it-works.md'",
}


@pytest.fixture
def tree(tmp_path: Path) -> SourceTree:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return SourceTree(tmp_path)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        pytest.param("tests/core/test_face.py", ["core/test_face.py"], id="a test itself"),
        pytest.param(
            "providers/ours/core/ledger.py", ["core/test_face.py", "core/test_ledger.py"], id="an import, and a name"
        ),
        pytest.param("providers/ours/keeper.py", ["keeper/test_keeper.py"], id="by a helper"),
        pytest.param("tests/keeper/helpers.py", ["keeper/test_keeper.py"], id="the helper"),
        pytest.param("providers/ours/airflow.py", ["airflow/test_sensor.py"], id="by the conftest"),
        pytest.param("providers/ours/core/heap.py", ["keeper/test_keeper.py"], id="by the module that imports it"),
        pytest.param("providers/ours/deep.py", ["airflow/test_sensor.py"], id="by an import in a function"),
        pytest.param("providers/ours/unused.py", [], id="nothing imports it"),
        pytest.param("docs/how-it-works.md", ["docs/test_page.py"], id="a page by its name"),
        pytest.param("providers/ours/gone.py", [], id="a file that is gone"),
        pytest.param("docs/works.md", [], id="a page whose name ends another"),
        pytest.param("providers/ours/broken.py", [], id="a file that Python cannot read"),
    ],
)
def test_the_nearest_tests_of_a_file_are_chosen(tree: SourceTree, changed: str, tests: list[str]) -> None:
    candidates = [Path(name) for name in FILES if "/test_" in name]
    assert sorted(tree.tests_of(Path(changed), candidates)) == [Path("tests", test) for test in tests]
