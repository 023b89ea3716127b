// Philox4x32-10 (Salmon et al., 2011). Needs u64.wgsl.

// The position that stands for the draw of the recovered token.
const RECOVERY_POSITION = 0xFFFFFFFFu;

fn philox4x32_10(start: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = seed;
    for (var round = 0u; round < 10u; round++) {
        let a = mul_wide(counter.x, 0xD2511F53u);
        let b = mul_wide(counter.z, 0xCD9E8D57u);
        counter = vec4<u32>(b.y ^ counter.y ^ key.x, b.x, a.y ^ counter.w ^ key.y, a.x);
        key += vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return counter;
}
