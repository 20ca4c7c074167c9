"""When the demo starts another run."""

from __future__ import annotations

import pytest

from demo.runs import runs_to_start


@pytest.mark.parametrize(
    ("visible", "receiving", "expected"),
    [
        pytest.param(3000, 0, 3, id="a run for each thousand messages"),
        pytest.param(3001, 0, 4, id="and one for what is over"),
        pytest.param(3000, 3, 0, id="none for messages that runs are about to receive"),
        pytest.param(1500, 1, 1, id="one for those that are too many for the runs that receive"),
        pytest.param(20, 1, 0, id="none for given-back messages while a run receives"),
        pytest.param(0, 0, 0, id="none for an empty queue"),
    ],
)
def test_runs_are_started_for_messages_that_no_run_will_take(visible: int, receiving: int, expected: int) -> None:
    assert runs_to_start(visible, receiving) == expected
