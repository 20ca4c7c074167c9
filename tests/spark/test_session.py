"""Sessions get their settings, and no command line of any process shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sqs_lease.spark.session import local_session, properties

pytestmark = pytest.mark.processes

PROGRAM = """
import json
import os
import stat
import sys
import threading
from pathlib import Path

from sqs_lease.ingestion.spec import with_environment
from sqs_lease.spark import session

SECRET = os.environ["SECRET"]
seen, modes, ended = set(), set(), threading.Event()


def look():
    # Also while Spark starts: its launcher is another process, with a command line of its own.
    while not ended.is_set():
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes()
            except OSError:
                continue
            if SECRET.encode() in line:
                seen.add(str(path))
            if b"pyspark-shell" in line:
                modes.add(True)
        ended.wait(0.05)


looking = threading.Thread(target=look)
looking.start()
conf = with_environment({"spark.example.secret": {"env": "SECRET"}, "spark.driver.memory": "600m"}, os.environ)
found = []
for _ in range(2):
    # The second one in the Java process of the first.
    with session.driver_session(master="local[1]", remote=None, conf=conf) as spark:
        java = spark.sparkContext.getConf()
        name = "spark.example.secret"
        found.append([java.get(name), java.get("spark.master"), spark.conf.get(name)])
        most = spark.sparkContext._jvm.java.lang.Runtime.getRuntime().maxMemory()
    conf["spark.example.secret"] = SECRET + " of the second"
ended.set()
looking.join()
print(json.dumps({"found": found, "seen": sorted(seen), "java_was_seen": bool(modes), "most": most}))
"""


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no command lines to look at")
@pytest.mark.parametrize("cores", [0, -1, "2"], ids=repr)
def test_cores_are_checked_before_spark_starts(cores: Any) -> None:
    with pytest.raises(ValueError, match="cores must be a whole number from 1 on"), local_session(cores):
        pytest.fail("the block is not entered")


def test_settings_from_the_environment_are_on_no_command_line(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    secret = "S3CRET #! = : \\ é"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "SECRET": secret, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2_000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["seen"] == []
    assert said["java_was_seen"]
    assert said["found"] == [
        [secret, "local[1]", secret],
        [f"{secret} of the second", "local[1]", f"{secret} of the second"],
    ]
    # Java's options at its start are taken, too.
    assert said["most"] < 650 * 1024 * 1024
    assert [path.name for path in temporary.rglob("*") if path.name.endswith(".conf")] == []


def test_settings_reach_java_beside_a_file_of_the_users_own(tmp_path: Path) -> None:
    own = tmp_path / "own settings.conf"
    own.write_text("spark.own=1\nspark.driver.memory=600m\n")
    program = """
from sqs_lease.spark.session import driver_session
with driver_session(master="local[1]", remote=None, conf={"spark.driver.memory": "700m"}) as spark:
    print(spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20, spark.conf.get("spark.own"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--properties-file '{own}' pyspark-shell"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "700 1"


def test_settings_are_written_as_java_reads_properties() -> None:
    written = properties({"a.b": "x=y: #1\\\n\t z", "on": True, "number": 3, "spaced": " x", "a=b c": ""})

    assert written == "a.b=x=y: #1\\\\\\n\\t z\non=true\nnumber=3\nspaced=\\ x\na\\u003db\\u0020c=\n"
