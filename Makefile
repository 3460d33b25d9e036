# The short way to everything; each target says what it runs. CMake presets are in CMakePresets.json.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
PROMPT ?= The lighthouse keeper climbed the stairs one last time, and
N ?= 64
export PROMPT N

.PHONY: help demo test build bench install clean

help:
	@echo "make demo     build, fetch a real model when it can be had, generate text with figures"
	@echo "make build    install what is missing, build build/kvasir (release)"
	@echo "make test     every test suite; tools/run-tests --help names them"
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

bench: build
	@tools/run-bench

install: build
	cmake --install build --prefix $(PREFIX)

clean:
	rm -rf build build-debug build-asan build-fuzz build-aarch64
