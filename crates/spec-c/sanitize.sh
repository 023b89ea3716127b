#!/usr/bin/env bash
# Runs the tests' C programs under AddressSanitizer and ThreadSanitizer on the CPU. The programs
# and the library are both instrumented.
#
#     crates/spec-c/sanitize.sh [address | thread]
#
# Needs a C and a C++ compiler with the sanitizers. `thread` also needs rustup's component
# rust-src, because ThreadSanitizer needs every part of the program instrumented, including
# Rust's standard library.
set -euo pipefail
cd "$(dirname "$0")/../.."

target="$(rustc -vV | sed -n 's/^host: //p')"
folder="${CARGO_TARGET_DIR:-target}/sanitize"
# rustc's flag -Zsanitizer is unstable.
export RUSTC_BOOTSTRAP=1

check() {
    local sanitizer="$1"
    shift
    local build=(cargo build --locked -p spec-c --lib --no-default-features --features cpu
        --target "$target" --target-dir "$folder/$sanitizer" "$@")
    RUSTFLAGS="-Zsanitizer=$sanitizer" "${build[@]}"
    local library="$folder/$sanitizer/$target/debug" programs="$folder/$sanitizer/programs"
    mkdir -p "$programs"
    # The sanitizer's runtime is rustc's, because code from rustc may call functions that the
    # runtime of an older C compiler does not have.
    local runtime
    runtime="$(find "$(rustc --print sysroot)/lib/rustlib/$target/lib" -name "librustc-*_rt.${sanitizer:0:1}san.a")"
    local source
    for source in examples/c/router.c examples/c/lookup.cpp examples/c/memory.c \
        crates/spec-c/tests/c/misuse.c crates/spec-c/tests/c/threads.c \
        crates/spec-c/tests/c/corpus.c; do
        local compiler=("${CC:-cc}" -std=c99)
        [ "${source%.cpp}" = "$source" ] || compiler=("${CXX:-c++}" -std=c++17)
        local program="$programs/$(basename "$source")"
        "${compiler[@]}" -g "-fsanitize=$sanitizer" -Icrates/spec-c/include -c "$source" -o "$program.o"
        "${compiler[0]}" "$program.o" -Wl,--whole-archive "$runtime" -Wl,--no-whole-archive \
            -Wl,--export-dynamic -L"$library" -lspec_c -lpthread -ldl -lm -lrt \
            -Wl,-rpath,"$(realpath "$library")" -o "$program"
        # The programs ask for more memory than there is, which must be refused and not abort.
        ASAN_OPTIONS=allocator_may_return_null=1 TSAN_OPTIONS=halt_on_error=1 \
            "$program" cpu >/dev/null
        echo "$sanitizer: $source"
    done
}

case "${1:-both}" in
address) check address ;;
thread) check thread -Zbuild-std ;;
both)
    check address
    check thread -Zbuild-std
    ;;
*)
    echo "expected address or thread, not $1" >&2
    exit 1
    ;;
esac
