// 64-bit unsigned integers as vec2(low, high).

fn u64_less(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

fn u64_equal(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.x == b.x && a.y == b.y;
}

fn u64_add(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn u64_sub(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

// a * b in full.
fn u32_mul(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xffffu;
    let a1 = a >> 16u;
    let b0 = b & 0xffffu;
    let b1 = b >> 16u;
    let p00 = a0 * b0;
    let p01 = a0 * b1;
    let p10 = a1 * b0;
    // At most 3 * 0xffff: no carry is lost.
    let middle = (p00 >> 16u) + (p01 & 0xffffu) + (p10 & 0xffffu);
    let high = a1 * b1 + (p01 >> 16u) + (p10 >> 16u) + (middle >> 16u);
    return vec2((middle << 16u) | (p00 & 0xffffu), high);
}

// The high 64 bits of the 128-bit product a * b.
fn u64_mul_high(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let ll = u32_mul(a.x, b.x);
    let lh = u32_mul(a.x, b.y);
    let hl = u32_mul(a.y, b.x);
    let hh = u32_mul(a.y, b.y);
    let middle = u64_add(u64_add(lh, vec2(ll.y, 0u)), vec2(hl.x, 0u));
    return u64_add(u64_add(hh, vec2(hl.y, 0u)), vec2(middle.y, 0u));
}
