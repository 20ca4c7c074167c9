#!/usr/bin/env bash
# Runs pytest in an environment of its own in .versions, for `make versions`:
#   versions.sh PYTHON RESOLUTION ROOM PROJECT BESIDE [what pytest takes ...]
# PROJECT names its extras, for example .[spark]; BESIDE is what else is installed, with spaces between.
# RESOLUTION is pinned (as in development.txt), lowest (of what pyproject.toml names), newest, or a platform whose
# constraints are in platforms/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=$1 resolution=$2 room=$3 project=$4
read -ra beside <<<"$5"
shift 5
environment=.versions/$python-$resolution-$room
case $resolution in
pinned) options=(--constraint requirements/development.txt) ;;
lowest) options=(--resolution lowest-direct) ;;
newest) options=() ;;
spark-*) options=(--constraint "requirements/platforms/$resolution.txt") ;;
*)
    # Without the test tools that Airflow pins for its own tests.
    mkdir -p .versions
    grep -v ^pytest "requirements/platforms/$resolution.txt" >".versions/$resolution.txt"
    options=(--constraint ".versions/$resolution.txt" "apache-airflow==${resolution#*-}")
    ;;
esac
case $room in
older_airflow) tools=() profile=() ;; # they are newer than what is beside it
*) tools=(--requirement requirements/versions.in) profile=(--hypothesis-profile=ci) ;;
esac
.venv/bin/uv venv --quiet --clear --no-python-downloads --python "$python" "$environment"
.venv/bin/uv pip install --quiet --python "$environment/bin/python" "${options[@]}" \
    "${tools[@]}" --editable "$project" "${beside[@]}"
.venv/bin/uv pip list --quiet --python "$environment/bin/python" --format json >"$environment/packages.json"
exec "$environment/bin/python" -m pytest -q "${profile[@]}" "$@"
