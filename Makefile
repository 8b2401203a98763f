# Two commands are all it takes on a fresh Debian with Rust: `make serve` and `make test`.
# Recipes are one line each; anything longer is Rust, in xtask/.

# rustup's folder is in PATH after a login only; the other is where setup puts cargo-deny.
export PATH := $(CURDIR)/.samovar/tools/bin:$(HOME)/.cargo/bin:$(PATH)
export CARGO_TERM_PROGRESS_WHEN ?= never
export RUSTDOCFLAGS ?= -D warnings
# Writing what makes a second build quick is a seventh of the first one, and there is no second one.
ifdef CI
export CARGO_INCREMENTAL ?= 0
endif

PORT ?= 5000
XTASK = cargo run --quiet --package xtask --
SERVER ?= versitygw
SUDO = $(if $(filter-out 0,$(shell id -u)),sudo)

.PHONY: serve nodes demo-workspaces test quick check setup setup-test sample bootstrap fmt clippy test-rust doc deny advisories tidy crates suites autobahn instructions chaos fuzz bench rig-check macos test-s3
.NOTPARALLEL:

## Builds the server and serves this machine's store, or a sample store where it has none.
serve: setup
	@$(XTASK) serve --port $(PORT)

## Runs two servers with one PostgreSQL and one bucket behind nginx, until Ctrl-C.
nodes: setup-test
	@$(XTASK) nodes

## Shows a day with workspaces in two minutes: two directories play two workstations.
demo-workspaces: setup
	@$(XTASK) demo-workspaces

## Installs what is missing and passes every check.
test: setup-test sample check
	@echo "samovar: all checks passed"

## The checks of what has changed since the upstream branch, in a few minutes: no suites.
quick: bootstrap
	@$(XTASK) quick

## Every check, on a machine where nothing is missing.
check: fmt clippy crates doc deny tidy macos test-rust chaos instructions suites autobahn fuzz

setup: bootstrap
	@$(XTASK) setup

setup-test: bootstrap
	@$(XTASK) setup --test

sample:
	@$(XTASK) sample-store .samovar/sample

# Cargo needs a linker and SQLite a C compiler before there is an xtask that could install them.
bootstrap:
	@command -v cargo >/dev/null || { echo "samovar: Rust is missing; see https://rustup.rs" >&2; exit 1; }
	@command -v cc >/dev/null || { echo "samovar: installing a C compiler with apt-get" >&2; $(SUDO) apt-get -qq update && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends gcc libc6-dev >/dev/null; }
	@echo "samovar: building the tasks" >&2; cargo build --package xtask

fmt:
	cargo fmt --all -- --check

clippy:
	cargo clippy --workspace --all-targets -- -D warnings

test-rust:
	@$(XTASK) test

doc:
	cargo doc --workspace --no-deps

deny:
	cargo deny check bans licenses sources

# Not part of check: it asks the network for what was found since yesterday, so the same commit may
# pass today and fail tomorrow.
advisories: setup-test
	cargo deny check advisories

tidy:
	@$(XTASK) tidy

## The engine with each set of its features, and as a registry would get it.
crates:
	@$(XTASK) crates

## Whether the engine, nix-serve and the client side compile for macOS.
macos:
	@$(XTASK) macos

## Conformance suites of other projects, as far as they are here.
suites:
	@$(XTASK) suites

## The Autobahn suite of WebSocket conformance.
autobahn:
	@$(XTASK) autobahn

## Everything at once against the built server; longer: `xtask chaos --seconds 600`.
chaos:
	@$(XTASK) chaos --seconds 30

## What a request costs in instructions and system calls, against xtask/instructions.txt.
instructions:
	@$(XTASK) instructions

## The tests of the S3 client against SERVER: versitygw, seaweedfs or garage.
test-s3: bootstrap
	@$(XTASK) test-s3 $(SERVER)

## Every fuzz target, briefly.
fuzz:
	@$(XTASK) fuzz --seconds 5

## Side by side with nginx, and with harmonia-cache and nix-serve-ng where PATH has them.
bench: setup-test
	@$(XTASK) bench --seconds 1

## Brings up each server under load with all instruments, and looks whether every panel has data.
rig-check: sample
	@rig/rig.py check kettles && rig/rig.py check kettles --postgresql && rig/rig.py check replay-2017 && rig/rig.py check cache
