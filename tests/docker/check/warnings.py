"""Warnings and secrets in the logs of the services."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Final

_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
_WARNING: Final = re.compile(
    r"\b(warn|warning|error|critical|fatal)\b|Traceback|Exception|OutOfMemory|Warning:", re.IGNORECASE
)
_CHANGING: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|\d+")


def warnings_in_logs(directory: Path) -> list[str]:
    """Each kind of line that warns, with how often it stands in which log; numbers and ids are left out.

    Args:
        directory: Where the logs are.
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for log in sorted(directory.glob("*.log")):
        for line in log.read_text(errors="replace").splitlines():
            # Two servers log everything by a logger of this name.
            plain = re.sub(r"\[(uvicorn|hypercorn)\.error\]", "", _ESCAPES.sub("", line))
            if _WARNING.search(plain):
                kinds[(log.stem, _CHANGING.sub("#", plain)[:400])] += 1
    return [f"{count:5} x {service}: {kind}" for (service, kind), count in sorted(kinds.items())]


def secrets_in_logs(directory: Path) -> list[str]:
    """The logs, of services and of tasks, in which one of the stack's secrets stands.

    Args:
        directory: Where logs and volumes are.
    """
    secrets: list[str] = []
    for path in (directory / "volumes" / "secrets").iterdir():
        text = path.read_text().strip()
        secrets += json.loads(text).values() if path.suffix == ".json" else [text.rpartition(":")[2]]
    logs = [*(directory / "logs").glob("*.log"), *(directory / "volumes" / "airflow-logs").rglob("*.log")]
    return [log.stem for log in logs if any(secret in log.read_text(errors="replace") for secret in secrets)]
