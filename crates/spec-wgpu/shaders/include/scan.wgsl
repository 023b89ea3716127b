// Prefix sums over a workgroup of `THREADS` threads, a power of two: a constant
// or override that the including shader declares.

var<workgroup> scan_words: array<u32, THREADS>;

// The sum of `value` over the threads before this one. Every thread of the
// workgroup must call it. `scan_total` then gives the sum over all.
fn scan_exclusive(thread: u32, value: u32) -> u32 {
    workgroupBarrier();
    scan_words[thread] = value;
    var sum = value;
    for (var step = 1u; step < THREADS; step <<= 1u) {
        workgroupBarrier();
        var left = 0u;
        if thread >= step {
            left = scan_words[thread - step];
        }
        workgroupBarrier();
        sum += left;
        scan_words[thread] = sum;
    }
    workgroupBarrier();
    return sum - value;
}

// The sum over all threads of the last scan_exclusive.
fn scan_total() -> u32 {
    return scan_words[THREADS - 1u];
}
