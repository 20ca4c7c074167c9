"""The folder of components that docs/dagster-components.md describes."""

from __future__ import annotations

import re

import pytest

from demo.processes import ROOT
from tests.dagster.components.shop import Shop


def test_the_folder_that_the_page_describes_can_be_loaded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_QUEUE", "orders")
    page = (ROOT / "docs" / "dagster-components.md").read_text()
    queue, function, sensor = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (work,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shop.write("../page.py", work)
    shop.write("queues/orders/defs.yaml", queue)
    shop.write("orders/defs.yaml", function.replace("shop.work.load", "shop_of_tests.page.load"))
    shop.write("sensor/defs.yaml", sensor)
    made = shop.definitions().get_repository_def()
    assert {sensor.name for sensor in made.sensor_defs} == {"orders_backlog", "orders_waiting"}
    assert "orders_queue" in made.get_top_level_resources()
