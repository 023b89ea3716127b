//!include u64
// Philox4x32-10, as in spec_core::philox: a draw depends on its key and its counter alone.

fn philox(counter_in: vec4<u32>, key_in: vec2<u32>) -> vec4<u32> {
    var counter = counter_in;
    var key = key_in;
    for (var round = 0u; round < 10u; round++) {
        let a = u32_mul(counter.x, 0xD2511F53u);
        let b = u32_mul(counter.z, 0xCD9E8D57u);
        counter = vec4(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += vec2(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}
