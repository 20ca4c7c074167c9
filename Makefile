# The commands of this project. Each one sets up what it needs: see `make help`.

PYTHON_ENVIRONMENT := .venv/bin
SEEDS ?= 10000
BODIES ?= 10000
SECONDS ?= 600
AGAINST ?= HEAD~1

# The image has the versions that the tests run with.
COMPILE_FOR_DOCKER = $(PYTHON_ENVIRONMENT)/uv pip compile --quiet --constraints requirements/development.txt \
	--universal -p 3.11 --generate-hashes --no-annotate --no-header

.PHONY: help setup demo demo-dagster test check test-processes chaos test-pages test-metrics screenshots docker-check versions docs pictures release lint format simulate mutants model fuzz-ingestion fuzz benchmark benchmark-peers requirements clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install everything into .venv and .ministack, from pinned versions
	@requirements/install.sh

demo: setup ## run the main job on real processes; KEEP=1 leaves Airflow up afterwards
	@$(PYTHON_ENVIRONMENT)/python -m demo $(if $(KEEP),--keep)

demo-dagster: setup ## the same on Dagster; KEEP=1 leaves its UI up afterwards
	@$(PYTHON_ENVIRONMENT)/python -m demo --orchestrator dagster $(if $(KEEP),--keep)

test: setup ## format, types, what is deterministic, and a short run on real processes of each host; some minutes
	@$(PYTHON_ENVIRONMENT)/python -m tests.suite test

check: setup ## in a minute: format, types and the deterministic tests of what changed since main, or of FILES="a b"
	@$(PYTHON_ENVIRONMENT)/python -m tests.suite check $(FILES)

test-processes: setup ## the tests on real processes, or those of HOST=airflow|dagster|spark; goes on where it was cut off
	@$(PYTHON_ENVIRONMENT)/python -m tests.suite processes $(if $(HOST),--host $(HOST)) $(if $(AGAIN),--again)

chaos: setup ## the same in full: more keepers, databases, examples. With ROUNDS=100, rounds of drawn faults: tests/rounds/README.md
	@$(if $(ROUNDS),\
		$(PYTHON_ENVIRONMENT)/python -m tests.rounds --rounds $(ROUNDS) --keep-going $(if $(HOST),--host $(HOST)) $(if $(SEED),--seed $(SEED)),\
		$(PYTHON_ENVIRONMENT)/python -m tests.suite processes --full $(if $(HOST),--host $(HOST)) $(if $(AGAIN),--again))

docker-check: setup ## build the image of docker/ and run all of compose.yaml from it, without a Docker daemon; as root
	@$(PYTHON_ENVIRONMENT)/python -m tests.docker.check

test-pages: setup ## the page of leases in real Chromium (apt install chromium); screenshots go to .test-runs/pages
	@$(PYTHON_ENVIRONMENT)/python -m pytest tests/processes/pages

test-metrics: setup ## the dashboard of docker/grafana on a real Prometheus, which is built once (with Go), and a real Airflow
	@$(PYTHON_ENVIRONMENT)/python -m pytest tests/processes/metrics

screenshots: test-pages ## take the screenshots of docs/ again, and copy them there: look at what changed
	@for picture in docs/screenshots/*.png; do cp ".test-runs/pages/$$(basename "$$picture")" "$$picture"; done

versions: setup ## the deterministic tests on each Python, and the lowest and newest dependencies; PYTHON=, RESOLUTION=, ROOM=
	@$(PYTHON_ENVIRONMENT)/python -m tests.suite versions $(if $(PYTHON),--python $(PYTHON)) \
		$(if $(RESOLUTION),--resolution $(RESOLUTION)) $(if $(ROOM),--room $(ROOM))

docs: setup ## build the site of docs/ into build/site, which needs no server; a dead link, a warning or a bad template fails it
	@requirements/environment.sh website
	@.website/bin/cfn-lint docs/set-up/*.yaml
	@.website/bin/hcl2tojson docs/set-up/queue.tf >/dev/null
	@NO_MKDOCS_2_WARNING=1 .website/bin/mkdocs build --strict
	@echo "Read build/site/index.html"

pictures: setup ## draw the pictures of docs/ again, from runs of the package in virtual time
	@$(PYTHON_ENVIRONMENT)/python -m docs.site.pictures

release: setup ## make what is published, in dist/: wheel, sdist, bills of materials; a known vulnerability stops it
	@requirements/release.sh

lint: setup ## ruff, the count of habits of wording, and the type checker
	@$(PYTHON_ENVIRONMENT)/ruff check
	@$(PYTHON_ENVIRONMENT)/ruff format --check
	@$(PYTHON_ENVIRONMENT)/python -m tests.architecture.plain_english
	@$(PYTHON_ENVIRONMENT)/mypy

format: setup ## format the code and repair what ruff can repair
	@$(PYTHON_ENVIRONMENT)/ruff format
	@$(PYTHON_ENVIRONMENT)/ruff check --fix

simulate: setup ## run the simulator over more schedules, for example SEEDS=100000
	@$(PYTHON_ENVIRONMENT)/python -m tests.simulation --seeds $(SEEDS)

mutants: setup ## break the package in one place after another; the tests must notice; NAME="a part of a name", JOBS=2
	@$(PYTHON_ENVIRONMENT)/python -m tests.mutants $(if $(NAME),--only "$(NAME)") $(if $(JOBS),--jobs $(JOBS))

model: setup ## search all states of the protocol's model, with all rules and without each (apt install spin gcc); see tests/model/README.md
	@$(PYTHON_ENVIRONMENT)/python -m tests.model

fuzz-ingestion: setup ## ingest BODIES=10000 random messages from every source into every table; SEED=7 repeats a run; an hour
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m tests.spark.fuzz --bodies $(BODIES) $(if $(SEED),--seed $(SEED))
	@requirements/environment.sh table-formats
	@PYTHONPATH=providers .table-formats/bin/python -W ignore -m tests.spark.fuzz --bodies $(BODIES) $(if $(SEED),--seed $(SEED))

fuzz: setup ## look for values that break the readers of strangers' values, for SECONDS=600 (Linux); goes on from the last run
	@requirements/environment.sh fuzz
	@PYTHONPATH="$$(.fuzz/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
		$(PYTHON_ENVIRONMENT)/python -W ignore -m tests.fuzz --seconds $(SECONDS)

benchmark: setup ## measure what leases cost, beside the parent commit or AGAINST=commit, a triggerer, and Spark; an hour
	@$(PYTHON_ENVIRONMENT)/python -m benchmarks.ledger
	@$(PYTHON_ENVIRONMENT)/python -m benchmarks.cost --against $(AGAINST)
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.way_of_a_message
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.triggerer
	@$(PYTHON_ENVIRONMENT)/python -m benchmarks.release
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.latency
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.ingestion
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.fresh_process
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.sinks
	@$(PYTHON_ENVIRONMENT)/python -W ignore -m benchmarks.executors

benchmark-peers: setup ## other consumers of SQS beside this one; PEERS="a b", HELD=10000, THROUGHPUT=20000; 35 minutes
	@requirements/peers.sh
	@$(PYTHON_ENVIRONMENT)/python -m benchmarks.peers $(if $(PEERS),--peers $(PEERS)) \
		$(if $(HELD),--held $(HELD)) $(if $(THROUGHPUT),--throughput $(THROUGHPUT))

requirements: setup ## resolve the dependencies of pyproject.toml again and pin them
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet pyproject.toml --all-extras --group development \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/development.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet requirements/ministack.in \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/ministack.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet pyproject.toml requirements/table-formats.in --extra spark \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/table-formats.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet requirements/website.in --constraints requirements/development.txt \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/website.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet requirements/release.in \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/release.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet requirements/fuzz.in \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/fuzz.txt
	@$(PYTHON_ENVIRONMENT)/uv pip compile --quiet requirements/peers-celery.in \
		--universal -p 3.11 --generate-hashes --no-annotate --no-header -o requirements/peers-celery.txt
	@$(COMPILE_FOR_DOCKER) pyproject.toml docker/requirements/airflow.in --extra airflow --extra manifest --extra cli \
		-o docker/requirements/airflow.txt
	@$(COMPILE_FOR_DOCKER) pyproject.toml docker/requirements/dagster.in --extra dagster --extra cli \
		-o docker/requirements/dagster.txt
	@$(COMPILE_FOR_DOCKER) pyproject.toml --extra spark --extra postgres --extra cli -o docker/requirements/spark.txt
	@$(COMPILE_FOR_DOCKER) docker/requirements/build.in -o docker/requirements/build.txt
	@$(COMPILE_FOR_DOCKER) --no-deps docker/requirements/examples.in -o docker/requirements/examples.txt

clean: ## remove the environments, the demo's files and all caches
	rm -rf .venv .ministack .peers .table-formats .website .release .fuzz .prometheus .versions .jars .demo dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis .test-runs .docker-check
