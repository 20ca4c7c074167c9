#!/usr/bin/env bash
# Makes .prometheus/prometheus, the server that docker/compose.yaml runs, from its sources: for the tests of the
# dashboard. Needs Go, which checks what it fetches against its checksum database; some minutes the first time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# prom/prometheus:v3.15.1 in docker/compose.yaml: as a Go module, version 3.15.1 is called 0.315.1.
version=v0.315.1
program="$PWD/.prometheus/prometheus"
if [ "$(cat .prometheus/version 2>/dev/null)" != "$version" ]; then
    mkdir -p .prometheus
    cd .prometheus
    # It cannot be built by `go install`, because of a `replace` in its go.mod.
    sources=$(go mod download -json "github.com/prometheus/prometheus@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
    # Without the clients of clouds where it could look for servers, nor the tools of its workspace, which a module lacks.
    (cd "$sources" && GOWORK=off go build -buildvcs=false -tags remove_all_sd -o "$program" ./cmd/prometheus)
    echo "$version" >version
fi
