#!/usr/bin/env bash
# A bootstrap action of EMR 8 (Spark 4): on every node an environment with sqs-lease, for drivers and executors, beside
# which EMR's own packages stay as they are. Its Spark is EMR's: see configuration.json.
#   bootstrap.sh s3://BUCKET/sqs_lease-0.1.0-py3-none-any.whl [PYTHON [DIRECTORY]]
set -euo pipefail

wheel=$1
python=${2:-python3.11}
directory=${3:-/opt/sqs-lease}

downloaded=$(mktemp --directory)
trap 'rm -rf "$downloaded"' EXIT
aws s3 cp --quiet "$wheel" "$downloaded/"
sudo "$python" -m venv "$directory"
sudo "$directory/bin/python" -m pip install --quiet --no-cache-dir \
    "sqs-lease[spark-cluster] @ file://$downloaded/$(basename "$wheel")"
