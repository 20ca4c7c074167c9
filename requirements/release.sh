#!/usr/bin/env bash
# Makes in dist/ what is published: sdist, wheel, and a bill of materials (CycloneDX) of what each extra is tested with.
# Before it, what is pinned is looked up among known vulnerabilities: one that is found, or a package that could not be
# looked up, stops the release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements/environment.sh release
# What an earlier version left there would be published again.
rm -rf dist
mkdir dist
for host in airflow dagster spark; do
    .release/bin/python -W ignore -m cyclonedx_py requirements "docker/requirements/$host.txt" --pyproject pyproject.toml \
        --output-reproducible --output-file "dist/sqs-lease-$host.cdx.json"
done
.venv/bin/uv build --quiet --out-dir dist
# All that this project pins: what is shipped, the SQS server of the tests, and the tools. Those of requirements/platforms are
# pinned by the platforms.
for pins in docker/requirements/*.txt requirements/*.txt; do
    .release/bin/pip-audit --strict --disable-pip --requirement "$pins"
done
echo "dist/ has the release."
