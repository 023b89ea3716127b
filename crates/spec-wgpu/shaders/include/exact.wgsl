//!include floats
// spec_core::exact, operation by operation. A shader compiler may contract a * b + c, reorder sums
// and cancel a + b - b. Here every result passes through an XOR with a zero that the compiler does
// not know, so that the compiler cannot join operations across it. Needs `params.at` of bound.wgsl.

fn fence(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ params.at.zero);
}

fn mul(a: f32, b: f32) -> f32 {
    return fence(a * b);
}

// For sums that are added to another sum. A sum that is only multiplied, compared or taken apart
// needs no fence of its own: its products have a fence.
fn add(a: f32, b: f32) -> f32 {
    return fence(a + b);
}

// The bits of a + b: fast where all drivers agree, and by integers where a driver might flush a
// subnormal or lose a NaN.
fn add_bits(a: u32, b: u32) -> u32 {
    let ea = a & 0x7f800000u;
    let eb = b & 0x7f800000u;
    let sum = bitcast<u32>(add(bitcast<f32>(a), bitcast<f32>(b)));
    let es = sum & 0x7f800000u;
    let plain = min(min(ea, eb), es) != 0u && max(ea, eb) != 0x7f800000u;
    if plain {
        return sum;
    }
    return soft_add(a, b);
}

const ROUND = 12582912.0f;

// e^t for t <= 0; 0 below EXP_MIN. t is a number.
fn exact_exp(t: f32) -> f32 {
    let clamped = select(EXP_MIN, t, t > EXP_MIN);
    let shifted = add(mul(clamped, 1.44269502f), ROUND);
    let n = shifted - ROUND;
    // The first product is exact: 9 bits times 8.
    let r = add(clamped, -(n * 0.693359375f)) - mul(n, -2.12194442e-4f);
    var p = 0.00138888892f;
    p = mul(p, r) + 0.00833333377f;
    p = mul(p, r) + 0.0416666679f;
    p = mul(p, r) + 0.166666672f;
    p = mul(p, r) + 0.5f;
    p = mul(p, r) + 1.0f;
    p = mul(p, r) + 1.0f;
    let scaled = bitcast<f32>(bitcast<u32>(p) + (bitcast<u32>(shifted) << 23u));
    return select(0.0f, scaled, t >= EXP_MIN);
}

// 1 / d for 1 <= d <= 2. Halves are exact.
fn exact_reciprocal(d: f32) -> f32 {
    let m = d * 0.5f;
    var y = 2.82352948f - mul(m, 1.88235295f);
    y = mul(y, 2.0f - mul(m, y));
    y = mul(y, 2.0f - mul(m, y));
    y = mul(y, 2.0f - mul(m, y));
    return y * 0.5f;
}

// 1 / d for the bits of a number above 0 (infinity too), cut to 2^-100 .. 2^100.
fn exact_inverse(bits: u32) -> f32 {
    let cut = clamp(bits, 27u << 23u, 227u << 23u);
    let mantissa = bitcast<f32>((cut & 0x7fffffu) | 0x3f800000u);
    return mul(exact_reciprocal(mantissa), bitcast<f32>((254u - (cut >> 23u)) << 23u));
}

// The logistic function of the float with these bits: 0 for NaN.
fn exact_sigmoid(bits: u32) -> f32 {
    if is_nan(bits) {
        return 0.0f;
    }
    let e = exact_exp(bitcast<f32>(bits | 0x80000000u));
    let r = exact_reciprocal(add(1.0f, e));
    let negative = (bits >> 31u) == 1u;
    return select(r, mul(e, r), negative || bits == 0u);
}

// ln(1 + e) for 0 <= e <= 1.
fn exact_ln_1p(e: f32) -> f32 {
    var p = 0.0053648227f;
    p = mul(p, e) - 0.030065786f;
    p = mul(p, e) + 0.07920452f;
    p = mul(p, e) - 0.13753802f;
    p = mul(p, e) + 0.19153655f;
    p = mul(p, e) - 0.24857163f;
    p = mul(p, e) + 0.33321324f;
    p = mul(p, e) - 0.49999648f;
    p = mul(p, e) + 1.0f;
    return mul(p, e);
}

// The correctly rounded square root of 0 or of a normal number that is not negative, by its bits:
// WGSL's own square root is only approximate. With y = n * 4^k and n of 47 or 48 bits, the root is
// the integer whose square is nearest to n; the difference fits 32 bits though n does not.
fn exact_sqrt(y: u32) -> f32 {
    if y == 0u {
        return 0.0f;
    }
    let mantissa = (y & 0x7fffffu) | 0x800000u;
    // 1 where the exponent is odd.
    let odd = 1u - ((y >> 23u) & 1u);
    let near = sqrt(bitcast<f32>((mantissa & 0x7fffffu) | 0x3f800000u) * f32(1u + odd));
    var root = clamp(u32(near * 8388608.0f), 0x800000u, 0xffffffu);
    let n = mantissa << (23u + odd);
    root += u32(i32(round(f32(i32(n - root * root)) / f32(2u * root))));
    let rest = i32(n - root * root);
    if rest > i32(root) {
        root += 1u;
    } else if rest <= -i32(root) {
        root -= 1u;
    }
    return bitcast<f32>((((y >> 23u) + 127u - odd) / 2u << 23u) | (root & 0x7fffffu));
}

// The square root of ln(1 + e^x) for the float with these bits: 0 for NaN.
fn exact_sqrt_softplus(bits: u32) -> f32 {
    if is_nan(bits) {
        return 0.0f;
    }
    let x = min(bits & 0x7fffffffu, 0x7f7fffffu);
    let e = exact_exp(bitcast<f32>(x | 0x80000000u));
    let positive = select(bitcast<f32>(x), 0.0f, (bits >> 31u) == 1u);
    return exact_sqrt(bitcast<u32>(add(positive, exact_ln_1p(e))));
}

// Softmax: the weight of a logit, e^(x - max), both as bits. 1 at the maximum,
// 0 for NaN, and 0 everywhere where the maximum is negative infinity.
fn softmax_weight(x: u32, maximum: u32) -> f32 {
    if is_nan(x) || maximum == 0xff800000u {
        return 0.0f;
    }
    if sort_key(x) == sort_key(maximum) {
        return 1.0f;
    }
    // Only the maximum may be +infinity: below, one infinity at most.
    if !is_finite(x) || !is_finite(maximum) {
        return 0.0f;
    }
    return exact_exp(add(bitcast<f32>(x), -bitcast<f32>(maximum)));
}

// A weight in units of 2^-31.
fn softmax_fixed(weight: f32) -> u32 {
    return u32(mul(weight, 2147483648.0f));
}

// The factor from weights to scores, scaled by 2^24, from the sum of
// softmax_fixed as (low, high).
fn softmax_factor(sum: vec2<u32>) -> f32 {
    return softmax_factor_of(sum, 31u);
}

// As softmax_factor, for weights in units of 2^-unit_bits.
fn softmax_factor_of(sum: vec2<u32>, unit_bits: u32) -> f32 {
    if (sum.x | sum.y) == 0u {
        return 0.0f;
    }
    // The sum as an f32, rounded to nearest even: 24 bits from the top.
    var top = firstLeadingBit(sum.x);
    if sum.y != 0u {
        top = 32u + firstLeadingBit(sum.y);
    }
    var mantissa = 0u;
    if top < 24u {
        mantissa = sum.x << (23u - top);
    } else {
        // `down` is 1 to 40; the rest holds the bits below the last bit that is kept.
        let down = top - 23u;
        var rest = sum.x;
        var rest_high = 0u;
        var half = 0u;
        var half_high = 0u;
        if down < 32u {
            mantissa = (sum.x >> down) | (sum.y << (32u - down));
            rest = sum.x & ((1u << down) - 1u);
            half = 1u << (down - 1u);
        } else {
            mantissa = sum.y >> (down - 32u);
            rest_high = sum.y & ((1u << (down - 32u)) - 1u);
            if down == 32u {
                half = 0x80000000u;
            } else {
                half_high = 1u << (down - 33u);
            }
        }
        let above = rest_high > half_high || (rest_high == half_high && rest > half);
        let tie = rest_high == half_high && rest == half;
        if above || (tie && (mantissa & 1u) == 1u) {
            mantissa += 1u;
        }
        if mantissa == 0x1000000u {
            mantissa = 0x800000u;
            top += 1u;
        }
    }
    let unit = bitcast<f32>((mantissa & 0x7fffffu) | 0x3f800000u);
    let scale = bitcast<f32>((151u + unit_bits - top) << 23u);
    return mul(exact_reciprocal(unit), scale);
}

// The score of an expert; 0 where the score would be subnormal.
fn softmax_score(weight: f32, factor: f32) -> f32 {
    let scaled = mul(weight, factor);
    return select(mul(scaled, 5.96046448e-8f), 0.0f, scaled < 1.97215226e-31f);
}
