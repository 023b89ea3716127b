// Two of SGLang's kernels as algorithms, in this library's own words: their grids, blocks, passes and
// accesses to memory are SGLang's, the code is not. with_sglang.py says what differs. It compiles this
// file into a library, and calls it.

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace {

constexpr int WARP = 32;
constexpr unsigned ALL = 0xffffffffu;

// The group of a candidate. Candidates of a group have one parent: the root is that of the first
// `topk`, and each further group has `children` candidates, `topk` of them in SGLang.
__device__ int group_of(int64_t candidate, int topk, int children) {
    return candidate < topk ? 0 : static_cast<int>((candidate - topk) / children) + 1;
}

// Where a candidate stands among those that are picked, and `count` if it is not one of them.
__device__ int place_of(const int64_t *picked, int count, int64_t candidate) {
    int place = 0;
    while (place < count && picked[place] != candidate) place++;
    return place;
}

// A block has a request, a thread a node. Each thread writes a row of the mask and a position; thread
// 0 links the nodes, from the last one on, so that the links of siblings ascend. `parents` has the
// parent of each group, `first_child` and `next_sibling` begin as -1. Rows of the mask also have the
// tokens of the text, which are not written here, if it is `whole`.
__global__ void build_tree(int64_t *parents, int64_t *picked, int64_t *lengths, bool *mask,
                           int64_t *positions, int64_t *index, int64_t *first_child,
                           int64_t *next_sibling, int topk, int children, int depth, int nodes,
                           int whole) {
    int request = blockIdx.x, node = threadIdx.x;
    if (node >= nodes) return;
    // Where the mask of the request starts, if it is whole.
    int start = nodes * nodes * request;
    for (int before = 0; before < request; before++) start += lengths[before] * nodes;
    int length = lengths[request];
    mask += whole ? start + (length + nodes) * node + length : nodes * (nodes * request + node);
    mask[0] = true;
    for (int other = 1; other < nodes; other++) mask[other] = false;

    int drafts = nodes - 1;
    parents += request * (topk * (depth - 1) + 1);
    picked += request * drafts;
    positions += request * nodes;
    if (node == 0) {
        index += request * nodes;
        first_child += request * nodes;
        next_sibling += request * nodes;
        positions[0] = length;
        for (int child = drafts; child > 0; child--) {
            index[child] = request * nodes + child;
            int group = group_of(picked[child - 1], topk, children), parent = 0;
            if (group > 0) parent = place_of(picked, drafts, parents[group]) + 1;
            if (parent == nodes) {
                printf("request %d: node %d has no parent\n", request, child);
                continue;
            }
            int64_t sibling = first_child[parent];
            first_child[parent] = child;
            if (sibling != -1) next_sibling[child] = sibling;
        }
        index[0] = request * nodes;
        return;
    }
    int steps = 0;
    for (int place = node - 1; place < drafts;) {
        steps++;
        mask[place + 1] = true;
        int group = group_of(picked[place], topk, children);
        if (group == 0) break;
        place = place_of(picked, drafts, parents[group]);
    }
    positions[node] = length + steps;
}

// What stands in shared memory for an entry that a slot holds, and for a free place of the table.
constexpr int32_t HIT = -1;
constexpr int32_t FREE = -1;

// The shared memory of `swap_in`.
template <int WANTED, int SLOTS>
struct Layout {
    // Places of the hash table.
    static constexpr int TABLE = 2 * WANTED;
    // Warps have chunks of neighbouring slots.
    static constexpr int CHUNKS = (SLOTS + WARP - 1) / WARP;
    static constexpr int WORDS = WANTED + 2 * (CHUNKS + 1) + TABLE + 2;
    static constexpr int HALVES = SLOTS + TABLE;
    static constexpr size_t BYTES = 4 * WORDS + 2 * HALVES;
};

// The first place of the table at which an entry may lie.
template <int TABLE>
__device__ int hashed(int32_t entry) {
    return static_cast<uint32_t>(entry) * 2654435761u % TABLE;
}

// Sums of what the warps of a round counted, from `begin` on, onto the sum of earlier rounds. One
// warp runs this; the result is the sum so far.
__device__ int add_up(int *counts, int lane, int begin, int end, int earlier) {
    int at = begin + lane;
    int sum = at < end ? counts[at] : 0;
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        int below = __shfl_up_sync(ALL, sum, step);
        if (lane >= step) sum += below;
    }
    sum += earlier;
    if (at < end) counts[at] = sum;
    return __shfl_sync(ALL, sum, WARP - 1);
}

// A block has a request. 1. The entries that are wanted go into a hash table. 2. Each slot, in the
// order of last use, looks up its entry; those of hits are listed from the front, those that may be
// taken from the back. 3. The misses, in the order in which they are wanted, take slots from that
// list, and their copies are listed. 4. The order is written anew: slots that stay, slots that were
// taken, hits. A slot behind the others holds the newest token.
template <int BLOCK, int WANTED, int SLOTS>
__global__ void __launch_bounds__(BLOCK)
    swap_in(const int32_t *__restrict__ wanted, int32_t *__restrict__ held,
            const int64_t *__restrict__ host_places, const int32_t *__restrict__ places,
            int32_t *__restrict__ found, const int64_t *__restrict__ requests,
            const int64_t *__restrict__ lengths, int16_t *__restrict__ order,
            const int32_t *__restrict__ real, int64_t *__restrict__ copy_from,
            int32_t *__restrict__ copy_to, int32_t *__restrict__ copies, int64_t slots_stride,
            int64_t host_stride) {
    using Memory = Layout<WANTED, SLOTS>;
    constexpr int WARPS = BLOCK / WARP, TABLE = Memory::TABLE, SLOT_CHUNKS = Memory::CHUNKS;
    constexpr int WANTED_CHUNKS = (WANTED + WARP - 1) / WARP;
    int row = blockIdx.x, thread = threadIdx.x;
    int64_t columns = static_cast<int64_t>(row) * WANTED;
    wanted += columns;
    found += columns;
    copy_from += columns;
    copy_to += columns;
    if (row >= real[0]) {
        for (int i = thread; i < WANTED; i += BLOCK) found[i] = -1;
        return;
    }
    int warp = thread / WARP, lane = thread % WARP;
    unsigned before = (1u << lane) - 1;
    int64_t request = requests[row];
    int32_t newest = static_cast<int32_t>(lengths[row] - 1);
    held += request * slots_stride;
    places += request * slots_stride;
    host_places += request * host_stride;
    order += request * SLOTS;

    extern __shared__ char memory[];
    auto *entries = reinterpret_cast<int32_t *>(memory);
    int32_t *counts = entries + WANTED, *others = counts + SLOT_CHUNKS + 1;
    int32_t *keys = others + SLOT_CHUNKS + 1;
    int32_t &hits = keys[TABLE], &newest_hit = keys[TABLE + 1];
    auto *listed = reinterpret_cast<int16_t *>(entries + Memory::WORDS);
    int16_t *columns_of = listed + SLOTS;
    if (thread == 0) hits = newest_hit = 0;
    for (int i = thread; i < TABLE; i += BLOCK) keys[i] = FREE;
    for (int i = thread; i <= SLOT_CHUNKS; i += BLOCK) counts[i] = others[i] = 0;
    __syncthreads();

    for (int i = thread; i < WANTED; i += BLOCK) {
        int32_t entry = wanted[i];
        if (entry == newest) {
            entries[i] = HIT;
            found[i] = places[SLOTS];
            newest_hit = 1;
            continue;
        }
        for (int at = hashed<TABLE>(entry);; at = (at + 1) % TABLE) {
            int32_t old = atomicCAS(&keys[at], FREE, entry);
            if (old != FREE && old != entry) continue;
            columns_of[at] = static_cast<int16_t>(i);
            break;
        }
        entries[i] = entry;
    }
    __syncthreads();

    int hits_so_far = 0, others_so_far = 0;
    for (int round = 0; round * WARPS < SLOT_CHUNKS; round++) {
        int chunk = round * WARPS + warp;
        int at = chunk * WARP + lane;
        bool is_slot = chunk < SLOT_CHUNKS && at < SLOTS;
        int16_t slot = is_slot ? order[at] : -1;
        int32_t entry = slot >= 0 ? held[slot] : -1;
        int column = -1;
        if (entry >= 0) {
            for (int place = hashed<TABLE>(entry);; place = (place + 1) % TABLE) {
                int32_t key = keys[place];
                if (key == entry) column = columns_of[place];
                if (key == entry || key == FREE) break;
            }
        }
        bool is_hit = column >= 0, is_other = is_slot && !is_hit;
        if (is_hit) {
            entries[column] = HIT;
            found[column] = places[slot];
        }
        int hits_before = 0, others_before = 0;
        if (chunk < SLOT_CHUNKS) {
            unsigned hit_lanes = __ballot_sync(ALL, is_hit);
            unsigned other_lanes = __ballot_sync(ALL, is_other);
            hits_before = __popc(hit_lanes & before);
            others_before = __popc(other_lanes & before);
            if (lane == 0) {
                counts[chunk + 1] = __popc(hit_lanes);
                others[chunk + 1] = __popc(other_lanes);
            }
        }
        __syncthreads();
        if (warp == 0) {
            int begin = round * WARPS + 1, end = min(begin + WARPS, SLOT_CHUNKS + 1);
            hits_so_far = add_up(counts, lane, begin, end, hits_so_far);
            others_so_far = add_up(others, lane, begin, end, others_so_far);
            if (thread == 0) hits = hits_so_far;
        }
        __syncthreads();
        if (is_hit) listed[counts[chunk] + hits_before] = slot;
        if (is_other) listed[SLOTS - 1 - (others[chunk] + others_before)] = slot;
    }
    __syncthreads();

    for (int i = thread; i <= WANTED_CHUNKS; i += BLOCK) counts[i] = 0;
    __syncthreads();
    int misses = 0;
    for (int round = 0; round * WARPS < WANTED_CHUNKS; round++) {
        int chunk = round * WARPS + warp;
        int column = chunk * WARP + lane;
        bool is_wanted = chunk < WANTED_CHUNKS && column < WANTED;
        int32_t entry = is_wanted ? entries[column] : HIT;
        bool is_miss = entry != HIT;
        int misses_before = 0;
        if (chunk < WANTED_CHUNKS) {
            unsigned lanes = __ballot_sync(ALL, is_miss);
            misses_before = __popc(lanes & before);
            if (lane == 0) counts[chunk + 1] = __popc(lanes);
        }
        __syncthreads();
        if (warp == 0) {
            int begin = round * WARPS + 1, end = min(begin + WARPS, WANTED_CHUNKS + 1);
            misses = add_up(counts, lane, begin, end, misses);
        }
        __syncthreads();
        if (is_miss) {
            int miss = counts[chunk] + misses_before;
            int16_t slot = listed[SLOTS - 1 - miss];
            // The copy, which is left out here, reads the entries of misses from the front.
            entries[miss] = entry;
            found[column] = places[slot];
            held[slot] = entry;
            copy_from[miss] = host_places[entry];
            copy_to[miss] = places[slot];
        }
    }
    __syncthreads();

    misses = WANTED - hits - newest_hit;
    if (thread == 0) copies[row] = misses;
    int may_be_taken = SLOTS - hits;
    for (int i = thread; i < SLOTS; i += BLOCK) {
        if (i < misses) {
            order[may_be_taken - misses + i] = listed[SLOTS - 1 - i];
        } else if (i < may_be_taken) {
            order[i - misses] = listed[SLOTS - 1 - i];
        } else {
            order[i] = listed[i - may_be_taken];
        }
    }
}

// SGLang's default (swap_in_block_size).
constexpr int BLOCK = 960;

}  // namespace

// Enqueues `build_tree` on stream. Returns a cudaError_t.
extern "C" int sglang_build_tree(int64_t *parents, int64_t *picked, int64_t *lengths, bool *mask,
                                 int64_t *positions, int64_t *index, int64_t *first_child,
                                 int64_t *next_sibling, int batch, int topk, int children, int depth,
                                 int nodes, int whole, cudaStream_t stream) {
    build_tree<<<batch, nodes, 0, stream>>>(parents, picked, lengths, mask, positions, index,
                                            first_child, next_sibling, topk, children, depth, nodes,
                                            whole);
    return cudaGetLastError();
}

// Enqueues `swap_in` on stream for one of the numbers of entries and slots that were compiled.
// Returns a cudaError_t.
extern "C" int sglang_swap_in(const int32_t *wanted, int32_t *held, const int64_t *host_places,
                              const int32_t *places, int32_t *found, const int64_t *requests,
                              const int64_t *lengths, int16_t *order, const int32_t *real,
                              int64_t *copy_from, int32_t *copy_to, int32_t *copies, int batch,
                              int entries, int slots, int64_t slots_stride, int64_t host_stride,
                              cudaStream_t stream) {
    auto launch = [&](auto kernel, size_t shared) -> cudaError_t {
        auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
        cudaError_t error = cudaFuncSetAttribute(kernel, attribute, static_cast<int>(shared));
        if (error != cudaSuccess) return error;
        kernel<<<batch, BLOCK, shared, stream>>>(wanted, held, host_places, places, found, requests,
                                                 lengths, order, real, copy_from, copy_to, copies,
                                                 slots_stride, host_stride);
        return cudaGetLastError();
    };
    if (entries == 2048 && slots == 4096) {
        return launch(swap_in<BLOCK, 2048, 4096>, Layout<2048, 4096>::BYTES);
    }
    if (entries == 8192 && slots == 16384) {
        return launch(swap_in<BLOCK, 8192, 16384>, Layout<8192, 16384>::BYTES);
    }
    return cudaErrorInvalidValue;
}
