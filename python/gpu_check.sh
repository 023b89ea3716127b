#!/usr/bin/env bash
# What CI cannot do, on a machine with a GPU and torch (cupy is used where it is there):
# golden vectors with torch and cupy on CUDA, torch.compile and opcheck, CUDA graphs captured
# on a side stream, with transformers graphs of whole decode steps too, threads that share a plan
# and a stream, the functions in the engines' signatures, and what a call costs the host.
# `spec_ops` and pytest are on PYTHONPATH or installed.
#
#   PYTHONPATH=$PWD/unpacked-wheel python/gpu_check.sh [RESULTS]
set -euo pipefail
results=${1:-}
here=$(cd "$(dirname "$0")" && pwd)
# Not in the folder of the sources, which have no compiled half.
cd "$here/tests"
python=${PYTHON:-python3}
export SPEC_PYTHON_REQUIRE=numpy,torch,cuda
"$python" -c "import spec_ops, torch; print(spec_ops.__file__, spec_ops.devices(), torch.__version__, sep='\n')"

"$python" -m pytest -q -p no:cacheprovider test_golden.py test_torch.py test_threads.py test_refusals.py test_generate.py test_outputs.py test_dropins_*.py \
    -k "not cpu"
"$python" "$here/bench/host_cost.py" --device cuda --device cpu ${results:+--json "$results"}
