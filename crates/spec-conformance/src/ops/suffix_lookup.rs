use super::ngram::per_request;
use super::texts;
use crate::Rng;
use crate::case::{Case, Recomposed, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::suffix_lookup::SuffixLookup;
use spec_core::{DType, Result};

impl Subject for SuffixLookup {
    const GOLDEN: &'static str = include_str!("../../golden/suffix_lookup.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::suffix_lookup::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // Behind 1 2 3 stands 5 twice and 4 once, in the request's own text and in the corpus.
        let texts = [
            [1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3, 0],
            [6, 6, 6, 6, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 0, 0, 0],
        ];
        let case = |width| {
            Case::new(SuffixLookup::new().width(width))
                .input("tokens", texts)
                .input("lengths", [13, 6, 9])
                // The last request has a slot that does not exist.
                .input("requests", [0, 1, 2, 3])
                .input("max_drafts", [4, 2, 4, 4])
                .input("corpus", [1, 2, 3, 5, 7, -1, 8, 9, 4])
                .output_of("drafts", DType::I32, &[4, 4])
                .output("counts", DType::I32)
                .output("parents", DType::I32)
                .output("first_child", DType::I32)
                .output("next_sibling", DType::I32)
                .output("shares", DType::F32)
                .output("match_lengths", DType::I32)
                .in_place("flags", [0_u32])
        };
        [1, 2].map(case).into()
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let (many_requests, long_texts) = (rng.rare(60), rng.rare(30));
        let batch = rng.size(if many_requests { 200 } else { 6 });
        let max_len = rng.size(if long_texts { 3000 } else { 90 });
        let many_drafts = rng.chance(6);
        let n = rng.size(if many_drafts { 64 } else { 12 });
        let max_match = rng.pick(&[1, 2, 3, 8, 16, 64]);
        let operator = SuffixLookup::new()
            .min_match(rng.between(1, max_match.min(3)))
            .max_match(max_match)
            .max_windows(rng.pick(&[1, 2, 8, 64, 64, 1024]))
            .width(rng.pick(&[1, 1, 2, 3, 4, 100]))
            .min_share(rng.pick(&[0.0, 0.0, 0.1, 0.3, 0.7, 1.0]))
            .drafts_per_match(rng.pick(&[64.0, 64.0, 64.0, 0.0, 0.4, 1.0, 3.3]))
            .pad_with_last(rng.chance(3));
        let dtype = rng.token_dtype();
        let words = Words::new(rng);
        let slots = texts::slots(rng, batch);
        let texts = (0..slots).flat_map(|_| words.text(rng, max_len)).collect();
        let wild = rng.pick(&[8, 1_000_000]);
        let length = |rng: &mut Rng, max: usize| match rng.chance(wild) {
            false => rng.between(max / 2, max) as i64,
            true => rng.pick(&[0, -1, i64::MIN, i64::MAX, 1 << 31, max as i64 + 1, 1]),
        };
        let lengths = (0..slots).map(|_| length(rng, max_len)).collect();
        let lengths = Rng::integers(rng.int_dtype(), lengths);
        let column = rng.chance(3);
        let mut case = Case::new(operator)
            .input("tokens", Tensor::matrix(Rng::integers(dtype, texts), slots, max_len))
            .input("lengths", per_request(lengths, column));
        case = texts::with_requests(case, rng, (slots, batch), n);
        if rng.chance(2) {
            // Some corpora are so long that several threads, blocks or workgroups share them.
            let m = if rng.rare(15) { rng.between(8_000, 40_000) } else { rng.size(200) };
            case = case.input("corpus", Tensor::vector(Rng::integers(dtype, words.text(rng, m))));
            if rng.chance(2) {
                let length = vec![length(rng, m)];
                let length = Rng::integers(rng.int_dtype(), length);
                case = case.input("corpus_length", Tensor::vector(length));
            }
        }
        let counts: &[usize] = if column { &[batch, 1] } else { &[batch] };
        let drafts = texts::drafts_dtype(rng, dtype);
        case =
            case.output_of("drafts", drafts, &[batch, n]).output_of("counts", DType::I32, counts);
        let optional = [
            ("parents", DType::I32),
            ("first_child", DType::I32),
            ("next_sibling", DType::I32),
            ("shares", DType::F32),
            ("match_lengths", DType::I32),
        ];
        case = case.some_outputs(rng, optional);
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let written = [
            "drafts",
            "counts",
            "parents",
            "first_child",
            "next_sibling",
            "shares",
            "match_lengths",
        ];
        texts::recomposed(case, rng, &written)
    }
}

/// The phrases from which all texts of a case are made, so that suffixes of a text occur in other
/// texts.
struct Words {
    phrases: Vec<Vec<i64>>,
    /// One token in this many is replaced by a random one; 0 for none.
    errors: usize,
    letters: usize,
    high: bool,
}

impl Words {
    fn new(rng: &mut Rng) -> Self {
        let letters = rng.pick(&[1, 2, 3, 6, 40, 5000]);
        let high = rng.chance(4);
        let count = rng.between(1, 5);
        let phrase = |rng: &mut Rng| {
            let length = rng.between(1, 20);
            (0..length).map(|_| letter(rng, letters, high)).collect()
        };
        let phrases = (0..count).map(|_| phrase(rng)).collect();
        Words { phrases, errors: rng.pick(&[0, 4, 20, 200]), letters, high }
    }

    fn text(&self, rng: &mut Rng, length: usize) -> Vec<i64> {
        let mut text = Vec::with_capacity(length + 20);
        while text.len() < length {
            text.extend(rng.pick(&self.phrases));
        }
        text.truncate(length);
        for token in &mut text {
            if self.errors > 0 && rng.chance(self.errors) {
                *token = letter(rng, self.letters, self.high);
            }
        }
        text
    }
}

/// A random token; -1 for some. With `high`, some tokens are equal in their low 32 bits.
fn letter(rng: &mut Rng, letters: usize, high: bool) -> i64 {
    match rng.below(letters + 1) as i64 {
        i if high => ((i % 7) - 2) << 32 | (i / 7),
        i if i as usize == letters && rng.chance(3) => -1,
        i => i,
    }
}

#[cfg(test)]
mod tests {
    use super::super::texts::are_in_slots;
    use super::*;
    use crate::tests::{balanced, flags, results, share};

    #[test]
    fn random_texts_get_everywhere() {
        let runs = results::<SuffixLookup>(300);
        assert_eq!(flags(&runs), 4);
        balanced(share(runs.iter().map(|(case, _)| case.operator.pad_with_last)), "padded");
        are_in_slots(&runs);
    }
}
