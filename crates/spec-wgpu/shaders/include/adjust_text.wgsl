// How adjust_logits reads the text of a row: the text of the row's request, then the drafts on the
// way down to the row. This file is a part of that shader and uses its declarations.

// What of a row's text is needed to read it.
struct Text {
    request: u32,
    length: u32,
    depth: u32,
}

fn text_of(row: u32, request: u32) -> Text {
    return Text(request, load(row, LENGTH), load(row, DEPTH));
}

// Token `index` of a request's text.
fn text_token(text: Text, index: u32) -> vec2<u32> {
    let words = params.token_words;
    let at = (params.at.b2 + text.request * params.tokens_stride + index) * words;
    return integer(tokens[at], tokens[at + words - 1u], words);
}

// The token of a place `back` tokens before the last: that of the draft at `row` of all rows,
// or, behind the drafts, one of the request's text.
fn token_back(text: Text, row: u32, back: u32) -> vec2<u32> {
    if back < text.depth {
        let words = params.draft_words;
        let at = (params.at.b3 + row) * words;
        return integer(draft_tokens[at], draft_tokens[at + words - 1u], words);
    }
    return text_token(text, text.length - 1u - (back - text.depth));
}

// The row of the draft before that of `row`, which is `back` before the last.
fn row_before(text: Text, row: u32, back: u32) -> u32 {
    if back < text.depth {
        // Again within bounds, whatever another queue may write meanwhile.
        return min(u32(max(parents[params.at.b4 + row], 0)), params.rows - 1u);
    }
    return row;
}

// The row of the draft that stands `back` tokens before the last one of the text of row `last`, or
// of the first draft where that token belongs to the request's own text.
fn row_at(text: Text, last: u32, back: u32) -> u32 {
    var row = last;
    for (var i = 0u; i < min(back, text.depth); i++) {
        row = row_before(text, row, i);
    }
    return row;
}

fn differ(text: Text, back: u32, j: u32, count: u32) -> bool {
    if j >= count {
        return false;
    }
    // Both places lie in the request's text.
    let own = text_token(text, text.length - 1u - (j - text.depth));
    let other = text_token(text, text.length - 1u - (back + j - text.depth));
    return any(own != other);
}

// Whether the `count` tokens that end `back` before the last are those that end the text. The
// draft there is that of `row` of all rows, the last one that of `last`.
fn repeats(text: Text, last: u32, row: u32, back: u32, count: u32) -> bool {
    var own = last;
    var other = row;
    var j = 0u;
    while j < count && j < text.depth {
        if any(token_back(text, own, j) != token_back(text, other, back + j)) {
            return false;
        }
        own = row_before(text, own, j);
        other = row_before(text, other, back + j);
        j += 1u;
    }
    // Four a turn: see the rules for turns in src/ops/mod.rs.
    while j < count {
        if differ(text, back, j, count) || differ(text, back, j + 1u, count)
            || differ(text, back, j + 2u, count) || differ(text, back, j + 3u, count) {
            return false;
        }
        j += 4u;
    }
    return true;
}

// How many of the tokens that end `back` before the last equal those that end the text, up to `max`.
// The draft there is that of `row` of all rows, the last one that of `last`.
fn match_length(text: Text, last: u32, row: u32, back: u32, max: u32) -> u32 {
    var own = last;
    var other = row;
    for (var j = 0u; j < max; j++) {
        if any(token_back(text, own, j) != token_back(text, other, back + j)) {
            return j;
        }
        own = row_before(text, own, j);
        other = row_before(text, other, back + j);
    }
    return max;
}
