#!/usr/bin/env bash
# Makes .website, the environment in which the site of docs/ is built: nothing of the project runs in it, because the
# API reference is read from the sources. `make docs` runs it. Does nothing when the environment is up to date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=.website
wanted=$(cat requirements/website.txt requirements/website.sh <(.venv/bin/python -VV) | sha256sum)
if [ "$(cat "$environment/fingerprint" 2>/dev/null)" != "$wanted" ]; then
    .venv/bin/uv venv --quiet --allow-existing --python .venv/bin/python "$environment"
    .venv/bin/uv pip sync --quiet --require-hashes --python "$environment/bin/python" requirements/website.txt
    echo "$wanted" >"$environment/fingerprint"
fi
