#!/bin/bash
# tools/demo with a stand-in for the program: who generates the text, by how the proof on a GPU ends.
set -u
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tools" "$work/build"
cp "$KVASIR_SOURCE_DIR/tools/demo" "$work/tools/demo"
printf '#!/bin/sh\necho model.gguf\n' >"$work/tools/fetch-model"
cat >"$work/build/kvasir" <<'EOF'
#!/bin/sh
case "$*" in
  "verify --backend cpu") exit "$CPU" ;;
  "verify --backend cuda") echo "proof on the GPU"; exit "$CUDA" ;;
  run*) echo "$*" ;;
esac
EOF
chmod +x "$work/tools/fetch-model" "$work/build/kvasir"
failures=0
demo() {  # demo NAME CPU CUDA EXIT STDOUT STDERR: patterns
  CPU=$2 CUDA=$3 "$work/tools/demo" >"$work/out" 2>"$work/err"
  local rc=$?
  if [ $rc = "$4" ] && grep -q -- "$5" "$work/out" && grep -q -- "$6" "$work/err"; then echo "ok   $1"; return; fi
  echo "FAIL $1: exit $rc"; sed 's/^/     | /' "$work/out" "$work/err"; failures=$((failures + 1))
}
demo "a GPU that is proved" 0 0 0 "--backend cuda " "proof on the GPU"
demo "a GPU whose kernels fail" 0 1 0 "--backend cpu " "not proved: the CPU generates"
demo "no GPU" 0 5 0 "--backend cpu " "prompt:"
grep -q "GPU" "$work/err" && { echo "FAIL no GPU: speaks of one"; failures=$((failures + 1)); }
CPU=1 CUDA=5 "$work/tools/demo" >"$work/out" 2>"$work/err" && { echo "FAIL a CPU whose kernels fail: exit 0"; failures=1; }
[ -s "$work/out" ] && { echo "FAIL a CPU whose kernels fail: text"; failures=1; }
[ $failures = 0 ]
