//!include bound
//!include u64
// Finds where to cut entries, without sorting them: the primitive under top-k and top-p.
//
// Entries are ordered by key (sort_key), descending, the lower index first among equal keys. An
// entry is kept if the weights before it add up to less than a limit. Rounds of a histogram find
// the last entry that stays: four rounds for the bytes of its key and, if only some entries with
// this key stay, three for the bytes of its index. One workgroup does all rounds; each round adds
// up weights by byte and finds the bin of the last entry. Weights are integers that depend on the
// key alone; key 0 marks an absent entry.
//
// Workgroups of the including shader that select have SELECT_BINS threads or more.

const SELECT_BINS = 256u;
const KEY_ROUNDS = 4u;
const ROUNDS = 7u;

// The state of a selection: the bytes of the cut's key known so far, then of its index, the weights
// before the known bytes, and the limit.
struct Selection {
    running: u32,
    key: u32,
    index: u32,
    above: vec2<u32>,
    limit: vec2<u32>,
}

// The result of a round: its bin (SELECT_BINS for none), the weights before the bin, and the weight
// of the bin.
struct Picked {
    bin: u32,
    above: vec2<u32>,
    within: vec2<u32>,
}

// Weights of one bin that a thread has not added yet. Adding them at once saves atomics where many
// successive entries fall into one bin.
struct Run {
    bin: u32,
    weight: vec2<u32>,
}

var<workgroup> bin_low: array<atomic<u32>, SELECT_BINS>;
var<workgroup> bin_high: array<atomic<u32>, SELECT_BINS>;
var<workgroup> sums_even: array<vec2<u32>, SELECT_BINS>;
var<workgroup> sums_odd: array<vec2<u32>, SELECT_BINS>;
var<workgroup> sum_of_bins: vec2<u32>;
var<workgroup> picked: Picked;

// The bin of an entry in a round; SELECT_BINS if the entry does not begin with the known bytes.
// Bins follow the order of entries.
fn bin_of(round: u32, known: Selection, key: u32, index: u32) -> u32 {
    if key == 0u {
        return SELECT_BINS;
    }
    if round < KEY_ROUNDS {
        let shift = 24u - 8u * round;
        // Shifted in two steps, since WGSL cannot shift by 32.
        let begins = ((key ^ known.key) >> shift) >> 8u == 0u;
        return select(SELECT_BINS, 255u - ((key >> shift) & 255u), begins);
    }
    let shift = 16u - 8u * (round - KEY_ROUNDS);
    let begins = key == known.key && (index ^ known.index) >> (shift + 8u) == 0u;
    return select(SELECT_BINS, (index >> shift) & 255u, begins);
}

// The state of the selection after the bin of that round is known.
fn narrowed(round: u32, known_in: Selection, found: Picked) -> Selection {
    var known = known_in;
    known.above = found.above;
    if round < KEY_ROUNDS {
        known.key |= (255u - found.bin) << (24u - 8u * round);
    } else {
        known.index |= found.bin << (16u - 8u * (round - KEY_ROUNDS));
    }
    return known;
}

// Every thread must call this function before the workgroup adds to bins.
fn clear_bins(thread: u32) {
    workgroupBarrier();
    if thread < SELECT_BINS {
        atomicStore(&bin_low[thread], 0u);
        atomicStore(&bin_high[thread], 0u);
    }
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

fn add_to_run(run: ptr<function, Run>, bin: u32, weight: vec2<u32>) {
    if (*run).bin == bin {
        (*run).weight = u64_add((*run).weight, weight);
        return;
    }
    end_run(run);
    (*run).bin = bin;
    (*run).weight = weight;
}

fn end_run(run: ptr<function, Run>) {
    if (*run).bin < SELECT_BINS {
        add_to_bin((*run).bin, (*run).weight);
    }
}

// The weight in a bin; 0 for a bin that does not exist.
fn bin_weight(bin: u32) -> vec2<u32> {
    if bin >= SELECT_BINS {
        return vec2(0u, 0u);
    }
    return vec2(atomicLoad(&bin_low[bin]), atomicLoad(&bin_high[bin]));
}

// The sum of `value` over the threads up to this one, among the first SELECT_BINS threads. Every
// thread must call this function.
fn sum_through(thread: u32, value: vec2<u32>) -> vec2<u32> {
    var sum = value;
    var odd = false;
    if thread < SELECT_BINS {
        sums_even[thread] = sum;
    }
    for (var step = 1u; step < SELECT_BINS; step <<= 1u) {
        workgroupBarrier();
        if thread < SELECT_BINS {
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
    }
    // Eight steps: the last sums are the even ones.
    if thread == SELECT_BINS - 1u {
        sum_of_bins = sum;
    }
    workgroupBarrier();
    return sum;
}

// The sum over all threads of the last sum_through. Every thread must call this function.
fn sum_of_all() -> vec2<u32> {
    return workgroupUniformLoad(&sum_of_bins);
}

// The first bin up to which the weights reach the limit, where `above` is the weight before all
// bins. Every thread must call this function.
fn pick_bin(thread: u32, above: vec2<u32>, limit: vec2<u32>) -> Picked {
    if thread == 0u {
        picked = Picked(SELECT_BINS, above, vec2(0u, 0u));
    }
    workgroupBarrier();
    let own = bin_weight(thread);
    let through = u64_add(above, sum_through(thread, own));
    let before = u64_sub(through, own);
    if thread < SELECT_BINS && u64_less(before, limit) && !u64_less(through, limit) {
        picked = Picked(thread, before, own);
    }
    return workgroupUniformLoad(&picked);
}
