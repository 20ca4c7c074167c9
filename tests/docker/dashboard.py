"""The dashboard of docker/grafana as values: its expressions, as Prometheus gets them from Grafana."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DASHBOARD: Final = Path(__file__).resolve().parents[2] / "docker" / "grafana" / "dashboards" / "sqs-lease.json"

FILLED_IN: Final = {"$queue": ".*", "$__range": "1h", "$__rate_interval": "1h"}
"""Grafana's values of variables in expressions, here for all queues and one hour."""

# A label may be named like one: `sqs_lease_outcome="deleted"`.
_METRIC: Final = re.compile(r"\b(?:(?:airflow_)?sqs_lease_|messaging_(?:client|process)_)\w+\b(?!\s*(?:=|!))")


@dataclass(frozen=True, slots=True)
class Expression:
    """The expression of one line of a panel, or of the choice of queues."""

    panel: str
    legend: str
    text: str
    """With Grafana's variables filled in."""

    @property
    def metrics(self) -> set[str]:
        """The names of the metrics that it reads."""
        return set(_METRIC.findall(self.text))


def dashboard() -> dict[str, Any]:
    """The file."""
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def expressions() -> list[Expression]:
    """All expressions of the panels, and that of the variable `queue`."""
    found = [
        Expression(panel["title"], target["legendFormat"], filled_in(target["expr"]))
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
    (queue,) = [variable for variable in dashboard()["templating"]["list"] if variable["name"] == "queue"]
    read = re.fullmatch(r"query_result\((.*)\)", queue["query"]["query"])
    assert read is not None
    return [*found, Expression("choice of queues", "", filled_in(read[1]))]


def filled_in(expression: str) -> str:
    """Put in what Grafana puts in for its variables.

    Raises:
        ValueError: It has a variable that is not known here.
    """
    for variable, value in FILLED_IN.items():
        expression = expression.replace(variable, value)
    # `$1` is Prometheus's own.
    if unknown := re.findall(r"\$\{?[a-zA-Z_]\w*", expression):
        raise ValueError(f"Nothing is known to put in for {', '.join(unknown)}")
    return expression
