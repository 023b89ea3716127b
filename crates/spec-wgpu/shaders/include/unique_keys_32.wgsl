// 32-bit keys of `unique`, as two words of which the upper one is 0.

const WORDS = 1u;

alias Stored = u32;

fn key_of(stored: Stored) -> vec2<u32> {
    return vec2(stored, 0u);
}

fn stored_of(key: vec2<u32>) -> Stored {
    return key.x;
}

// Makes signed keys order as unsigned ones: `sign` is the highest bit of a signed key, or 0.
fn ordered(key: vec2<u32>, sign: u32) -> vec2<u32> {
    return vec2(key.x ^ sign, 0u);
}
