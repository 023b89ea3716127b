//!include params/shared
// Floats as the bits of an f32, without any float operation, so that subnormals and NaN survive
// every driver.

// The bits of the f32 equal to an f16. Subnormals become normal numbers.
fn f16_bits(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let exponent = (half >> 10u) & 31u;
    let mantissa = half & 0x3ffu;
    if exponent == 31u {
        return sign | 0x7f800000u | (mantissa << 13u);
    }
    if exponent != 0u {
        return sign | ((exponent + 112u) << 23u) | (mantissa << 13u);
    }
    if mantissa == 0u {
        return sign;
    }
    // mantissa * 2^-24: its highest bit becomes the hidden one.
    let top = firstLeadingBit(mantissa);
    return sign | ((top + 103u) << 23u) | ((mantissa << (23u - top)) & 0x7fffffu);
}

// The bits of the f32 equal to element `index` of a tensor of `dtype`, given the word that holds
// the element: word `index` for F32, `index / 2` otherwise.
fn float_bits(word: u32, index: u32, dtype: u32) -> u32 {
    if dtype == F32 {
        return word;
    }
    let half = (word >> (16u * (index & 1u))) & 0xffffu;
    if dtype == BF16 {
        return half << 16u;
    }
    return f16_bits(half);
}

// The word that holds element `index`.
fn float_word(index: u32, dtype: u32) -> u32 {
    return select(index >> 1u, index, dtype == F32);
}

// The nearest f16 of an f32, ties to even, as bits.
fn half_of(bits: u32) -> u32 {
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u;
    }
    // 65520, half way beyond the largest f16.
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    // 2^-14, the least normal f16.
    if size >= 0x38800000u {
        return sign | ((size + 0xfffu + ((size >> 13u) & 1u) - 0x38000000u) >> 13u);
    }
    let exponent = size >> 23u;
    if exponent < 102u {
        return sign;
    }
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let shift = 126u - exponent;
    let kept = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    let up = rest > tie || (rest == tie && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}

// The nearest bf16 of an f32, ties to even, as bits.
fn bhalf_of(bits: u32) -> u32 {
    if is_nan(bits) {
        return 0x7fc0u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

// The bits of a word that must change so that element `index`, of 16 bits, becomes the nearest to
// an f32. XOR with these bits leaves the other half of the word to whoever writes that half.
fn half_change(word: u32, index: u32, bits: u32, dtype: u32) -> u32 {
    let shift = 16u * (index & 1u);
    let old = (word >> shift) & 0xffffu;
    let half = select(half_of(bits), bhalf_of(bits), dtype == BF16);
    return (old ^ half) << shift;
}

fn is_nan(bits: u32) -> bool {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

fn is_finite(bits: u32) -> bool {
    return (bits & 0x7f800000u) != 0x7f800000u;
}

// An unsigned integer that orders as the float does: -0 equals 0 and NaN
// equals negative infinity, as spec_core::exact::sort_key.
fn sort_key(bits_in: u32) -> u32 {
    var bits = bits_in;
    if is_nan(bits) {
        bits = 0xff800000u;
    }
    if bits == 0x80000000u {
        bits = 0u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// The bits of a + b in round-to-nearest-even, subnormals included, by integer
// arithmetic alone.
fn soft_add(a: u32, b: u32) -> u32 {
    if is_nan(a) || is_nan(b) {
        return 0x7fc00000u;
    }
    if !is_finite(a) {
        return select(a, 0x7fc00000u, !is_finite(b) && a != b);
    }
    if !is_finite(b) {
        return b;
    }
    // The larger magnitude first.
    let swap = (b & 0x7fffffffu) > (a & 0x7fffffffu);
    let big = select(a, b, swap);
    let small = select(b, a, swap);
    var exponent = max((big >> 23u) & 0xffu, 1u);
    let small_exponent = max((small >> 23u) & 0xffu, 1u);
    // Three bits below the last one: guard, round, sticky.
    var m = ((big & 0x7fffffu) | select(0u, 0x800000u, ((big >> 23u) & 0xffu) != 0u)) << 3u;
    var n = ((small & 0x7fffffu) | select(0u, 0x800000u, ((small >> 23u) & 0xffu) != 0u)) << 3u;
    let shift = exponent - small_exponent;
    if shift > 26u {
        n = select(0u, 1u, n != 0u);
    } else if shift > 0u {
        let lost = n & ((1u << shift) - 1u);
        n = (n >> shift) | select(0u, 1u, lost != 0u);
    }
    let sign = big & 0x80000000u;
    if ((big ^ small) >> 31u) == 1u {
        m -= n;
        if m == 0u {
            // x - x is +0; -0 + -0 does not come here.
            return 0u;
        }
    } else {
        m += n;
        if m == 0u {
            return sign;
        }
    }
    if m >= (1u << 27u) {
        m = (m >> 1u) | (m & 1u);
        exponent += 1u;
    } else {
        // Up to the hidden bit, but not below the smallest exponent.
        let up = min(26u - firstLeadingBit(m), exponent - 1u);
        m <<= up;
        exponent -= up;
    }
    let rest = m & 7u;
    m >>= 3u;
    if rest > 4u || (rest == 4u && (m & 1u) == 1u) {
        m += 1u;
    }
    // A hidden bit adds 1 to the exponent field; rounding may carry into it,
    // up to infinity.
    let field = select(exponent - 1u, 0u, m < 0x800000u);
    let bits = select((field << 23u) + m, m, m < 0x800000u);
    return sign | min(bits, 0x7f800000u);
}

fn soft_sub(a: u32, b: u32) -> u32 {
    return soft_add(a, b ^ 0x80000000u);
}
