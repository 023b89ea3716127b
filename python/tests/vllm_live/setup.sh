#!/usr/bin/env bash
# An environment in which vLLM runs on a machine without a GPU, with this package inside:
#
#     python/tests/vllm_live/setup.sh FOLDER WHEEL    # 6 GB of disk
#     SPEC_PYTHON_REQUIRE=vllm FOLDER/bin/python -m pytest python/tests/test_vllm_live.py
#
# PYTHON names the interpreter, python3 by default.
set -euo pipefail
folder=$1 wheel=$2
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install -q --no-deps -r "$(dirname "$0")/requirements.txt"
"$folder/bin/python" -m pip install -q --no-deps "$wheel"
