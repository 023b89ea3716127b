// Distinct u64 keys by CUB's device-wide algorithms, as a user of CUB writes it: a radix sort, then
// one pass that drops repeats. with_cub.py compiles this file into a library, and calls it.

#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>

#include <algorithm>
#include <cstddef>
#include <cstdint>

// With workspace null, writes the size of the workspace and does nothing else. Otherwise enqueues
// the work on stream: `unique` gets the distinct keys, ascending, and `count` their number. `sorted`
// has room for n keys. Returns a cudaError_t.
extern "C" int cub_unique(void *workspace, size_t *workspace_size, const uint64_t *keys,
                          uint64_t *sorted, uint64_t *unique, int64_t *count, int64_t n,
                          cudaStream_t stream) {
    size_t of_sort = 0, of_select = 0;
    cudaError_t error = cub::DeviceRadixSort::SortKeys(nullptr, of_sort, keys, sorted, n, 0, 64, stream);
    if (error != cudaSuccess) return error;
    error = cub::DeviceSelect::Unique(nullptr, of_select, sorted, unique, count, n, stream);
    if (error != cudaSuccess) return error;
    if (workspace == nullptr) {
        *workspace_size = std::max(of_sort, of_select);
        return cudaSuccess;
    }
    error = cub::DeviceRadixSort::SortKeys(workspace, of_sort, keys, sorted, n, 0, 64, stream);
    if (error != cudaSuccess) return error;
    return cub::DeviceSelect::Unique(workspace, of_select, sorted, unique, count, n, stream);
}
