#!/usr/bin/env bash
# Makes .table-formats, the environment in which native Delta and Iceberg are tested: on the newest Spark that the jars
# of both support, which is older than that of .venv. The tests run it. Does nothing when the environment is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.table-formats
mkdir -p "$environment"
# Two test runs may want it at the same moment.
exec 9>"$environment/making"
flock 9
wanted=$(cat requirements/table-formats.txt requirements/table-formats.sh <(.venv/bin/python -VV) | sha256sum)
if [ "$(cat "$environment/fingerprint" 2>/dev/null)" != "$wanted" ]; then
    [ -x "$environment/bin/python" ] ||
        .venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python "$environment"
    .venv/bin/uv pip sync --quiet --require-hashes --python "$environment/bin/python" requirements/table-formats.txt
    echo "$wanted" >"$environment/fingerprint"
fi
