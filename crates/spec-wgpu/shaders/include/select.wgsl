//!include bound
//!include u64
// Where a row is cut, without sorting it: the primitive under top-k and top-p.
//
// Entries are ordered by key (sort_key), descending, the lower index first among
// equals, and kept while the weights before them add up to less than a limit.
// Rounds of a histogram find the last one that stays: four for the bytes of its key,
// and where only some entries of that key stay, three for those of its index. A
// round is two dispatches: `count` adds up weights by the byte, a workgroup a chunk of
// a row, and `pick` finds the bin, a workgroup a row. Weights are integers that depend
// on the key alone; key 0 is an entry that is not there.
//
// The including shader declares workgroups of SELECT_BINS threads, and a binding
// `histogram: array<atomic<u32>>` with SELECT_WORDS words a row, zero at first, from
// `params.at.b2` on.

const SELECT_BINS = 256u;
const SELECT_WORDS = 512u;
const KEY_ROUNDS = 4u;
const ROUNDS = 7u;

// What is known of the cut after some rounds: bytes of its key, then of its index,
// and the weights before what is known.
struct Narrowed {
    key: u32,
    index: u32,
    above: vec2<u32>,
}

// Where a round ended: its bin, SELECT_BINS for none, the weights before it and its
// own.
struct Picked {
    bin: u32,
    above: vec2<u32>,
    within: vec2<u32>,
}

var<workgroup> bin_low: array<atomic<u32>, SELECT_BINS>;
var<workgroup> bin_high: array<atomic<u32>, SELECT_BINS>;
var<workgroup> sums_even: array<vec2<u32>, SELECT_BINS>;
var<workgroup> sums_odd: array<vec2<u32>, SELECT_BINS>;
var<workgroup> picked: Picked;

// The bin of an entry in a round, SELECT_BINS where it does not begin as what is
// known. Bins are in the order of entries.
fn bin_of(round: u32, known: Narrowed, key: u32, index: u32) -> u32 {
    if key == 0u {
        return SELECT_BINS;
    }
    if round < KEY_ROUNDS {
        let shift = 24u - 8u * round;
        // Shifted in two steps: one by 32 is none.
        let begins = ((key ^ known.key) >> shift) >> 8u == 0u;
        return select(SELECT_BINS, 255u - ((key >> shift) & 255u), begins);
    }
    let shift = 16u - 8u * (round - KEY_ROUNDS);
    let begins = key == known.key && (index ^ known.index) >> (shift + 8u) == 0u;
    return select(SELECT_BINS, (index >> shift) & 255u, begins);
}

// What is known with the bin of that round.
fn narrowed(round: u32, known_in: Narrowed, found: Picked) -> Narrowed {
    var known = known_in;
    known.above = found.above;
    if round < KEY_ROUNDS {
        known.key |= (255u - found.bin) << (24u - 8u * round);
    } else {
        known.index |= found.bin << (16u - 8u * (round - KEY_ROUNDS));
    }
    return known;
}

// Every thread calls it before the workgroup counts.
fn clear_bins(thread: u32) {
    atomicStore(&bin_low[thread], 0u);
    atomicStore(&bin_high[thread], 0u);
    workgroupBarrier();
}

// The carry makes two 32-bit atomics exact in any order.
fn add_to_bin(bin: u32, weight: vec2<u32>) {
    let before = atomicAdd(&bin_low[bin], weight.x);
    let high = weight.y + select(0u, 1u, before + weight.x < before);
    if high != 0u {
        atomicAdd(&bin_high[bin], high);
    }
}

// Adds the workgroup's bins to the row's. Every thread calls it.
fn merge_bins(row: u32, thread: u32) {
    workgroupBarrier();
    let weight = vec2(atomicLoad(&bin_low[thread]), atomicLoad(&bin_high[thread]));
    if all(weight == vec2(0u, 0u)) {
        return;
    }
    let at = params.at.b2 + row * SELECT_WORDS + thread;
    let before = atomicAdd(&histogram[at], weight.x);
    let high = weight.y + select(0u, 1u, before + weight.x < before);
    if high != 0u {
        atomicAdd(&histogram[at + SELECT_BINS], high);
    }
}

// The sum of values over the threads up to this one. Every thread calls it; the
// last one's is the sum over all.
fn sum_through(thread: u32, value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var odd = false;
    sums_even[thread] = sum;
    for (var step = 1u; step < SELECT_BINS; step <<= 1u) {
        workgroupBarrier();
        if thread >= step {
            if odd {
                sum = u64_add(sum, sums_odd[thread - step]);
            } else {
                sum = u64_add(sum, sums_even[thread - step]);
            }
        }
        odd = !odd;
        if odd {
            sums_odd[thread] = sum;
        } else {
            sums_even[thread] = sum;
        }
    }
    // Eight steps: the last sums are the even ones.
    workgroupBarrier();
    return sum;
}

// The sum over all threads of the last sum_through.
fn sum_of_all() -> vec2<u32> {
    return sums_even[SELECT_BINS - 1u];
}

// The first bin of a row through which the weights, `above` before them, reach the
// limit; clears the row's bins. Every thread calls it.
fn pick_bin(row: u32, thread: u32, above: vec2<u32>, limit: vec2<u32>) -> Picked {
    if thread == 0u {
        picked = Picked(SELECT_BINS, above, vec2(0u, 0u));
    }
    let at = params.at.b2 + row * SELECT_WORDS + thread;
    let own = vec2(atomicLoad(&histogram[at]), atomicLoad(&histogram[at + SELECT_BINS]));
    atomicStore(&histogram[at], 0u);
    atomicStore(&histogram[at + SELECT_BINS], 0u);
    let through = u64_add(above, sum_through(thread, own));
    let before = u64_sub(through, own);
    if u64_less(before, limit) && !u64_less(through, limit) {
        picked = Picked(thread, before, own);
    }
    return workgroupUniformLoad(&picked);
}
