//!include floats
//!include u64
// The arithmetic that decides a token of rejection_sample or sample_logits, as in spec_core::exact,
// on the bits of f32: a shader compiler may assume that NaN, infinities and subnormal numbers do
// not occur.

const INFINITY_BITS = 0x7f800000u;

// Shifts by 0 to 63. WGSL takes a u32's shift count modulo 32, so bits that cross between the
// halves are shifted in two steps: a single shift by 32 would shift by 0.
fn u64_shl(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 32u {
        return vec2(0u, a.x << (n - 32u));
    }
    return vec2(a.x << n, (a.y << n) | ((a.x >> 1u) >> (31u - n)));
}

fn u64_shr(a: vec2<u32>, n: u32) -> vec2<u32> {
    if n >= 32u {
        return vec2(a.y >> (n - 32u), 0u);
    }
    return vec2((a.x >> n) | ((a.y << 1u) << (31u - n)), a.y >> n);
}

// The product of two finite floats, rounded to nearest even, as in IEEE 754: subnormal numbers are
// kept, and a product that is too large is infinite.
fn multiply_bits(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & 0x80000000u;
    var x = a & 0x7fffffu;
    var y = b & 0x7fffffu;
    var i = i32((a >> 23u) & 255u);
    var j = i32((b >> 23u) & 255u);
    if (i == 0 && x == 0u) || (j == 0 && y == 0u) {
        return sign;
    }
    if i == 0 {
        let shift = countLeadingZeros(x) - 8u;
        x <<= shift;
        i = 1 - i32(shift);
    } else {
        x |= 0x800000u;
    }
    if j == 0 {
        let shift = countLeadingZeros(y) - 8u;
        y <<= shift;
        j = 1 - i32(shift);
    } else {
        y |= 0x800000u;
    }
    // 2^46 <= product < 2^48. Keeps 24 bits and two more bits to round by; the last of these also
    // says whether any dropped bit was 1.
    let product = u32_mul(x, y);
    let wide = select(0, 1, (product.y & 0x8000u) != 0u);
    var exponent = i + j - 127 + wide;
    var shift = u32(21 + wide);
    if exponent < 1 {
        shift = min(shift + u32(1 - exponent), 63u);
        exponent = 1;
    }
    let kept = u64_shr(product, shift);
    let dropped = any(u64_shl(kept, shift) != product);
    let bits = kept.x | select(0u, 1u, dropped);
    let up = (bits & 3u) == 3u || (bits & 7u) == 6u;
    let mantissa = (bits >> 2u) + select(0u, 1u, up);
    // The leading bit of a normal mantissa adds 1 to the exponent field.
    let magnitude = (u32(exponent - 1) << 23u) + mantissa;
    return sign | select(magnitude, INFINITY_BITS, exponent >= 255 || magnitude >= INFINITY_BITS);
}

// A finite float times 2^100 (up) or 2^-100. The result is exact, or so small that it does not
// affect a sum with a number above 2^23.
fn rescaled(bits: u32, up: bool) -> f32 {
    let sign = bits & 0x80000000u;
    let exponent = (bits >> 23u) & 255u;
    if up {
        if exponent == 0u {
            let magnitude = f32(bits & 0x7fffffu) * bitcast<f32>((127u - 49u) << 23u);
            return bitcast<f32>(bitcast<u32>(magnitude) | sign);
        }
        return bitcast<f32>(bits + (100u << 23u));
    }
    return bitcast<f32>(select(bits - (100u << 23u), sign, exponent <= 100u));
}

// The bits of max(0, a - b), with the difference rounded once as f32; not finite where a, b or the
// difference is not.
//
// Where the exponents are in the middle, the device's own subtraction is exact enough: neither a
// subnormal number nor an overflow can result, and if the smaller operand is subnormal and read as
// 0, the difference rounds alike. Other operands are first scaled to the middle.
fn residual_bits(a: u32, b: u32) -> u32 {
    let i = (a >> 23u) & 255u;
    let j = (b >> 23u) & 255u;
    let largest = max(i, j);
    if largest - 32u < 218u {
        let difference = bitcast<u32>(bitcast<f32>(a) - bitcast<f32>(b));
        return select(difference, 0u, (difference >> 31u) == 1u);
    }
    if largest == 255u {
        return INFINITY_BITS;
    }
    if largest < 32u {
        if sort_key(a) <= sort_key(b) {
            return 0u;
        }
        let difference = bitcast<u32>(rescaled(a, true) - rescaled(b, true));
        let exponent = difference >> 23u;
        if exponent > 100u {
            return difference - (100u << 23u);
        }
        // Subnormal: a multiple of 2^-149, so nothing is shifted out.
        return ((difference & 0x7fffffu) | 0x800000u) >> (101u - exponent);
    }
    let difference = bitcast<u32>(rescaled(a, false) - rescaled(b, false));
    if ((difference >> 23u) & 255u) + 100u >= 255u {
        return INFINITY_BITS;
    }
    if (difference >> 31u) == 1u || difference == 0u {
        return 0u;
    }
    return difference + (100u << 23u);
}

// floor(min(r, 1) * 2^40) for finite r >= 0, from its bits.
fn fixed_probability(bits: u32) -> vec2<u32> {
    let exponent = bits >> 23u;
    if exponent >= 127u {
        return vec2(0u, 256u);
    }
    // r = mantissa * 2^(exponent - 150); subnormal numbers are far below 2^-40.
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    if exponent >= 110u {
        return u64_shl(vec2(mantissa, 0u), exponent - 110u);
    }
    return vec2(select(0u, mantissa >> (110u - exponent), exponent > 86u), 0u);
}
