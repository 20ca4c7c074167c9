# ruff: noqa: T201 - what it prints is for people
"""Breaks the package in one place after the other, and shows that the tests notice: ``make mutants``.

Each change of :mod:`tests.mutants.catalogue` is made in a copy of the package, and its tests run with that copy. A
mutant is *killed* when a test fails. One that survives, hangs for longer than :data:`LIMIT_SECONDS`, or breaks so that
no test can run (*broken*) fails the whole run. Before that, all these tests must pass with an unchanged copy, and the
mutant :data:`CANARY` must be killed: it shows that the copy is what the tests import.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PACKAGE, ROOT, Mutant, StaleMutantError

LIMIT_SECONDS: Final = 60.0
"""How long the tests of one mutant may take: a test that fails late, or never, is of no help."""

CANARY: Final = Mutant(
    "the canary: a call has room for nine messages",
    "core/limits.py",
    "MAX_BATCH_ENTRIES: Final = 10",
    "MAX_BATCH_ENTRIES: Final = 9",
    ("tests/core/ledger/test_extending.py",),
)

_FIRST_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a mutant.

    Attributes:
        name: The mutant's name.
        fate: ``killed``, ``survives``, ``hangs`` or ``broken``.
        seconds: How long its tests took.
        detail: The test that noticed it, or the last lines that pytest printed.
        is_known: Whether it is known to survive.
    """

    name: str
    fate: str
    seconds: float
    detail: str = ""
    is_known: bool = False

    @classmethod
    def of(cls, mutant: Mutant, code: int | None, printed: str, seconds: float) -> Result:
        """Tell a mutant's fate from pytest's exit code, None where it took too long, and from what it printed."""
        is_known = bool(mutant.survives_because)
        match code:
            case None:
                return cls(mutant.name, "hangs", seconds, is_known=is_known)
            case 0:
                return cls(mutant.name, "survives", seconds, mutant.survives_because, is_known=is_known)
            case 1 if (failed := _FIRST_FAILED.search(printed)) is not None:
                return cls(mutant.name, "killed", seconds, failed["test"], is_known=is_known)
        return cls(mutant.name, "broken", seconds, f"pytest exited with {code}:\n{printed[-2000:]}", is_known=is_known)

    @property
    def is_bad(self) -> bool:
        """Whether it fails the run: one that is known to survive must do so, as its reason says."""
        return self.fate != ("survives" if self.is_known else "killed")

    def __str__(self) -> str:
        return f"{self.fate:9}{self.seconds:6.1f} s  {self.name}{f'  ({self.detail})' if self.detail else ''}"


class Copy:
    """A copy of the package in a directory of its own.

    Args:
        directory: An empty directory.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # With the times of the files: what Python has compiled stays valid.
        shutil.copytree(PACKAGE, directory / PACKAGE.name)

    @contextmanager
    def changed_by(self, mutant: Mutant) -> Iterator[None]:
        """Make a mutant's change while the block runs."""
        file = self._directory / PACKAGE.name / mutant.file
        text = mutant.applied()
        # Of two versions of one second and length Python would take the compiled one for both.
        for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
            compiled.unlink()
        file.write_text(text)
        try:
            yield
        finally:
            shutil.copy2(PACKAGE / mutant.file, file)

    def test(self, tests: Iterable[str], *, limit_seconds: float | None) -> tuple[int | None, str]:
        """Run tests with the copy.

        Returns:
            Pytest's exit code, None where it took longer than the limit; and what it printed.
        """
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=line", "-p", "no:cacheprovider"),
            *("-o", f"pythonpath={self._directory} {ROOT}"),
            # Their imports take as long as the tests of most mutants.
            *("-p", "no:hypothesispytest", "-p", "no:anyio"),
            # A test that pytest-timeout stops would count as one that failed.
            *("--timeout=0", *tests),
        ]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self._directory}:{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            # With it hypothesis tries the same examples each time, and keeps none.
            "CI": "true",
        }
        with tempfile.TemporaryFile("w+") as printed:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=printed, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                code: int | None = process.wait(limit_seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    # With all that the tests started.
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            printed.seek(0)
            return code, printed.read()


def fate_of(mutant: Mutant, copy: Copy) -> Result:
    """Run a mutant's tests."""
    began = time.monotonic()
    with copy.changed_by(mutant):
        code, printed = copy.test(mutant.tests, limit_seconds=LIMIT_SECONDS)
    return Result.of(mutant, code, printed, time.monotonic() - began)


def main() -> int:
    """Return 1 if the tests do not notice a mutant, or cannot tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", help="the mutants with one of these texts in their names; all by default"
    )
    parser.add_argument("--jobs", type=int, default=2, help="how many run at once; 2 by default")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.only is None or any(part in mutant.name for part in options.only)]
    if not chosen:
        parser.error(f"no mutant has {' or '.join(options.only)} in its name")
    try:
        for mutant in (CANARY, *MUTANTS):
            mutant.applied()
    except StaleMutantError as error:
        print(f"STALE: {error}")
        return 1
    with tempfile.TemporaryDirectory(prefix="sqs-lease-mutants-") as directory:
        copies = [Copy(Path(directory, str(number))) for number in range(max(options.jobs, 1))]
        if not _can_tell(chosen, copies[0]):
            return 1
        return _summed_up(_all_fates(chosen, copies))


def _can_tell(mutants: Sequence[Mutant], copy: Copy) -> bool:
    """Whether the tests pass with the unchanged copy, and notice the canary."""
    began = time.monotonic()
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    code, printed = copy.test(tests, limit_seconds=None)
    print(f"Without a change, their tests {'pass' if code == 0 else 'FAIL'} in {time.monotonic() - began:.0f} s.")
    if code != 0:
        print(printed[-4000:])
        return False
    canary = fate_of(CANARY, copy)
    print(canary, flush=True)
    if canary.is_bad:
        print("The tests do not import the copy of the package: nothing can be told of any mutant.")
    return not canary.is_bad


def _all_fates(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> list[Result]:
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def run(mutant: Mutant) -> Result:
        copy = free.get()
        try:
            return fate_of(mutant, copy)
        finally:
            free.put(copy)

    results: list[Result] = []
    with ThreadPoolExecutor(len(copies)) as pool:
        for done in as_completed([pool.submit(run, mutant) for mutant in mutants]):
            results.append(done.result())
            print(results[-1], flush=True)
    return results


def _summed_up(results: Sequence[Result]) -> int:
    counts = Counter(result.fate for result in results)
    total = sum(result.seconds for result in results)
    print(f"\n{len(results)} mutants: {', '.join(f'{count} {fate}' for fate, count in counts.items())}", end="; ")
    print(f"{total:.0f} s of tests, the longest {max(result.seconds for result in results):.0f} s")
    bad = [result for result in results if result.is_bad]
    for result in bad:
        print(f"BAD: {result}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
