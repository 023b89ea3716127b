#!/usr/bin/env bash
# Compiles and runs C programs on an NVIDIA GPU: a router in a CUDA graph, drafts from a growing
# corpus in a CUDA graph, memory that the library allocates, and the test of a corpus that threads
# share.
#
#     crates/spec-c/gpu.sh [PREFIX]
#
# PREFIX is the folder into which `cargo xtask install` installed the library. Without PREFIX the
# script builds the library and installs it into a temporary folder. CUDA's runtime comes from
# CUDA_HOME, from /usr/local/cuda, or from NVIDIA's wheels, which pip installs.
set -euo pipefail
cd "$(dirname "$0")/../.."

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
prefix="${1:-$work/spec}"
[ -n "${1:-}" ] || cargo xtask install --prefix "$prefix" -- --no-default-features --features cpu,cuda
prefix="$(realpath "$prefix")"

cuda="${CUDA_HOME:-/usr/local/cuda}"
headers=(-isystem "$cuda/include")
if [ ! -f "$cuda/include/cuda_runtime_api.h" ]; then
    python3 -m pip install --quiet --target "$work/wheels" --no-deps \
        nvidia-cuda-runtime-cu12==12.9.79 nvidia-cuda-nvcc-cu12==12.9.86
    cuda="$work/wheels/nvidia"
    headers=(-isystem "$cuda/cuda_runtime/include" -isystem "$cuda/cuda_nvcc/include")
fi
runtime="$(find -L "$cuda" -name 'libcudart.so*' | head -n 1)"
[ -n "$runtime" ] || { echo "$cuda has no libcudart" >&2; exit 1; }

for example in cuda_graph corpus_graph memory; do
    "${CC:-cc}" -std=c99 -Wall -Wextra -Werror -pedantic -I"$prefix/include" "${headers[@]}" \
        "examples/c/$example.c" -L"$prefix/lib" -lspec -Wl,-rpath,"$prefix/lib" \
        "$runtime" -Wl,-rpath,"$(dirname "$(realpath "$runtime")")" -o "$work/$example"
done
"$work/cuda_graph"
"$work/corpus_graph"
"$work/memory" cuda
"${CC:-cc}" -std=c99 -Wall -Wextra -Werror -pedantic -I"$prefix/include" \
    crates/spec-c/tests/c/corpus.c -L"$prefix/lib" -lspec -lpthread -Wl,-rpath,"$prefix/lib" -o "$work/corpus"
"$work/corpus" cuda "$work"
