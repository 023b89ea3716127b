#!/usr/bin/env bash
# An environment in which SGLang runs on a machine without a GPU, with this package inside:
#
#     python/tests/sglang_live/setup.sh FOLDER WHEEL    # 7 GB of disk
#     SPEC_PYTHON_REQUIRE=sglang FOLDER/bin/python -m pytest python/tests/test_sglang_live.py
#
# PYTHON names the interpreter, python3 by default; it must be 3.12, as SGLang's wheel is. SGLang builds its
# corpus of n-grams with a C++ compiler.
set -euo pipefail
folder=$1 wheel=$2
"${PYTHON:-python3}" -m venv "$folder"
"$folder/bin/python" -m pip install -q --no-deps -r "$(dirname "$0")/requirements.txt"
"$folder/bin/python" -m pip install -q --no-deps "$wheel"
