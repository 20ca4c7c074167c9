#!/usr/bin/env bash
# Makes an environment beside .venv, from the pinned requirements of its name: `environment.sh website` makes .website from
# website.txt. Does nothing when the environment is up to date.
#   website        builds the site of docs/; nothing of the project runs in it
#   table-formats  tests native Delta and Iceberg, on the newest Spark that the jars of both support
#   fuzz           what `make fuzz` needs beside .venv
#   release        makes what is published: the bill of materials, after a look for known vulnerabilities
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.$1 pins=requirements/$1.txt
mkdir -p "$environment"
# Two test runs may want it at the same moment.
exec 9>"$environment/making"
flock 9
wanted=$(cat "$pins" requirements/environment.sh <(.venv/bin/python -VV) | sha256sum)
if [ "$(cat "$environment/fingerprint" 2>/dev/null)" != "$wanted" ]; then
    [ -x "$environment/bin/python" ] ||
        .venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python "$environment"
    .venv/bin/uv pip sync --quiet --require-hashes --python "$environment/bin/python" "$pins"
    echo "$wanted" >"$environment/fingerprint"
fi
