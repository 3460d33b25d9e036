# The short way to everything; each target says what it runs. CMake presets are in CMakePresets.json.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
PROMPT ?= The lighthouse keeper climbed the stairs one last time, and
N ?= 64
export PROMPT N

.PHONY: help demo test test-all build bench install clean

help:
	@echo "make demo     build, prove the kernels, decide, generate text with a real model when it can be had"
	@echo "make build    install what is missing, build build/kvasir (release)"
	@echo "make test     the tests on this CPU, and on emulated CPUs without AVX-512 and without AVX"
	@echo "make test-all the same, then sanitizers, fuzzing and an aarch64 cross build; tools/run-tests --help names the suites"
	@echo "make bench    the benchmark programs, each beside the roofline measured in the same run"
	@echo "make install  into PREFIX ($(PREFIX)); DESTDIR is honoured"
	@echo "make clean    remove the build folders"

build:
	tools/deps.sh --build
	cmake --preset release
	cmake --build build --parallel $(JOBS)

demo: build
	@tools/demo

test:
	tools/deps.sh
	tools/run-tests --jobs $(JOBS)

test-all:
	tools/deps.sh
	tools/run-tests --jobs $(JOBS) --only native,avx2,baseline,asan,fuzz,aarch64

bench: build
	@tools/run-bench

install: build
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-debug build-asan build-fuzz build-aarch64
