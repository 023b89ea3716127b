#!/usr/bin/env bash
# Runs InfiniCore's own tests of topkrouter and topksoftmax against libinfiniop.so.
#
#     INFINICORE=FOLDER crates/spec-infiniop/infinicore.sh [--cpu | --nvidia]
#
# FOLDER is a checkout of InfiniCore. Its tests run unchanged, except for the list of topkrouter's
# dtypes, which is empty as published: the script puts F32 into it. Half-precision types cannot be
# compared, because the tests' reference rounds sigmoids to the input's type. The tests need Python
# with torch, for example Debian's python3-torch; PYTHON names the Python to use.
set -euo pipefail
cd "$(dirname "$0")/../.."

device="${1:---cpu}"
python="${PYTHON:-python3}"
if [ -z "${INFINICORE:-}" ]; then
    echo "skipped: INFINICORE names no checkout of InfiniCore"
    exit 0
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "skipped: $python has no torch"
    exit 0
fi

cargo build --locked -p spec-infiniop
root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
mkdir "$root/lib"
cp "${CARGO_TARGET_DIR:-target}/debug/libinfiniop.so" "$root/lib/"
ln -s libinfiniop.so "$root/lib/libinfinirt.so"
cp -r "$INFINICORE/test/infiniop" "$root/test"
sed -i 's/^_X_DTYPES = \[\].*/_X_DTYPES = [InfiniDtype.F32]/' "$root/test/topkrouter.py"

# A torch before 2.0 lacks Tensor.untyped_storage, which InfiniCore's tests call.
cat >"$root/run.py" <<'END'
import runpy
import sys

import torch

if not hasattr(torch.Tensor, "untyped_storage"):
    torch.Tensor.untyped_storage = lambda tensor: tensor.storage()
sys.argv = sys.argv[1:]
sys.path.insert(0, ".")
runpy.run_path(sys.argv[0], run_name="__main__")
END

for operator in topkrouter topksoftmax; do
    (cd "$root/test" && INFINI_ROOT="$root" "$python" "$root/run.py" "$operator.py" "$device") | tee "$root/output"
    cases="$(grep -c "^Testing $operator" "$root/output" || true)"
    if [ "$cases" -lt 2 ] || ! grep -q 'Test passed' "$root/output"; then
        echo "$operator: $cases cases ran, expected two or more that pass" >&2
        exit 1
    fi
    echo "$operator $device: $cases cases"
done
