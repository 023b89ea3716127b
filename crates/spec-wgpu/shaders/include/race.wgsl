//!include exact
//!include philox
// The noise of the race between tokens, as in spec_core::race: drawing a token means drawing which
// token finishes first.

// The random numbers of one decision.
struct Draw {
    seed: vec2<u32>,
    position: vec2<u32>,
    purpose: u32,
}

fn block(draw: Draw, index: u32) -> vec4<u32> {
    return philox(vec4(draw.position, draw.purpose, index), draw.seed);
}

// -ln(1 - n / 2^bits). The smaller of n and 2^bits - n is given by its 32 leading bits, the highest
// of which is 1 and stands for 2^exponent of the whole.
fn exponential(below_half: bool, leading: u32, exponent: i32) -> f32 {
    let m = bitcast<f32>(((leading >> 8u) & 0x7fffffu) | 0x3f800000u);
    if below_half {
        // Exact: a power of two.
        let z = fence(m * bitcast<f32>(u32(127 + exponent) << 23u));
        return exact_ln_1p(mul(z, 2.0f * exact_reciprocal(2.0f * add(1.0f, -z))));
    }
    return add(mul(f32(-exponent), 0.693147182f), -exact_ln_1p(m - 1.0f));
}

// exponential of an odd number of 64 bits.
fn exponential_64(low: u32, high: u32) -> f32 {
    let below_half = high < 0x80000000u;
    // The number is odd, so its negative is its complement except for the last bit.
    let x = select(~low, low, below_half) | 1u;
    let y = select(~high, high, below_half);
    if y == 0u {
        let zeros = countLeadingZeros(x);
        return exponential(below_half, x << zeros, -33 - i32(zeros));
    }
    let zeros = countLeadingZeros(y);
    // Shifted in two steps, since WGSL cannot shift by 32.
    return exponential(below_half, (y << zeros) | ((x >> 1u) >> (31u - zeros)), -1 - i32(zeros));
}

// exponential of the 33 bits of a word with a 1 behind it.
fn exponential_33(word: u32) -> f32 {
    let below_half = word < 0x80000000u;
    let distance = (select(~word, word, below_half) << 1u) | 1u;
    let zeros = countLeadingZeros(distance);
    return exponential(below_half, distance << zeros, -2 - i32(zeros));
}

// The least noise of a group, and the token of the group that has it.
struct Least {
    noise: f32,
    lane: u32,
}

fn least_of(draw: Draw, group: u32) -> Least {
    let high = block(draw, group / 4u)[group % 4u];
    let words = block(draw, GROUP_BLOCKS + group);
    // Exact: a power of two.
    let noise = exponential_64(words.x, high) * 0.015625f;
    return Least(fence(noise), words.y % RACE_GROUP);
}

// The token of a group that has the group's least noise, counted from the group's first token.
fn least_lane(draw: Draw, group: u32) -> u32 {
    return block(draw, GROUP_BLOCKS + group).y % RACE_GROUP;
}

// The noise of a token of the group whose least noise is `least`.
fn noise_of(draw: Draw, least: Least, token: u32) -> f32 {
    if token % RACE_GROUP == least.lane {
        return least.noise;
    }
    let word = block(draw, TOKEN_BLOCKS + token / 4u)[token % 4u];
    return add(least.noise, exponential_33(word));
}

// A lower bound of a group's noise, from the high bits of the group's least noise alone: see
// spec_core::race::noise_bound. A logarithm may be off by 2^-21 here, which is at most 4e-6
// relative to the noise; the slack is more than a hundred times as large.
fn noise_bound(high: u32) -> f32 {
    const SLACK = (1.0f - 1.0f / 2048.0f) / 64.0f;
    let u = f32(high) * 2.32830644e-10f;
    if u < 0.125f {
        return (u + 0.5f * u * u) * SLACK;
    }
    return -log(f32(0u - high) * 2.32830644e-10f) * SLACK;
}
