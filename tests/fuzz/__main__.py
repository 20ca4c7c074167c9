# ruff: noqa: T201 - what it prints is for people
"""Looks for values that break the readers of strangers' values: ``make fuzz SECONDS=600``.

The targets are the tests of the modules below: those by hypothesis whose arguments all come from strategies. Atheris
(libFuzzer) draws the bytes that hypothesis makes the arguments of, and keeps those that reach new code of the package.
Each module has a process of its own, one after the other, and the first byte chooses the test. The findings are kept
in ``.test-runs/fuzz``: inputs that reach new code, from which the next run goes on, and as ``broken-<module>-*`` what
breaks a test. Then the exit code is 1, and the log has the values.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final = ROOT / ".test-runs" / "fuzz"

MODULES: Final = (
    "tests.sqs.client_transport.test_strange_answers",
    "tests.scenarios.keeper.test_strange_files_are_read_or_refused",
    "tests.scenarios.airflow.test_strange_notes_are_read_or_refused",
    "tests.scenarios.dagster.test_strange_files_are_read_or_refused",
    "tests.scenarios.spark.test_strange_envelopes_are_opened_or_refused",
    "tests.scenarios.ingestion.test_strange_texts_are_read_or_refused",
)
"""Where targets are."""

_LONGEST_INPUT: Final = 4096
_LONGEST_CASE_SECONDS: Final = 120
_SEEDS: Final = 200
"""Random inputs to begin with: of the few bytes that libFuzzer begins with by itself hypothesis can make nothing."""

_EXECUTIONS: Final = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_COVERED: Final = re.compile(r"\bcov: (\d+)")


def main() -> int:
    """Return 1 if a target broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600, help="for how long, all modules together")
    parser.add_argument("--modules", nargs="*", default=[], help="a part of a module's name each; all by default")
    parser.add_argument("--module", choices=MODULES, help=argparse.SUPPRESS)
    options, arguments = parser.parse_known_args()
    if options.module is not None:
        _fuzz(options.module, arguments)
        return 0
    chosen = [name for name in MODULES if not options.modules or any(part in name for part in options.modules)]
    broken = [name for name in chosen if not _run(name, max(options.seconds // len(chosen), 1))]
    for name in broken:
        print(f"BROKEN: {name}; its log is {FILES / name}.log")
    return 1 if broken else 0


def _run(name: str, seconds: int) -> bool:
    corpus = FILES / "corpus" / name
    if not corpus.exists():
        corpus.mkdir(parents=True)
        draw = random.Random(name)
        for number in range(_SEEDS):
            content = bytes([number]) + draw.randbytes(draw.choice([50, 200, 1_000, 3_000]))
            (corpus / f"seed-{number}").write_bytes(content)
    began = time.monotonic()
    command = [
        sys.executable,
        *("-W", "ignore", "-m", "tests.fuzz", "--module", name),
        str(corpus),
        f"-max_total_time={seconds}",
        f"-max_len={_LONGEST_INPUT}",
        "-len_control=0",
        f"-timeout={_LONGEST_CASE_SECONDS}",
        "-rss_limit_mb=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={FILES}/broken-{name}-",
    ]
    log = FILES / f"{name}.log"
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False).returncode
    said = log.read_text(errors="replace")
    executed, covered = (found.findall(said) or ["?"] for found in (_EXECUTIONS, _COVERED))
    print(
        f"{'good' if code == 0 else 'BROKEN'}: {name}: {executed[-1]} executions, {covered[-1]} edges, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )
    return code == 0


def _fuzz(name: str, arguments: list[str]) -> None:
    import atheris  # type: ignore[import-untyped]

    # The packages that they import first are not looked at: Airflow, Dagster and Spark themselves.
    with atheris.instrument_imports(include=["sqs_lease", "jsonpath_ng", "botocore.parsers"]):
        module: Any = import_module(name)
    tests = [test.hypothesis for each, test in vars(module).items() if each.startswith("test_")]

    def case(content: bytes) -> None:
        if content:
            tests[content[0] % len(tests)].fuzz_one_input(content[1:])

    atheris.Setup([name, *arguments], case)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
