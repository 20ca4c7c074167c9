"""How `dg` lists, scaffolds and checks the component."""

import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from demo.processes import ROOT

# A busy machine takes minutes to start `dg`.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


class Project:
    """A project of `dg`, with a home of its own so that nothing of the machine is read or changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.defs = root / "src" / "shop" / "defs"
        self.defs.mkdir(parents=True)
        home = root / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (root / "pyproject.toml").write_text(
            '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "shop"\n'
        )
        (self.defs.parent / "__init__.py").touch()
        (self.defs / "__init__.py").touch()
        (self.defs.parent / "definitions.py").write_text(
            "from pathlib import Path\nimport dagster as dg\n\n@dg.definitions\ndef defs():\n"
            "    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)\n"
        )
        path = [root / "src", ROOT / "providers"]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DAGSTER"))},
            "HOME": str(home),
            "DAGSTER_HOME": str(home),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "COLUMNS": "200",
            "NO_COLOR": "1",
        }

    def dg(self, *arguments: str) -> tuple[int, str]:
        ended = subprocess.run(
            [ROOT / ".venv" / "bin" / "dg", *arguments],
            cwd=self.root,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=500,
        )
        return ended.returncode, ended.stdout

    def write(self, name: str, change: Callable[[str], str]) -> None:
        """Copy the definitions that were scaffolded, with a change."""
        text = (self.defs / "orders" / "defs.yaml").read_text()
        (self.defs / name).mkdir()
        (self.defs / name / "defs.yaml").write_text(change(text))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("project"))
    code, said = made.dg("scaffold", "defs", "sqs_lease.dagster.SqsIngestionComponent", "orders")
    assert code == 0, said
    return made


OTHERS = {"SqsQueueComponent": "queue", "SqsFunctionComponent": "function", "SqsBacklogSensorComponent": "sensor"}


def test_dg_scaffolds_the_other_components_so_that_their_yaml_is_right(tmp_path: Path) -> None:
    made = Project(tmp_path)
    for component, name in OTHERS.items():
        code, said = made.dg("scaffold", "defs", f"sqs_lease.dagster.{component}", name)
        assert code == 0, said
    assert made.dg("check", "yaml") == (0, "All component YAML validated successfully.\n")
    (made.defs.parent / "orders.py").write_text("def load(messages):\n    pass\n")
    code, said = made.dg("check", "defs", "--use-active-venv")
    assert code == 0, said


def test_dg_lists_scaffolds_and_checks_the_component(project: Project) -> None:
    with ThreadPoolExecutor() as pool:
        listed, checked, loaded = pool.map(
            lambda arguments: project.dg(*arguments),
            [("list", "components"), ("check", "yaml"), ("check", "defs", "--use-active-venv")],
        )
    for name in ("SqsIngestionComponent", *OTHERS):
        assert f"sqs_lease.dagster.{name}" in listed[1]
    assert checked == (0, "All component YAML validated successfully.\n")
    assert loaded[0] == 0, loaded[1]
    assert "All definitions loaded successfully." in loaded[1]


def test_dg_says_where_yaml_is_wrong(project: Project) -> None:
    project.write("kind", lambda text: text.replace("kind: delta", "kind: delt"))
    project.write("key", lambda text: text.replace("path: /data/orders", "pth: /data/orders"))
    project.write("block", lambda text: text.replace("  name: orders", "  name: orders\n    region: eu-west-1", 1))
    project.write("both", lambda text: text.replace("kind: json", "kind: json\n    inferred_schema: /data/schema"))
    try:
        with ThreadPoolExecutor() as pool:
            kind, key, block, both = pool.map(
                lambda arguments: project.dg(*arguments),
                [
                    ("check", "yaml", "src/shop/defs/kind"),
                    ("check", "yaml", "src/shop/defs/key"),
                    ("check", "yaml", "src/shop/defs/block"),
                    ("check", "defs", "--use-active-venv", "--no-check-yaml"),
                ],
            )
    finally:
        for name in ("kind", "key", "block", "both"):
            (project.defs / name / "defs.yaml").unlink()
            (project.defs / name).rmdir()
    assert (kind[0], key[0], block[0], both[0]) == (1, 1, 1, 1)
    assert "attributes.sink.kind 'delt' is not one of ['delta'" in kind[1]
    assert "attributes.sink.pth Additional properties are not allowed ('pth' was unexpected)" in key[1]
    assert "attributes.sink 'path' is a required property" in key[1]
    assert "attributes.queue.region Additional properties are not allowed ('region' was unexpected)" in block[1]
    assert "both" in both[1]
