#!/usr/bin/env bash
# Installs into .peers the SQS server of `make benchmark-peers`, and what it compares this project with, each from its own
# pinned list: npm's lock file, Go's checksums, Maven's versions, and pip's hashes. A peer whose tools are missing is left
# out, which its row says.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

peers="$PWD/benchmarks/peers"
mkdir -p .peers

# Runs install_NAME, unless what it is made from is what it was last time.
bring_up_to_date() { # name, files ...
    local name="$1" wanted
    shift
    wanted=$(cat "$@" | sha256sum)
    [ "$(cat ".peers/$name.fingerprint" 2>/dev/null)" = "$wanted" ] && return
    echo "Installing $name into .peers ..."
    if "install_$name" >".peers/$name.log" 2>&1; then
        echo "$wanted" >".peers/$name.fingerprint"
    else
        echo "$name could not be installed: $(tail -n 1 ".peers/$name.log")" >&2
    fi
}

install_sqs_consumer() {
    mkdir -p .peers/sqs_consumer
    cp "$peers"/sqs_consumer/{package.json,package-lock.json,consumer.mjs} .peers/sqs_consumer/
    npm --prefix .peers/sqs_consumer ci --no-audit --no-fund
}

install_celery() {
    [ -x .peers/celery/bin/python ] || .venv/bin/uv venv --quiet --python .venv/bin/python .peers/celery
    .venv/bin/uv pip sync --quiet --require-hashes --python .peers/celery/bin/python requirements/peers-celery.txt
}

install_benthos() {
    mkdir -p .peers/benthos
    cp "$peers"/benthos/{go.mod,go.sum,main.go} .peers/benthos/
    (cd .peers/benthos && go build -o benthos .)
}

install_elasticmq() {
    mkdir -p .peers/elasticmq
    cp "$peers"/elasticmq/pom.xml .peers/elasticmq/
    mvn --quiet --batch-mode --file .peers/elasticmq/pom.xml dependency:copy-dependencies -DincludeScope=runtime
}

install_spring() {
    mkdir -p .peers/spring
    cp -r "$peers"/spring/{pom.xml,src} .peers/spring/
    mvn --quiet --batch-mode --file .peers/spring/pom.xml package dependency:copy-dependencies -DincludeScope=runtime
}

bring_up_to_date elasticmq "$peers"/elasticmq/pom.xml
bring_up_to_date sqs_consumer "$peers"/sqs_consumer/*
bring_up_to_date celery requirements/peers-celery.txt
bring_up_to_date benthos "$peers"/benthos/{go.mod,go.sum,main.go}
bring_up_to_date spring "$peers"/spring/pom.xml "$peers"/spring/src/main/java/peers/Consumer.java
