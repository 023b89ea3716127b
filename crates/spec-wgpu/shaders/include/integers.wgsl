// Integers of one or two words, as tensors of i32, u32 and i64 hold them.

// The 64 bits (low, high) of an integer, from its first word, its last word (the same word for an
// integer of one word), and its number of words. A single word is taken for an i32, whose sign
// fills the high word: a u32 holds tokens and indices, and -1 as the bits of an i32.
fn integer(first: u32, last: u32, words: u32) -> vec2<u32> {
    let sign = bitcast<u32>(bitcast<i32>(first) >> 31u);
    return vec2(first, select(sign, last, words == 2u));
}

// A length of 64 bits, cut to 0 ..= most.
fn cut_length(length: vec2<u32>, limit: u32) -> u32 {
    if bitcast<i32>(length.y) < 0 {
        return 0u;
    }
    return select(min(length.x, limit), limit, length.y != 0u);
}

// Whether cutting a length of 64 bits gave another number.
fn is_cut(length: vec2<u32>, to: u32) -> bool {
    return length.x != to || length.y != 0u;
}

// The row that an entry of `requests` names: the entry if 32 bits hold it, -1 included, else a
// number that no row has.
fn row_of(entry: vec2<u32>) -> u32 {
    let sign = bitcast<u32>(bitcast<i32>(entry.x) >> 31u);
    return select(0xfffffffeu, entry.x, entry.y == sign);
}
