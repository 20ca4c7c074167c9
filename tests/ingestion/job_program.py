"""In place of the job that ingests, and of Spark: a program that does what a test says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sqs_lease.batch_files.manifest import read_manifest
from sqs_lease.ingestion.result import StoredResult

RESULT = StoredResult(
    batch_id="b",
    received=3,
    ingested=2,
    empty=0,
    duplicates=0,
    rejected=1,
    rows=2,
    table_version=1,
    rejects_stored=False,
    batchItemFailures=[{"itemIdentifier": "m2", "reason": "no JSON"}],
)
LEAVE_RESULT = "[pathlib.Path(path).write_text(RESULT) for path in named('--result')]"


class JobProgram:
    """In place of Python: a program that notes what it was given, then does what a script says."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "python"
        self.notes = directory / "notes.json"
        self.started = directory / "started"
        self.ended = directory / "ended"
        self.does(LEAVE_RESULT)

    def does(self, script: str) -> None:
        lines = [
            f"#!{sys.executable}",
            "import json, os, pathlib, signal, sys, time",
            "named = lambda name: [sys.argv[i + 1] for i, one in enumerate(sys.argv) if one == name]",
            "files = [pathlib.Path(path).read_bytes().hex() for path in named('--manifest')]",
            "notes = {'pid': os.getpid(), 'argv': sys.argv[1:], 'files': files, 'environment': dict(os.environ)}",
            f"pathlib.Path({str(self.notes)!r}).write_text(json.dumps(notes))",
            f"RESULT = {RESULT.encode()!r}",
            f"STARTED, ENDED = pathlib.Path({str(self.started)!r}), pathlib.Path({str(self.ended)!r})",
            script,
        ]
        self.path.write_text("\n".join(lines))
        self.path.chmod(0o755)

    def noted(self) -> Any:
        return json.loads(self.notes.read_text())

    def spec(self) -> Any:
        argv = self.noted()["argv"]
        return json.loads(argv[argv.index("--spec") + 1])

    def bodies(self) -> list[list[str]]:
        """The bodies of the messages in each manifest."""
        copy = self.notes.with_name("manifest")
        found = []
        for content in self.noted()["files"]:
            copy.write_bytes(bytes.fromhex(content))
            found.append([message.body for message in read_manifest(copy).messages])
        return found


WAITS_FOR_ITS_END = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
STARTED.write_text(str(os.getpid()))
signal.sigwait({signal.SIGTERM})
ENDED.write_text('in order')
sys.exit(143)
"""
