# Owns the short names of what is done here; scripts/ knows how.
.DEFAULT_GOAL := help
.PHONY: help run run-host run-guest build test test-kernels test-arm64 fmt clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

run: ## mrscope on this machine if it has an RDMA device, else in a guest (MRSCOPE_PORT: its port, else 10042)
	@scripts/run.sh auto

run-host: ## mrscope on this machine
	@scripts/run.sh host

run-guest: ## mrscope and a demo workload in an emulated guest with software RDMA
	@scripts/run.sh guest

build: ## target/release/mrscope
	@scripts/run.sh build

test: ## all tests; the guests' kernels are LAB_KERNELS, else "5.10 6.1 7.3"
	@scripts/test.sh

test-kernels: ## the tests in guests alone, on all six kernels
	@LAB_KERNELS=all scripts/test.sh lab

test-arm64: ## unit tests and lab built for arm64, emulated; LAB_KERNELS, else "6.1-arm64 6.12-arm64-16k 7.3-arm64"
	@tests/lab/arm64/test.sh

fmt: ## formats the Rust and C sources
	cargo fmt
	clang-format-14 -i bpf/*.[ch] tests/lab/*.[ch] tests/lab/module/*.c

clean: ## removes target/
	rm -rf target
