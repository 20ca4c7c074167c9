"""Users and dying triggerers act on a run at random times: it touches only its own messages, and loses no message."""

from __future__ import annotations

import logging

import pytest

from tests.airflow.scripted_comms import ScriptedComms
from tests.scenarios.airflow.acted_on_run import ActedOnRun


# The last ones found defects once: a triggerer that spun, a keeper that took over from a cleared run, leases that
# had no holder when the old trigger was told late, keepers that were cleared twice within seconds, one of which did not
# begin again in time, a trigger that went to another triggerer and back within seconds, and messages that a cleared
# keeper had left, and its next try held, when the sensor was cleared.
@pytest.mark.parametrize("seed", [*range(16), 90, 108, 41, 1528, 20041, 2149, 2374, 1114])
def test_a_run_touches_only_its_own_messages_and_loses_no_message_in_any_case(
    supervisor: ScriptedComms, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    run = ActedOnRun(supervisor, seed)
    run.play()
    assert not run.problems(), "\n".join(run.history)
