// indexer_topk: the positions of the k largest scores of each row, ascending.
//
// A team of blocks (a cluster; one block where there are none) owns a row, cut into
// contiguous pieces, one a block.
//
//     row      | piece               | piece               |     read once
//     maxima   | of groups of scores | ...                 |     stay in shared memory
//     bound    one for the team: k maxima or more reach it, so at least k scores do
//     again    only groups whose largest reaches it; of those, the scores that do
//
// Groups are of 16 to 128 bytes and number eight times k at least where the row has so
// many, so hardly more than k scores reach the bound of a row without an order. They go to
// the first block of the team, in order of index, and it finds the k-th largest of
// them: once by a digit that the range of their keys calls for, then among the few
// that share its digit.
//
// For the bound each block counts its own maxima by such a digit and tells the others
// how far down it has k / team of them, and twice and four times as many, up to k. The
// largest key that so many reach in sum is the bound.
//
// Where more reach the bound than the first block has room for (a plateau of equal
// scores, an order), the team cuts exactly. Fewer than k groups have a score above the
// k-th largest of the maxima; either k scores are among those, and the k-th is found
// by its digits of 11, 11 and 10 bits, or those all stay and the first of the scores
// that equal it, which end within k further groups. So never more than 2 k groups
// are read again.
//
// Integers and a fixed order throughout: the same positions for any team.
//
// Bytes: each score once, and groups that reach the bound: 64 rows of 2^20 f32 are 268
// MB and 17 MB, 62 us at 4.6 TB/s.
#include "cluster.cuh"

struct Params {
    const void* scores;
    u64 stride;
    Integers lengths;
    Integers starts;
    void* indices;
    u64 indices_stride;
    u64 indices_wide;
    u32* flags;
    u32 cols;
    u32 k;
    // What dynamic shared memory holds: maxima of groups, groups to be read again (each
    // a multiple of 4), and scores that reach the bound, a multiple of 16.
    u32 groups;
    u32 listed;
    u32 candidates;
    // Whether halves are bf16.
    u32 brain;
};
static_assert(sizeof(Params) == 104);

constexpr u32 MAX_THREADS = 1024;
// Vectors that a thread has under way: 128 KB a block.
constexpr u32 AHEAD = 8;
constexpr u32 PASSES = 3;
constexpr u32 BINS = 2048;
// Bins whose sum is one coarse bin.
constexpr u32 COARSE = 64;
constexpr u32 MAX_TEAM = 16;
// Counts of which a block tells how far down it has them.
constexpr u32 LEVELS = 5;
// So many keys are compared with each other sooner than counted.
constexpr u32 FEW = 128;
// Groups for each score that is asked for, and at least so many in a row.
constexpr u32 GROUPS_OF_ONE = 8;
constexpr u32 LEAST_GROUPS = 8192;
// Groups are no larger than a line of memory unless they must: 8 vectors.
constexpr u32 LINE = 3;

struct Shared {
    u32 bins[PASSES][BINS];
    u32 coarse[PASSES][COARSE];
    // Sums over the team.
    u32 coarse_sums[PASSES][COARSE];
    u32 fine_sums[PASSES][WARP];
    // What blocks before this one have above the cut, and at it.
    u32 above_before;
    u32 ties_before;
    u32 bound;
    u32 few_count;
    u32 warp_totals[2][WARP];
    u32 lowest[WARP];
    u32 highest[WARP];
    // Told by each block: the keys that so many of its maxima reach, its largest, and
    // how many scores of it reach the bound and groups are above it.
    u32 reached[MAX_TEAM][LEVELS];
    u32 largest[MAX_TEAM];
    u32 counts[MAX_TEAM];
    u32 groups_above[MAX_TEAM];
    // And of the exact cut: scores above it, and at it.
    u32 above[MAX_TEAM];
    u32 ties[MAX_TEAM];
    // The digit in which the cut is, what is still needed of it, and what it has.
    u32 digit;
    u32 digit_need;
    u32 digit_count;
    u32 unused;
    u32 cut_key;
    u32 cut_ties;
    u32 few[FEW];
    u32 padding[2];
};

static_assert(sizeof(Shared) % 16 == 0 && sizeof(Shared) <= 28 * 1024);

// Dynamic shared memory starts with it. By name, not by pointer, so that every access
// is known to be one of shared memory.
INLINE Shared& shared() {
    extern __shared__ uint4 memory[];
    return *reinterpret_cast<Shared*>(memory);
}

INLINE u32* words() {
    extern __shared__ uint4 memory[];
    return reinterpret_cast<u32*>(memory) + sizeof(Shared) / 4;
}

INLINE u32* maxima() { return words(); }
INLINE u32* listed(const Params& p) { return words() + p.groups; }
INLINE u32* candidate_keys(const Params& p) { return words() + p.groups + p.listed; }
INLINE u32* candidate_indices(const Params& p) { return candidate_keys(p) + p.candidates; }

// Where the best end: larger keys stay, and so many of this key, the first of them.
struct Cut {
    u32 key;
    u32 ties;
};

// This warp's place among the block's warps, by what each brings; `total` is the sum.
INLINE u32 warp_place(u32& turn, u32 own, u32& total) {
    const u32 lane = lane_id();
    u32* const totals = shared().warp_totals[turn & 1];
    turn++;
    if (lane == 0) totals[threadIdx.x / WARP] = own;
    __syncthreads();
    const u32 of_lane = lane < blockDim.x / WARP ? totals[lane] : 0;
    const u32 through = warp_inclusive_sum(of_lane);
    total = __shfl_sync(ALL_LANES, through, WARP - 1);
    return __shfl_sync(ALL_LANES, through - of_lane, threadIdx.x / WARP);
}

// This thread's place among the block's threads.
INLINE u32 thread_place(u32& turn, u32 own, u32& total) {
    const u32 through = warp_inclusive_sum(own);
    const u32 all = __shfl_sync(ALL_LANES, through, WARP - 1);
    return warp_place(turn, all, total) + through - own;
}

// ---- a digit that a range calls for -------------------------------------------

// The shift that leaves less than BINS of a range.
INLINE u32 shift_of(u32 range) {
    const u32 bits = 32 - __clz(range);
    return bits > 11 ? bits - 11 : 0;
}

// found(bin, before, count) in the thread that has the bin in which the sum from the
// largest bin down reaches `need`, for each of `levels` needs; what those before it
// sum up to, and what it has. Returns the sum of all.
template <typename Need, typename Found>
INLINE u32 search_bins(u32& turn, u32 levels, Need need, Found found) {
    const u32* const bins = shared().bins[0];
    const u32 per = BINS / blockDim.x;
    const u32 top = BINS - 1 - per * threadIdx.x;
    u32 own = 0;
    for (u32 j = 0; j < per; j++) own += bins[top - j];
    u32 total;
    const u32 before = thread_place(turn, own, total);
    if (own == 0) return total;
    for (u32 level = 0; level < levels; level++) {
        const u32 needed = need(level);
        if (needed <= before || needed > before + own) continue;
        u32 sum = before;
        for (u32 j = 0; j < per; j++) {
            const u32 count = bins[top - j];
            if (sum + count >= needed) {
                found(level, top - j, sum, count);
                break;
            }
            sum += count;
        }
    }
    return total;
}

// ---- the cut of a team, exactly ------------------------------------------------

// The first lane at which the sum over lanes reaches `need`, from which the sum of
// those before is taken off.
INLINE u32 reached(u32 own, u32& need) {
    const u32 through = warp_inclusive_sum(own);
    const u32 lane = __ffs(__ballot_sync(ALL_LANES, through >= need)) - 1;
    need -= __shfl_sync(ALL_LANES, through - own, lane);
    return lane;
}

// The cut that leaves `need` of the keys of a team, which are more, and how much of it
// lies in blocks before this one. `each` calls what it is given with every key of the
// block. Ends without a barrier for s.above_before and s.ties_before.
template <typename Each>
INLINE Cut find_cut(const Cluster team, u32 need, Each each) {
    Shared& s = shared();
    // Nobody reads another's counts of before any more.
    team.sync();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 warps = blockDim.x / WARP;
    for (u32 i = threadIdx.x; i < PASSES * BINS; i += blockDim.x) (&s.bins[0][0])[i] = 0;
    for (u32 i = threadIdx.x; i < PASSES * COARSE; i += blockDim.x) (&s.coarse_sums[0][0])[i] = 0;
    for (u32 i = threadIdx.x; i < PASSES * WARP; i += blockDim.x) (&s.fine_sums[0][0])[i] = 0;
    if (threadIdx.x == 0) s.above_before = s.ties_before = 0;
    __syncthreads();
    u32 prefix = 0;
    u32 shift = 32;
    u32 before = 0;
    u32 ties = 0;
#pragma unroll 1
    for (u32 pass = 0; pass < PASSES; pass++) {
        const u32 bits = pass < 2 ? 11 : 10;
        const u32 low = shift - bits;
        u32* const bins = s.bins[pass];
        each([&](u32 key) {
            // Shifting by 32 is none.
            const bool begins = pass == 0 || key >> shift == prefix;
            if (begins) atomicAdd(&bins[key >> low & ((1u << bits) - 1)], 1u);
        });
        __syncthreads();
        for (u32 g = warp; g < COARSE; g += warps) {
            const u32 sum = __reduce_add_sync(ALL_LANES, bins[g * WARP + lane]);
            if (lane == 0) s.coarse[pass][g] = sum;
        }
        team.sync();
        // A thread a coarse bin of a block, then a bin of a block.
        u32 of_coarse = 0;
        if (threadIdx.x < COARSE * team.size) {
            of_coarse = *team.of(&s.coarse[pass][threadIdx.x % COARSE], threadIdx.x / COARSE);
            if (of_coarse != 0) atomicAdd(&s.coarse_sums[pass][threadIdx.x % COARSE], of_coarse);
        }
        __syncthreads();
        // From the largest down, two coarse bins a lane.
        const u32 upper = s.coarse_sums[pass][COARSE - 1 - 2 * lane];
        const u32 lower = s.coarse_sums[pass][COARSE - 2 - 2 * lane];
        const u32 at = reached(upper + lower, need);
        const u32 first = __shfl_sync(ALL_LANES, upper, at);
        u32 coarse = COARSE - 1 - 2 * at;
        if (first < need) {
            need -= first;
            coarse--;
        }
        u32 of_fine = 0;
        if (warp < team.size) {
            of_fine = *team.of(&bins[coarse * WARP + lane], warp);
            if (of_fine != 0) atomicAdd(&s.fine_sums[pass][lane], of_fine);
        }
        __syncthreads();
        const u32 fine = WARP - 1 - reached(s.fine_sums[pass][WARP - 1 - lane], need);
        if (threadIdx.x / COARSE < team.rank && threadIdx.x % COARSE > coarse) before += of_coarse;
        if (warp < team.rank && lane > fine) before += of_fine;
        if (pass == PASSES - 1 && warp < team.rank && lane == fine) ties += of_fine;
        prefix = prefix << bits | (coarse * WARP + fine);
        shift = low;
    }
    if (team.rank > 0) {
        before = __reduce_add_sync(ALL_LANES, before);
        ties = __reduce_add_sync(ALL_LANES, ties);
        if (lane == 0 && before != 0) atomicAdd(&s.above_before, before);
        if (lane == 0 && ties != 0) atomicAdd(&s.ties_before, ties);
    }
    return {prefix, need};
}

// ---- a block's piece ----------------------------------------------------------

// Halves of either kind, told apart as they are read: one kernel for both.
struct Half {
    u16 bits;

    INLINE static float wide(u16 bits, bool brain) {
        return brain ? __uint_as_float(static_cast<u32>(bits) << 16)
                     : __half2float(__ushort_as_half(bits));
    }
};

INLINE float wide(float x, bool) { return x; }
INLINE float wide(Half x, bool brain) { return Half::wide(x.bits, brain); }

// The entries of a vector that are there.
template <typename T>
__device__ __noinline__ uint4 load_edge(const T* from, u32 bits) {
    Pack<T> pack;
    pack.raw = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (u32 j = 0; j < Pack<T>::N; j++) {
        if (bits >> j & 1) pack.items[j] = from[j];
    }
    return pack.raw;
}

template <typename T>
struct Piece {
    static constexpr u32 N = Pack<T>::N;
    static constexpr u32 ALL = (1u << N) - 1;

    const T* row;
    u32 length;
    // Scores between the 16-byte boundary before the row and its start.
    u32 lead;
    // A group is 1 << fold vectors.
    u32 fold;
    u32 groups;
    u32 begin;
    u32 end;
    // Vectors all of whose entries are in the row.
    u32 whole_begin;
    u32 whole_count;

    INLINE Piece(const Params& p, const T* from, u32 count, const Cluster& team)
        : row(from), length(count) {
        lead = static_cast<u32>(reinterpret_cast<u64>(from) % 16 / sizeof(T));
        const u64 through = static_cast<u64>(lead) + count;
        const u32 vectors = static_cast<u32>((through + N - 1) / N);
        const u32 wanted = max(GROUPS_OF_ONE * p.k, LEAST_GROUPS);
        fold = 0;
        while (fold < LINE && vectors >> (fold + 1) >= wanted) fold++;
        while ((((vectors - 1) >> fold) + team.size) / team.size > p.groups) fold++;
        const u64 all = ((vectors - 1) >> fold) + 1;
        const u32 first = static_cast<u32>(all * team.rank / team.size);
        const u32 last = static_cast<u32>(all * (team.rank + 1) / team.size);
        groups = last - first;
        begin = min(first << fold, vectors);
        end = last == all ? vectors : last << fold;
        whole_begin = lead > 0 ? 1 : 0;
        const u32 whole_end = static_cast<u32>(through / N);
        whole_count = max(whole_end, whole_begin) - whole_begin;
    }

    INLINE bool whole(u32 v) const { return v - whole_begin < whole_count; }

    // Which entries of a vector are in the row and the piece, a bit each. The index
    // of an entry before the row wraps.
    INLINE u32 there(u32 v) const {
        if (v >= end) return 0;
        if (whole(v)) return ALL;
        const u32 first = v * N - lead;
        u32 bits = 0;
#pragma unroll
        for (u32 j = 0; j < N; j++) bits |= first + j < length ? 1u << j : 0u;
        return bits;
    }

    INLINE const T* at(u32 v) const { return row + (static_cast<i64>(v) * N - lead); }

    INLINE Pack<T> load(u32 v, u32 bits) const {
        if (bits == ALL) return load_pack(at(v));
        Pack<T> pack;
        pack.raw = bits == 0 ? make_uint4(0, 0, 0, 0) : load_edge(at(v), bits);
        return pack;
    }
};

// The largest entry of a vector, and whether one is a NaN, which is less than any other.
template <typename T>
INLINE float largest(const Pack<T>& pack, bool brain, bool& odd) {
    float most = wide(pack.items[0], brain);
#pragma unroll
    for (u32 j = 0; j < Pack<T>::N; j += 2) {
        const float x = wide(pack.items[j], brain);
        const float y = wide(pack.items[j + 1], brain);
        odd |= !(x <= y || x > y);
        most = fmaxf(most, fmaxf(x, y));
    }
    return most;
}

struct Largest {
    float value;
    bool odd;
};

// The same of a vector at an end of the row.
template <typename T>
__device__ __noinline__ Largest largest_there(const T* from, u32 bits, bool brain) {
    Largest most = {__uint_as_float(0xFF800000u), false};
    for (u32 j = 0; j < Pack<T>::N; j++) {
        if (!(bits >> j & 1)) continue;
        const float x = wide(from[j], brain);
        most.odd |= x != x;
        most.value = fmaxf(most.value, x);
    }
    return most;
}

// Goes through a piece and leaves the largest key of each group; the least and the
// largest that this thread saw. Returns whether a NaN was met.
template <typename T>
INLINE bool find_maxima(const Params& p, const Piece<T>& piece, u32& least, u32& most) {
    const u32 fold = piece.fold;
    const bool large = fold > 5;
    u32* const of_groups = maxima();
    bool odd = false;
    least = ~0u;
    most = 0;
    if (large) {
        for (u32 i = threadIdx.x; i < piece.groups; i += blockDim.x) of_groups[i] = 0;
        __syncthreads();
    }
#pragma unroll 1
    for (u32 tile = piece.begin; tile < piece.end; tile += AHEAD * blockDim.x) {
        const u32 first = tile + threadIdx.x;
        const T* const from = piece.at(first);
        Pack<T> packs[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 v = first + a * blockDim.x;
            packs[a].raw = make_uint4(0, 0, 0, 0);
            if (v < piece.end && piece.whole(v)) {
                packs[a] = load_pack(from + static_cast<u64>(a * blockDim.x) * Pack<T>::N);
            }
        }
        float best[AHEAD];
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 v = first + a * blockDim.x;
            best[a] = largest(packs[a], p.brain, odd);
            if (v >= piece.end || !piece.whole(v)) {
                best[a] = __uint_as_float(0xFF800000u);
                if (v < piece.end) {
                    const Largest edge = largest_there(piece.at(v), piece.there(v), p.brain);
                    best[a] = edge.value;
                    odd |= edge.odd;
                }
            }
        }
#pragma unroll
        for (u32 step = 0; step < 5; step++) {
            if (step >= fold) break;
#pragma unroll
            for (u32 a = 0; a < AHEAD; a++) {
                best[a] = fmaxf(best[a], __shfl_xor_sync(ALL_LANES, best[a], 1u << step));
            }
        }
#pragma unroll
        for (u32 a = 0; a < AHEAD; a++) {
            const u32 v = first + a * blockDim.x;
            if (v < piece.end) {
                const u32 key = exact::sort_key(best[a]);
                const u32 place = v - piece.begin;
                least = min(least, key);
                most = max(most, key);
                if (large) {
                    if (lane_id() == 0) atomicMax(&of_groups[place >> fold], key);
                } else if ((place & ((1u << fold) - 1)) == 0) {
                    of_groups[place >> fold] = key;
                }
            }
        }
    }
    return odd;
}

// ---- the bound ----------------------------------------------------------------

// How many maxima of a block are told of, by level: k / team at first, twice as many,
// and so on up to k.
INLINE u32 level_count(const Params& p, const Cluster& team, u32 level) {
    return min((p.k + team.size - 1) / team.size << level, p.k);
}

// A key that k scores of the row reach, and hardly more if it can be.
INLINE u32 find_bound(const Params& p, const Cluster& team, u32 groups, u32 least, u32 most,
                      u32& turn) {
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    const u32 warps = blockDim.x / WARP;
    const u32* const of_groups = maxima();
    const u32 first_count = level_count(p, team, 0);
    // The range of keys to tell apart starts where most groups are above; what is below
    // it is not counted.
    if (groups >= 6 * first_count) {
#pragma unroll
        for (u32 step = 1; step < 8; step *= 2) {
            least = max(least, __shfl_xor_sync(ALL_LANES, least, step));
        }
    }
    least = __reduce_min_sync(ALL_LANES, least);
    most = __reduce_max_sync(ALL_LANES, most);
    if (lane == 0) {
        s.lowest[warp] = least;
        s.highest[warp] = most;
    }
    __syncthreads();
    most = __reduce_max_sync(ALL_LANES, lane < warps ? s.highest[lane] : 0);
    least = min(__reduce_min_sync(ALL_LANES, lane < warps ? s.lowest[lane] : ~0u), most);
    const u32 shift = shift_of(most - least);
    for (u32 i = threadIdx.x; i < groups; i += blockDim.x) {
        const u32 key = of_groups[i];
        if (key >= least) atomicAdd(&s.bins[0][(key - least) >> shift], 1u);
    }
    __syncthreads();
    // STAMP(2)
    u32 levels = 1;
    while (levels < LEVELS && level_count(p, team, levels - 1) < p.k) levels++;
    // All blocks of the team run by now.
    team.wait();
    const auto tell = [&](u32 level, u32 key) {
        for (u32 block = 0; block < team.size; block++) {
            *team.of(&s.reached[team.rank][level], block) = key;
        }
    };
    const u32 total = search_bins(
        turn, levels, [&](u32 level) { return level_count(p, team, level); },
        [&](u32 level, u32 bin, u32, u32) { tell(level, least + (bin << shift)); });
    if (threadIdx.x == 0) {
        for (u32 level = 0; level < levels; level++) {
            const u32 count = level_count(p, team, level);
            // Key 1, which every score reaches; 0, which stands for none.
            if (count > total) tell(level, count <= groups ? 1 : 0);
        }
        *team.of(&s.largest[team.rank], 0) = most;
    }
    // STAMP(3)
    team.sync();
    // STAMP(4)
    const u32 pairs = team.size * levels;
    const auto told = [&](u32 pair) { return s.reached[pair / levels][pair % levels]; };
    for (u32 pair = warp; pair < pairs; pair += warps) {
        const u32 key = told(pair);
        u32 sum = 0;
        for (u32 other = lane; other < pairs; other += WARP) {
            if (told(other) < key) continue;
            const u32 level = other % levels;
            sum += level_count(p, team, level);
            if (level > 0) sum -= level_count(p, team, level - 1);
        }
        sum = __reduce_add_sync(ALL_LANES, sum);
        if (lane == 0 && sum >= p.k) atomicMax(&s.bound, key);
    }
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) s.bins[0][i] = 0;
    __syncthreads();
    return s.bound;
}

// ---- candidates ---------------------------------------------------------------

// Lists the groups that reach the bound; how many, and how many are above it.
INLINE u32 list_groups(const Params& p, u32 groups, u32 bound, u32& above, u32& turn) {
    constexpr u32 N = 4;
    u32 count = 0;
    u32 own_above = 0;
    u32* const list = listed(p);
#pragma unroll 1
    for (u32 base = 0; base < groups; base += N * blockDim.x) {
        const u32 at = base + N * threadIdx.x;
        u32 bits = 0;
        if (at < groups) {
            const uint4 four = *reinterpret_cast<const uint4*>(maxima() + at);
            const u32 keys[N] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const bool in = at + j < groups;
                bits |= in && keys[j] >= bound ? 1u << j : 0u;
                own_above += in && keys[j] > bound ? 1 : 0;
            }
        }
        u32 total;
        u32 place = count + thread_place(turn, __popc(bits), total);
#pragma unroll
        for (u32 j = 0; j < N; j++) {
            if (bits >> j & 1) {
                if (place < p.listed) list[place] = at + j;
                place++;
            }
        }
        count += total;
    }
    thread_place(turn, own_above, above);
    return count;
}

// Hands the scores of the listed groups that reach the bound to the first block, in
// order, as far as there is room; how many there are.
template <typename T>
INLINE u32 hand_over(const Params& p, const Cluster& team, const Piece<T>& piece, u32 groups,
                     u32 bound, u32 room, u32& turn) {
    constexpr u32 N = Piece<T>::N;
    constexpr u32 VECTORS = 8 / N;
    const u32* const list = listed(p);
    u32* const keys = team.of(candidate_keys(p) + team.rank * room, 0);
    u32* const indices = team.of(candidate_indices(p) + team.rank * room, 0);
    const u32 fold = piece.fold;
    const u32 vectors = groups << fold;
    u32 count = 0;
#pragma unroll 1
    for (u32 base = 0; base < vectors; base += VECTORS * blockDim.x) {
        u32 bits[VECTORS];
        u32 at[VECTORS];
        Pack<T> packs[VECTORS];
#pragma unroll
        for (u32 a = 0; a < VECTORS; a++) {
            const u32 i = base + threadIdx.x * VECTORS + a;
            at[a] = 0;
            bits[a] = 0;
            if (i < vectors) {
                const u32 within = i & ((1u << fold) - 1);
                at[a] = piece.begin + (list[i >> fold] << fold) + within;
                bits[a] = piece.there(at[a]);
            }
            packs[a] = piece.load(at[a], bits[a]);
        }
        u32 own = 0;
#pragma unroll
        for (u32 a = 0; a < VECTORS; a++) {
            u32 reach = 0;
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const u32 key = exact::sort_key(wide(packs[a].items[j], p.brain));
                reach |= key >= bound ? 1u << j : 0u;
            }
            bits[a] &= reach;
            own += __popc(bits[a]);
        }
        u32 total;
        u32 place = count + thread_place(turn, own, total);
#pragma unroll
        for (u32 a = 0; a < VECTORS; a++) {
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                if (bits[a] >> j & 1) {
                    if (place < room) {
                        keys[place] = exact::sort_key(wide(packs[a].items[j], p.brain));
                        indices[place] = at[a] * N - piece.lead + j;
                    }
                    place++;
                }
            }
        }
        count += total;
    }
    return count;
}

// ---- output -------------------------------------------------------------------

INLINE void put_index(const Params& p, u64 row, u32 place, i32 index) {
    const u64 at = row * p.indices_stride + place;
    if (p.indices_wide) {
        static_cast<i64*>(p.indices)[at] = index;
    } else {
        static_cast<i32*>(p.indices)[at] = index;
    }
}

// The k best of what was handed over, which s.counts tells of.
INLINE void finish(const Params& p, const Cluster& team, u64 row, u32 bound, u32 room, u32& turn) {
    Shared& s = shared();
    const u32 lane = lane_id();
    const u32 warp = threadIdx.x / WARP;
    // A warp has a part of what one block handed over.
    const u32 parts = blockDim.x / WARP / team.size;
    const u32 block = warp / parts;
    const u32 part = warp % parts;
    const u32 begin = block * room + s.counts[block] * part / parts;
    const u32 end = block * room + s.counts[block] * (part + 1) / parts;
    const u32* const keys = candidate_keys(p);
    const u32* const indices = candidate_indices(p);
    u32 low = bound;
    u32 high = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
    u32 need = p.k;
    Cut cut;
    while (true) {
        const u32 range = high - low;
        const u32 shift = shift_of(range);
        for (u32 i = begin + lane; i < end; i += WARP) {
            const u32 above = keys[i] - low;
            if (above <= range) atomicAdd(&s.bins[0][above >> shift], 1u);
        }
        __syncthreads();
        search_bins(
            turn, 1, [&](u32) { return need; },
            [&](u32, u32 bin, u32 before, u32 count) {
                s.digit = bin;
                s.digit_need = need - before;
                s.digit_count = count;
            });
        __syncthreads();
        low += s.digit << shift;
        high = min(high, low + ((1u << shift) - 1));
        need = s.digit_need;
        const u32 count = s.digit_count;
        if (shift == 0) {
            cut = {low, need};
            break;
        }
        if (count == need) {
            cut = {low - 1, 0};
            break;
        }
        if (count <= FEW) {
            for (u32 i = begin + lane; i < end; i += WARP) {
                const u32 key = keys[i];
                if (key - low <= high - low) s.few[atomicAdd(&s.few_count, 1u)] = key;
            }
            __syncthreads();
            if (threadIdx.x < count) {
                const u32 key = s.few[threadIdx.x];
                u32 larger = 0;
                u32 equal = 0;
                for (u32 i = 0; i < count; i++) {
                    larger += s.few[i] > key ? 1 : 0;
                    equal += s.few[i] == key ? 1 : 0;
                }
                if (larger < need && need <= larger + equal) {
                    s.cut_key = key;
                    s.cut_ties = need - larger;
                }
            }
            __syncthreads();
            cut = {s.cut_key, s.cut_ties};
            break;
        }
        for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) s.bins[0][i] = 0;
        __syncthreads();
    }
    // STAMP(8)
    u32 own = 0;
    for (u32 i = begin + lane; i < end; i += WARP) {
        const u32 key = keys[i];
        own += key > cut.key ? 1u << 16 : key == cut.key ? 1u : 0u;
    }
    own = __reduce_add_sync(ALL_LANES, own);
    u32 total;
    const u32 before = warp_place(turn, own, total);
    u32 above = before >> 16;
    u32 ties = before & 0xFFFF;
    for (u32 base = begin; base < end; base += WARP) {
        const u32 i = base + lane;
        const u32 key = i < end ? keys[i] : 0;
        const bool larger = i < end && key > cut.key;
        const bool equal = i < end && key == cut.key;
        const u32 all_larger = __ballot_sync(ALL_LANES, larger);
        const u32 all_equal = __ballot_sync(ALL_LANES, equal);
        const u32 g = above + __popc(all_larger & lanes_below());
        const u32 e = ties + __popc(all_equal & lanes_below());
        if (larger || (equal && e < cut.ties)) {
            put_index(p, row, g + min(e, cut.ties), static_cast<i32>(indices[i]));
        }
        above += __popc(all_larger);
        ties += __popc(all_equal);
    }
    // STAMP(9)
}

// ---- rows that have too many candidates ----------------------------------------

// What a walk met, before a thread or in all.
struct Met {
    u32 above;
    u32 ties;
};

// Goes through the groups that have a score above the key or, as long as `enough` scores
// that equal it were not met, at it. put(above, ties, larger, index) for every score of
// theirs that is either, with how many of each were before it in the block.
template <typename T, typename Put>
INLINE Met walk(const Params& p, const Piece<T>& piece, u32 key, u32 enough, u32& turn, Put put) {
    constexpr u32 N = Piece<T>::N;
    Met met = {0, 0};
#pragma unroll 1
    for (u32 base = 0; base < piece.groups; base += blockDim.x) {
        const u32 group = base + threadIdx.x;
        const u32 largest = group < piece.groups ? maxima()[group] : 0;
        const bool read = largest > key || (largest == key && met.ties < enough);
        if (!__syncthreads_or(read)) continue;
        const u32 first = piece.begin + (group << piece.fold);
        const u32 last = read ? min(first + (1u << piece.fold), piece.end) : first;
        Met own = {0, 0};
#pragma unroll 2
        for (u32 v = first; v < last; v++) {
            const u32 bits = piece.there(v);
            const Pack<T> pack = piece.load(v, bits);
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const u32 other = exact::sort_key(wide(pack.items[j], p.brain));
                if (!(bits >> j & 1)) continue;
                own.above += other > key ? 1 : 0;
                own.ties += other == key ? 1 : 0;
            }
        }
        u32 all_above;
        u32 all_ties;
        u32 above = met.above + thread_place(turn, own.above, all_above);
        u32 ties = met.ties + thread_place(turn, own.ties, all_ties);
        put(first, own.above + own.ties > 0 ? last : first, above, ties);
        met.above += all_above;
        met.ties += all_ties;
    }
    return met;
}

// Kept out of line: most rows never come here.
template <typename T>
__device__ __noinline__ void select_exactly(const Params& p, const Piece<T> piece, u64 row,
                                            u32 bound, u32 turn) {
    constexpr u32 N = Piece<T>::N;
    Shared& s = shared();
    const Cluster team;
    const u32 lane = lane_id();
    const u32 groups_above =
        __reduce_add_sync(ALL_LANES, lane < team.size ? s.groups_above[lane] : 0);
    if (groups_above > 2 * p.k) {
        const Cut cut = find_cut(team, p.k, [&](auto count) {
            for (u32 i = threadIdx.x; i < piece.groups; i += blockDim.x) count(maxima()[i]);
        });
        bound = cut.key;
    }
    const Met own = walk(p, piece, bound, p.k, turn, [](u32, u32, u32, u32) {});
    if (threadIdx.x < team.size) {
        *team.of(&s.above[team.rank], threadIdx.x) = own.above;
        *team.of(&s.ties[team.rank], threadIdx.x) = own.ties;
    }
    team.sync();
    const u32 of_lane = lane < team.size ? s.above[lane] : 0;
    const u32 above = __reduce_add_sync(ALL_LANES, of_lane);
    Cut cut = {bound, p.k - min(above, p.k)};
    Met before;
    if (above < p.k) {
        before.above = __reduce_add_sync(ALL_LANES, lane < team.rank ? of_lane : 0);
        before.ties = __reduce_add_sync(ALL_LANES, lane < team.rank ? s.ties[lane] : 0);
    } else {
        cut = find_cut(team, p.k, [&](auto count) {
            for (u32 i = threadIdx.x; i < piece.groups; i += blockDim.x) {
                if (maxima()[i] <= bound) continue;
                const u32 first = piece.begin + (i << piece.fold);
                const u32 last = min(first + (1u << piece.fold), piece.end);
#pragma unroll 2
                for (u32 v = first; v < last; v++) {
                    const u32 bits = piece.there(v);
                    const Pack<T> pack = piece.load(v, bits);
#pragma unroll
                    for (u32 j = 0; j < N; j++) {
                        const u32 key = exact::sort_key(wide(pack.items[j], p.brain));
                        if ((bits >> j & 1) && key > bound) count(key);
                    }
                }
            }
        });
        __syncthreads();
        before = {s.above_before, s.ties_before};
    }
    // Nobody reads another's counts any more; a block ends when all are here.
    team.arrive();
    before.ties = min(before.ties, cut.ties);
    const u32 place = before.above + before.ties;
    cut.ties -= before.ties;
    walk(p, piece, cut.key, cut.ties, turn, [&](u32 first, u32 last, u32 g, u32 e) {
        for (u32 v = first; v < last; v++) {
            const u32 bits = piece.there(v);
            const Pack<T> pack = piece.load(v, bits);
#pragma unroll
            for (u32 j = 0; j < N; j++) {
                const u32 key = exact::sort_key(wide(pack.items[j], p.brain));
                if (!(bits >> j & 1)) continue;
                const i32 index = static_cast<i32>(v * N - piece.lead + j);
                if (key > cut.key) {
                    put_index(p, row, place + g + min(e, cut.ties), index);
                    g++;
                } else if (key == cut.key) {
                    if (e < cut.ties) put_index(p, row, place + g + e, index);
                    e++;
                }
            }
        }
    });
    team.wait();
}

// ---- a row --------------------------------------------------------------------

INLINE u32 cut_to(i64 value, u32 most) {
    return static_cast<u32>(max(min(value, static_cast<i64>(most)), 0ll));
}

template <typename T>
INLINE void select(const Params& p) {
    Shared& s = shared();
    const Cluster team;
    // STAMP(0)
    const u64 row = blockIdx.x / team.size;
    u32 start = 0;
    u32 bits = 0;
    if (p.starts.data != nullptr) {
        const i64 given = p.starts[row];
        start = cut_to(given, p.cols);
        if (start != given) bits |= BAD_LENGTHS;
    }
    u32 length = p.cols - start;
    if (p.lengths.data != nullptr) {
        const i64 given = p.lengths[row];
        length = cut_to(given, p.cols - start);
        if (length != given) bits |= BAD_LENGTHS;
    }
    if (team.rank > 0) bits = 0;
    const T* const scores = static_cast<const T*>(p.scores) + row * p.stride + start;
    if (length <= p.k) {
        // All of them: a NaN among them is told all the same.
        for (u32 i = team.rank * blockDim.x + threadIdx.x; i < p.k; i += team.size * blockDim.x) {
            if (i < length) {
                const float x = wide(scores[i], p.brain);
                if (x != x) bits |= NON_FINITE;
            }
            put_index(p, row, i, i < length ? static_cast<i32>(i) : -1);
        }
        const u32 any = __reduce_or_sync(ALL_LANES, bits);
        if (lane_id() == 0) raise(p.flags, any);
        return;
    }
    team.arrive();
    const Piece<T> piece(p, scores, length, team);
    for (u32 i = threadIdx.x; i < BINS; i += blockDim.x) s.bins[0][i] = 0;
    if (threadIdx.x == 0) {
        s.bound = 1;
        s.few_count = 0;
    }
    u32 least;
    u32 most;
    if (find_maxima(p, piece, least, most)) bits |= NON_FINITE;
    // STAMP(1)
    const u32 any = __reduce_or_sync(ALL_LANES, bits);
    if (lane_id() == 0) raise(p.flags, any);
    u32 turn = 0;
    const u32 bound = find_bound(p, team, piece.groups, least, most, turn);
    // STAMP(5)
    const u32 room = p.candidates / team.size;
    u32 above;
    u32 count = list_groups(p, piece.groups, bound, above, turn);
    // A group that reaches the bound has a score that does.
    if (count <= min(p.listed, room)) {
        count = hand_over(p, team, piece, count, bound, room, turn);
    } else {
        count = ~0u;
    }
    if (threadIdx.x < team.size) {
        *team.of(&s.counts[team.rank], threadIdx.x) = count;
        *team.of(&s.groups_above[team.rank], threadIdx.x) = above;
    }
    // STAMP(6)
    team.sync();
    // STAMP(7)
    const u32 of_lane = lane_id() < team.size ? s.counts[lane_id()] : 0;
    if (__any_sync(ALL_LANES, of_lane > room)) {
        select_exactly(p, piece, row, bound, turn);
    } else if (team.rank == 0) {
        finish(p, team, row, bound, room, turn);
    }
}

SPEC_KERNEL(indexer_topk_f32, select<float>, Params, MAX_THREADS)
SPEC_KERNEL(indexer_topk_half, select<Half>, Params, MAX_THREADS)
