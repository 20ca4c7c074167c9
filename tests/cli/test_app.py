"""Behaviour that all commands of `sqs-lease` have in common."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

from sqs_lease.cli.__main__ import main
from sqs_lease.cli.output import CommandError, ExitCode, errors_as_lines
from sqs_lease.sqs.errors import QueueNotFoundError, SqsError, ThrottledError
from tests.cli.commands import Ran, sqs_lease

WITHOUT = """
import sys
sys.modules[{module!r}] = None
from sqs_lease.cli.__main__ import main
main()
"""

INTERRUPTED_WHILE_IMPORTING = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from sqs_lease.cli.__main__ import main
main()
"""

INTERRUPTED_WHILE_TYPER_WORKS = """
import os, signal, sys
import typer.main

def interrupted(*_):
    os.kill(os.getpid(), signal.SIGINT)

typer.main.get_command = interrupted
from sqs_lease.cli.__main__ import main
main()
"""

INTERRUPTED_AT_THE_END = """
import atexit, os, signal, sys
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.argv = ["sqs-lease", "--version"]
from sqs_lease.cli.__main__ import main
main()
"""


def test_the_version_is_that_of_the_distribution() -> None:
    assert sqs_lease("--version") == Ran(0, f"sqs-lease {version('sqs-lease')}\n", "")


def test_without_a_command_it_prints_the_help() -> None:
    assert sqs_lease() == sqs_lease("--help")
    assert sqs_lease().exit_code == 0


@pytest.mark.parametrize(("argument", "says"), [("nothing", "No such command"), ("--nothing", "No such option")])
def test_an_unknown_command_is_one_line_and_exit_code_2(argument: str, says: str) -> None:
    ran = sqs_lease(argument)

    assert (ran.exit_code, ran.out) == (2, "")
    # The releases of Typer put the name in other words.
    assert ran.err.startswith(f"Error: {says}")
    assert ran.err.endswith(". See `sqs-lease --help`.\n")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CommandError("There is no\nsuch thing."), 2),
        (QueueNotFoundError("There is no such thing."), 2),
        (SqsError("There is no such thing."), 1),
        (ThrottledError("There is no such thing."), 1),
    ],
)
def test_an_error_is_one_line(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, errors_as_lines():
        raise error

    assert left.value.code == code
    assert capsys.readouterr().err == "Error: There is no such thing.\n"


def test_an_error_has_nothing_that_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), errors_as_lines():
        raise SqsError("denied \x1b[31mfor\x1b[0m \x1b]0;title\x07")

    assert capsys.readouterr().err == "Error: denied \\x1b[31mfor\\x1b[0m \\x1b]0;title\\x07\n"


def test_a_long_error_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), errors_as_lines():
        raise CommandError("word " * 100)

    assert capsys.readouterr().err.count("\n") == 1


def test_ctrl_c_ends_it_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left, errors_as_lines():
        raise KeyboardInterrupt

    assert left.value.code == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(module: str) -> None:
    code = WITHOUT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f'Error: the command sqs-lease needs {module}, which is not installed: pip install "sqs-lease[cli]"\n'
    )


@pytest.mark.parametrize("arguments", [["--version"], ["plan"], ["plan", "--json"]], ids=" ".join)
def test_output_on_a_full_disk_is_one_line_and_exit_code_1(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "sqs_lease.cli", *arguments]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr == "Error: The output cannot be written: No space left on device\n"


def test_a_reader_that_has_read_enough_ends_it_in_silence() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "sqs_lease.cli", "plan", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)

    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("code", [INTERRUPTED_WHILE_IMPORTING, INTERRUPTED_AT_THE_END], ids=["importing", "ending"])
def test_ctrl_c_outside_a_command_leaves_no_traceback(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, check=False)

    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_ctrl_c_before_the_command_begins_leaves_no_traceback_either() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_TYPER_WORKS],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        check=False,
    )

    assert (done.returncode, done.stderr) == (130, b"")


def test_the_wheel_installs_the_command() -> None:
    (script,) = entry_points(group="console_scripts", name="sqs-lease")

    assert script.load() is main


@pytest.mark.parametrize("option", ["--region", "--profile", "--endpoint-url"])
@pytest.mark.parametrize("command", ["doctor", "policy", "peek", "redrive"])
def test_an_empty_option_is_not_silently_the_default(command: str, option: str) -> None:
    ran = sqs_lease(command, "orders", option, "")

    assert (ran.exit_code, ran.out) == (2, "")
    assert f"Invalid value for '{option}': it is empty; leave the option out to use the default" in ran.err
