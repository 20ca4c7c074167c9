"""What `dg scaffold` writes for a component: a ``defs.yaml`` to be filled in, which can be loaded as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import dagster as dg

_TEMPLATES: Final = Path(__file__).parent


class TemplateScaffolder(dg.Scaffolder):
    """Writes the template of a component, the file beside this one that a subclass names; scaffolders have no state."""

    template: str = ""

    def scaffold(self, request: dg.ScaffoldRequest) -> None:
        """Write it; for Python, what Dagster writes for every component."""
        if request.scaffold_format != "yaml":
            dg.scaffold_component(request, {})
            return
        text = (_TEMPLATES / self.template).read_text(encoding="utf-8").replace("TYPE", request.type_name)
        file = request.target_path / "defs.yaml"
        file.write_text(f"{file.read_text(encoding='utf-8')}---\n{text}" if request.append else text, encoding="utf-8")


class QueueScaffolder(TemplateScaffolder):
    """Of a queue."""

    template = "queue.yaml"


class FunctionScaffolder(TemplateScaffolder):
    """Of an asset by a Python function."""

    template = "function.yaml"


class IngestionScaffolder(TemplateScaffolder):
    """Of an asset by Spark."""

    template = "ingestion.yaml"


class BacklogSensorScaffolder(TemplateScaffolder):
    """Of a sensor."""

    template = "backlog_sensor.yaml"
