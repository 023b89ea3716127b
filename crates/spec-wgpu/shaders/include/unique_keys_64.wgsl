// 64-bit keys of `unique`, the lower word first.

const WORDS = 2u;

alias Stored = vec2<u32>;

fn key_of(stored: Stored) -> vec2<u32> {
    return stored;
}

fn stored_of(key: vec2<u32>) -> Stored {
    return key;
}

// Makes signed keys order as unsigned ones: `sign` is the highest bit of a signed key, or 0.
fn ordered(key: vec2<u32>, sign: u32) -> vec2<u32> {
    return vec2(key.x, key.y ^ sign);
}
