// Prefix sums over a workgroup of `THREADS` threads, a power of two: a constant
// or override that the including shader declares.

// Sums so far. Each step reads one array and writes the other.
var<workgroup> scan_even: array<u32, THREADS>;
var<workgroup> scan_odd: array<u32, THREADS>;
var<workgroup> scan_sum: u32;

// The sum of `value` over the threads before this one. Every thread of the workgroup must call this
// function. `scan_total` then gives the sum over all threads.
fn scan_exclusive(thread: u32, value: u32) -> u32 {
    var sum = value;
    var odd = false;
    scan_even[thread] = sum;
    for (var step = 1u; step < THREADS; step <<= 1u) {
        workgroupBarrier();
        if thread >= step {
            if odd {
                sum += scan_odd[thread - step];
            } else {
                sum += scan_even[thread - step];
            }
        }
        odd = !odd;
        if odd {
            scan_odd[thread] = sum;
        } else {
            scan_even[thread] = sum;
        }
    }
    if thread == THREADS - 1u {
        scan_sum = sum;
    }
    workgroupBarrier();
    return sum - value;
}

// The sum over all threads of the last scan_exclusive.
fn scan_total() -> u32 {
    return scan_sum;
}
