"""How far a reader has to go to follow one message: the files, classes and changes of file of one message's way.

    python -m benchmarks.way_of_a_message [--list]

One message is received by the sensor's trigger, is held by the keeper's trigger while a task works on it for half an
hour, and is deleted. Both triggers run in one triggerer on virtual time, over the SQS in memory; Airflow is scripted as
in the tests. Each call of a function of `sqs_lease` is noted, the testing room left out:

- *files* that the message passes, of `sqs_lease/airflow` and in all;
- *classes* whose methods are called;
- *changes of file*: calls from a function of one file into a function of another one. The same call from the same line
  counts once, however often it is made: so a loop counts as one, as a reader takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

import sqs_lease

PACKAGE: Final = Path(sqs_lease.__file__).parent
WORK_SECONDS: Final = 1_800
GENERATED: Final = frozenset({"<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>"})


@dataclass(slots=True)
class Way:
    """The way of one message."""

    files: Counter[str] = field(default_factory=Counter)
    classes: set[str] = field(default_factory=set)
    changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _seen: set[tuple[str, int, str, str]] = field(default_factory=set)

    def note(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take in one call; for ``sys.settrace``."""
        if event != "call" or (path := _path_of(frame)) is None:
            return None
        self.files[path] += 1
        name = frame.f_code.co_qualname
        parts = [part for part in name.split(".") if part not in GENERATED and part != "<locals>"]
        if len(parts) > 1:
            self.classes.add(f"{path}:{parts[0]}")
        caller = frame.f_back
        while caller is not None and (source := _path_of(caller)) is None:
            caller = caller.f_back
        if caller is not None and source is not None and source != path:
            call = (source, caller.f_lineno, path, name)
            if call not in self._seen:
                self._seen.add(call)
                self.changes[source, path] += 1
        return None


def _path_of(frame: FrameType) -> str | None:
    """The file of a frame within the package; None for others, and for what only tests and type checkers need."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    relative = path.relative_to(PACKAGE)
    return None if relative.parts[0] == "testing" else relative.as_posix()


def traced() -> Way:
    """Let one message go its way."""
    # Airflow reads its configuration when it is imported.
    from tests.airflow import airflow_home  # noqa: F401
    from tests.airflow.leased_messages import LeasedMessages
    from tests.airflow.scripted_comms import ScriptedComms, supervised_by

    logging.disable()
    way = Way()
    with supervised_by(ScriptedComms()) as supervisor:
        world = LeasedMessages(supervisor, bodies="a")

        async def scenario() -> None:
            running = await world.receive_and_keep()
            await asyncio.sleep(WORK_SECONDS)
            world.states["load"] = "success"
            await running.ended()

        sys.settrace(way.note)
        try:
            world.run(scenario)
        finally:
            sys.settrace(None)
    if world.message_states():
        raise RuntimeError("the message was not deleted")
    return way


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="show each file and each change as well")
    options = parser.parse_args()
    way = traced()
    of_airflow = [path for path in way.files if path.startswith("airflow/")]
    into_airflow = sum(count for pair, count in way.changes.items() if any(path in of_airflow for path in pair))
    print(f"files: {len(way.files)}, {len(of_airflow)} of them of airflow/")
    print(f"classes: {len(way.classes)}, {sum(one.startswith('airflow/') for one in way.classes)} of them of airflow/")
    print(f"changes of file: {way.changes.total()}, {into_airflow} of them from or to airflow/")
    if options.list:
        for path in sorted(way.files):
            print(f"  {path}")
        for (source, path), count in way.changes.most_common():
            print(f"  {count:4} {source} -> {path}")


if __name__ == "__main__":
    main()
