#!/usr/bin/env bash
# Tests tests/dagster on the oldest and the newest release of Dagster that pyproject.toml allows, each in an environment
# of its own in .dagster-versions. Everything else there is the newest that fits. PYTHON is the Python to make it with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
bounds=$(sed -n 's/^ *"\(dagster>=.*\)",$/\1/p' pyproject.toml)
oldest=${bounds#dagster>=}
oldest=${oldest%%,*}
failed=()

test_on() {
    local environment=.dagster-versions/$1-python$version
    .venv/bin/uv venv --quiet --allow-existing --python "$python" "$environment"
    .venv/bin/uv pip install --quiet --upgrade-package dagster --python "$environment/bin/python" \
        -r requirements/dagster-versions.in "$2"
    "$environment/bin/python" -c 'import dagster, platform
print(f"Dagster {dagster.__version__} on Python {platform.python_version()}", flush=True)'
    "$environment/bin/python" -m pytest -q --hypothesis-profile=ci tests/dagster || failed+=("$1")
}

test_on oldest "dagster==$oldest"
test_on newest "$bounds"
if [ ${#failed[@]} -gt 0 ]; then
    printf 'Failed on the %s release of Dagster.\n' "${failed[@]}" >&2
    exit 1
fi
