#!/bin/bash
# Installs into a prefix, moves it, and uses what was installed: the program, its man page and completions, and the C
# library through find_package (shared and static) and pkg-config.
set -u
[ -z "${KVASIR_SANITIZE:-}" ] || { echo "a sanitized library is not for installing: skipped"; exit 77; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
failures=0
check() {  # check NAME COMMAND...
  local name=$1; shift
  if "$@" >"$work/log" 2>&1; then echo "ok   $name"; else
    echo "FAIL $name: $*"; tail -n 30 "$work/log" | sed 's/^/     | /'; failures=$((failures + 1)); fi
}
client="$KVASIR_SOURCE_DIR/tests/install"
model="$KVASIR_SOURCE_DIR/models/tiny-gemma4-q8_0.gguf"

check "install" cmake --install "$KVASIR_BINARY_DIR" --prefix "$work/first"
mv "$work/first" "$work/moved"  # an installed tree can be moved
prefix="$work/moved"
check "DESTDIR is honoured" env DESTDIR="$work/stage" cmake --install "$KVASIR_BINARY_DIR" --prefix /usr
check "nothing is outside DESTDIR/usr" [ "$(ls "$work/stage")" = usr ]

check "kvasir --version" "$prefix/bin/kvasir" --version
check "the licence" test -s "$prefix/share/doc/kvasir/LICENSE"
check "the man page" grep -q '^\.TH' "$prefix/share/man/man1/kvasir.1"
check "bash completion parses" bash -n "$prefix/share/bash-completion/completions/kvasir"
check "zsh completion" test -s "$prefix/share/zsh/site-functions/_kvasir"
check "fish completion" test -s "$prefix/share/fish/vendor_completions.d/kvasir.fish"
check "the program finds its installed model" "$prefix/bin/kvasir" run -p "It was" -n 4

if [ -f "$KVASIR_SOURCE_DIR/include/kvasir/kvasir.h" ]; then
  lib=$(dirname "$(find "$prefix" -name 'libkvasir.so' | head -1)")
  check "libkvasir.so, .a" test -e "$lib/libkvasir.so" -a -e "$lib/libkvasir.a"
  exported() { nm -D --defined-only "$lib/libkvasir.so" | awk '{print $NF}'; }
  only_ours() { [ -n "$(exported)" ] && [ -z "$(exported | grep -v '^kvasir_')" ]; }
  check "only kvasir_* is exported" only_ours
  for kind in shared static; do
    check "find_package ($kind): configure" cmake -S "$client" -B "$work/$kind" -DCMAKE_PREFIX_PATH="$prefix" -DKIND=$kind
    check "find_package ($kind): build" cmake --build "$work/$kind"
    check "find_package ($kind): run, C" "$work/$kind/client" "$model"
    check "find_package ($kind): run, C++" "$work/$kind/client_cpp" "$model"
  done
  export PKG_CONFIG_PATH="$lib/pkgconfig"
  check "pkg-config: C client" sh -c "cc -std=c99 -Wall -Wextra -Werror -pedantic '$client/client.c' -o '$work/client' \$(pkg-config --cflags --libs kvasir) -Wl,-rpath,'$lib'"
  check "pkg-config: run" "$work/client" "$model"
fi
[ $failures = 0 ]
