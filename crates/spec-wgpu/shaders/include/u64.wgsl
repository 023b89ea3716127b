// 64-bit unsigned integers as vec2<u32>(low, high).

const ZERO64 = vec2<u32>(0u, 0u);

fn add64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.x + b.x;
    return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

fn sub64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

fn less64(a: vec2<u32>, b: vec2<u32>) -> bool {
    return a.y < b.y || (a.y == b.y && a.x < b.x);
}

// Shifts by 0 to 63. WGSL takes a u32's shift count modulo 32, so the halves
// cross over by hand.
fn shl64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 32u {
        return vec2<u32>(0u, a.x << (n - 32u));
    }
    // Two shifts, because a shift by 32 is not one.
    return vec2<u32>(a.x << n, (a.y << n) | ((a.x >> 1u) >> (31u - n)));
}

fn shr64(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 32u {
        return vec2<u32>(a.y >> (n - 32u), 0u);
    }
    return vec2<u32>((a.x >> n) | ((a.y << 1u) << (31u - n)), a.y >> n);
}

// The 64-bit product of two u32, by 16-bit pieces.
fn mul_wide(a: u32, b: u32) -> vec2<u32> {
    let a0 = a & 0xFFFFu;
    let a1 = a >> 16u;
    let b0 = b & 0xFFFFu;
    let b1 = b >> 16u;
    let low = a0 * b0;
    // At most (2^16 - 1)^2 + 2 * (2^16 - 1) = 2^32 - 1: no carry is lost.
    let middle = a1 * b0 + (low >> 16u);
    let cross = a0 * b1 + (middle & 0xFFFFu);
    return vec2<u32>(
        (cross << 16u) | (low & 0xFFFFu),
        a1 * b1 + (middle >> 16u) + (cross >> 16u),
    );
}

// The upper 64 bits of the 128-bit product.
fn mul_high64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = mul_wide(a.x, b.x);
    let m = mul_wide(a.x, b.y);
    let n = mul_wide(a.y, b.x);
    let high = mul_wide(a.y, b.y);
    var middle = add64(vec2<u32>(low.y, 0u), vec2<u32>(m.x, 0u));
    middle = add64(middle, vec2<u32>(n.x, 0u));
    var result = add64(high, vec2<u32>(m.y, 0u));
    result = add64(result, vec2<u32>(n.y, 0u));
    return add64(result, vec2<u32>(middle.y, 0u));
}
