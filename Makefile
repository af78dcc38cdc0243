.DEFAULT_GOAL := help
.PHONY: help setup build dist reproduce demo test gem gem-valgrind gem-matrix gem-dist nightly release crates manifests service matrix matrix-slice test-arm matrix-machines lint schemas docs pictures fuzz torture bench bench-gem experiments ci

help: ## show this
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

setup: ## install the Debian packages that are missing, for `make test` and `make lint`
	@scripts/setup

build: ## build target/release/rbloat
	@scripts/setup gcc libc6-dev
	cargo build --release --locked

dist: ## build one static binary that runs on any Linux: target/dist/rbloat
	@scripts/setup ruby gcc libc6-dev
	@scripts/dist

release: ## build what users install into target/packages (archives, packages, images, SBOM), and test each
	@scripts/setup ruby gcc libc6-dev podman catatonit runc qemu-system-arm
	@scripts/release

crates: ## package the crates as crates.io gets them, and build each from its package
	@scripts/setup gcc libc6-dev
	CARGO_TARGET_DIR=target/crates cargo package --workspace --exclude rbloat-testkit --locked

manifests: ## check deploy/ against the schemas of Kubernetes, Grafana's library, promtool and systemd
	@scripts/manifests

service: build ## run the service in deploy/systemd under a real systemd, in a container
	@scripts/systemd

reproduce: ## check that two builds of it from two folders are the same
	@scripts/setup ruby gcc libc6-dev
	@scripts/reproduce

demo: ## report on a process that went through a burst of threads; a build without optimization takes half as long
	@scripts/setup ruby gcc libc6-dev
	cargo build --locked --package rbloat
	@scripts/demo

test: ## run all tests, the gem's too; those of live processes need ptrace
	@scripts/setup
	@scripts/test

gem: ## build the gem's extension and run its tests
	@scripts/setup ruby gcc libc6-dev ruby-dev rake-compiler ruby-minitest ruby-railties ruby-activerecord puma \
	    ruby-sidekiq libjemalloc2 ruby-pg postgresql ruby-mysql2 mariadb-server-core ruby-prometheus-client-mmap ruby-statsd
	cd gem && rake compile test

gem-valgrind: ## run the tests of the gem's extension, and its threads, under valgrind
	@scripts/setup ruby gcc libc6-dev ruby-dev rake-compiler ruby-minitest ruby-pg postgresql ruby-mysql2 \
	    mariadb-server-core valgrind
	cd gem && rake valgrind:extension

gem-matrix: ## run the gem's tests on four Debian releases, and on Ruby 3.4; or on some: ROWS="trixie sid:ruby3.4"
	@scripts/gem-matrix $(ROWS)

gem-dist: ## build the gems, with the program, and test them on four Debian releases; also for RUBIES="/opt/4.0/bin/ruby"
	@scripts/setup ruby gcc libc6-dev
	@scripts/gem-dist $(foreach ruby,$(RUBIES),--ruby $(ruby))

nightly: ## run what takes long and seldom fails: Firefox, lint, all of the matrix, the gem under valgrind and on other Rubies, fuzzing, aarch64
	@scripts/setup firefox-esr golang-go
	scripts/deny
	$(MAKE) lint
	RBLOAT_TEST_NIGHTLY=1 RBLOAT_TEST_CAPTURES=100 RBLOAT_TEST_KILLS=200 $(MAKE) test
	RBLOAT_TEST_NIGHTLY=1 $(MAKE) matrix
	$(MAKE) gem-valgrind
	$(MAKE) gem-matrix
	$(MAKE) fuzz SECONDS=600
	$(MAKE) test-arm

matrix: ## run the tests of live processes on four Debian releases
	@scripts/matrix

matrix-slice: ## run the part of the matrix that CI runs
	@scripts/matrix --slice

test-arm: ## check the code for aarch64, and run its unit tests in QEMU
	@scripts/test-arm

matrix-machines: ## run some of these tests in emulated machines: with other kernels, control groups of version 2, and aarch64
	@scripts/matrix-machines

lint: ## check formatting, clippy, docs, dependencies, scripts, scenarios
	@scripts/setup ruby gcc libc6-dev shellcheck rubocop
	@scripts/lint

schemas: ## write the JSON Schemas of the documents to docs/schemas, and the tables of docs/json.md
	@scripts/setup gcc libc6-dev
	RBLOAT_WRITE_SCHEMAS=1 cargo test --locked --package rbloat-formats --test schemas

docs: build ## build the documentation site: target/site/index.html
	@scripts/setup ruby
	@scripts/docs

pictures: build ## draw the pictures in docs/pictures from real processes
	@scripts/setup ruby chromium-headless-shell
	@scripts/pictures

fuzz: ## fuzz what reads foreign memory and files for a minute; for longer: SECONDS=3600
	@scripts/setup gcc libc6-dev g++
	@scripts/fuzz $(SECONDS)

torture: build ## try to harm processes, thousands of times; fewer times, some parts: SCALE=0.1 PARTS="signals storm"
	@scripts/setup ruby gcc libc6-dev time libcap2-bin
	@scripts/torture $(PARTS)

bench: build ## measure reports on a process of 1.3 GiB and on a Rails program, beside gcore
	@scripts/setup ruby gdb time ruby-railties ruby-activerecord puma ruby-pg postgresql wrk
	@scripts/bench

bench-gem: ## hold the gem against its bars, all ways side by side
	@scripts/setup ruby gcc libc6-dev ruby-dev rake-compiler libjemalloc2 ruby-pg postgresql ruby-mysql2 \
	    mariadb-server-core
	cd gem && rake compile
	@scripts/bench-gem

experiments: build ## run the experiments behind rbloat, and write docs/experiments.md
	@scripts/experiments

ci: ## what a change must pass: test, matrix and lint
	.ci/run
