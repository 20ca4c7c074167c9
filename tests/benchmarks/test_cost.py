"""`benchmarks.cost` runs on the working tree with few leases; no test judges a figure that depends on time."""

from __future__ import annotations

import pytest

from benchmarks.cost import PACKAGES, ROOT, Side, compare


def test_all_tables_have_a_line_for_each_figure_of_both_sides(capsys: pytest.CaptureFixture[str]) -> None:
    packages = ROOT / PACKAGES
    compare([Side("before", packages), Side("now", packages)], leases=[100], runs=1, messages=10)
    lines = capsys.readouterr().out.splitlines()
    for title in ("API calls", "CPU milliseconds", "One step", "One round", "One pause", "Bytes a lease"):
        assert any(line.startswith(title) for line in lines), title
    for name in (
        "Growing",
        "100 leases",
        "settle, all batches at once",
        "id, receipt handle, no content",
    ):
        assert any(line.startswith(name) for line in lines), name
    (growing,) = (line.split() for line in lines if line.startswith("Growing"))
    assert growing[1:3] == ["16", "16"]
