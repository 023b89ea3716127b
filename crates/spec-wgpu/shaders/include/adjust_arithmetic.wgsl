// The arithmetic of adjust_logits: on bits, since devices differ in subnormal numbers. This file is
// a part of that shader and uses its declarations.

// The bits of a number, or of a zero of its sign where the number is subnormal.
fn flushed(bits: u32) -> u32 {
    return select(bits, bits & 0x80000000u, (bits & 0x7f800000u) == 0u);
}

// The bits of a product that is finite or overflows, flushed. No factor is subnormal, and none is
// NaN or infinite.
fn product(a: u32, b: u32) -> u32 {
    let sign = (a ^ b) & 0x80000000u;
    let ea = (a >> 23u) & 255u;
    let eb = (b >> 23u) & 255u;
    if ea == 0u || eb == 0u || ea + eb < 127u {
        return sign;
    }
    if ea + eb == 127u {
        // The product lies around the smallest normal number, where devices that flush subnormal
        // numbers differ. Here are its leading bits: 2^24 stands for the smallest normal number,
        // and one less is rounded up to it.
        let ma = (a & 0x7fffffu) | 0x800000u;
        let mb = (b & 0x7fffffu) | 0x800000u;
        let high = (ma >> 12u) * (mb >> 12u);
        let low = (ma & 0xfffu) * (mb & 0xfffu);
        let middle = (ma >> 12u) * (mb & 0xfffu) + (ma & 0xfffu) * (mb >> 12u);
        let leading = 2u * high + ((middle + (low >> 12u)) >> 11u);
        if leading < 0xffffffu {
            return sign;
        }
        if leading == 0xffffffu {
            return sign | 0x800000u;
        }
    }
    return bitcast<u32>(mul(bitcast<f32>(a), bitcast<f32>(b)));
}

// x * inverse(r) where x > 0, else x * r, for bits of x and of r, which is above 0 and finite.
fn repeated(x: u32, r: u32) -> u32 {
    // A NaN, an infinity or a zero stays what it is.
    if !is_finite(x) || (x & 0x7fffffffu) == 0u {
        return x;
    }
    return product(x, select(r, bitcast<u32>(exact_inverse(r)), (x >> 31u) == 0u));
}

fn plus(x: u32, y: u32) -> u32 {
    return flushed(add_bits(x, y));
}

fn minus(x: u32, y: u32) -> u32 {
    return plus(x, y ^ 0x80000000u);
}
