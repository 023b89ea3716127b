use super::ngram::per_request;
use super::texts;
use crate::Rng;
use crate::case::{Case, Recomposed, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::prompt_lookup::{Occurrence, PromptLookup};
use spec_core::{DType, Result};

impl Subject for PromptLookup {
    const GOLDEN: &'static str = include_str!("../../golden/prompt_lookup.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::prompt_lookup::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // Row by row: the pattern 2 3; the pattern 9 9, whose match overlaps the end; no match;
        // a length beyond the row.
        let texts = [
            [1, 2, 3, 4, 2, 3, 5, 6, 2, 3],
            [9, 9, 9, 9, 9, 9, 0, 0, 0, 0],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 0],
            [7, 1, 8, 7, 2, 8, 7, 3, 8, 7],
        ];
        let lookup = PromptLookup::new().min_ngram(1).max_draft(3);
        let rows = [Occurrence::First, Occurrence::Last].map(|occurrence| {
            Case::new(lookup.max_ngram(2).occurrence(occurrence))
                .input("tokens", texts)
                .input("lengths", [10, 6, 10, 11])
                .output("drafts", DType::I32)
                .output("counts", DType::I32)
                .in_place("flags", [0_u32])
        });
        // Requests whose texts lie in slots: no match, a match, padding, a limit of two drafts, a
        // limit of none, a slot that does not exist.
        let slots = [false, true].map(|pad_with_last| {
            Case::new(lookup.pad_with_last(pad_with_last))
                .input("tokens", [[1, 2, 3, 4, 2, 3, 0, 0], [9; 8], [5, 6, 7, 8, 0, 0, 0, 0]])
                .input("lengths", [6, 8, 4])
                .input("requests", [2, 0, -1, 1, 0, 3])
                .input("max_drafts", [3, 3, 3, 2, 0, 3])
                .output("drafts", DType::I64)
                .output("counts", DType::I32)
                .in_place("flags", [0_u32])
        });
        rows.into_iter().chain(slots).collect()
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let (batch, max_len) = match rng.rare(60) {
            // A text so long that several threads, blocks or workgroups share it.
            true if rng.rare(120) => (rng.between(1, 2), rng.between(60_000, 90_000)),
            true if rng.chance(2) => (rng.between(1000, 1300), rng.size(24)),
            true => (rng.between(1, 3), rng.size(9000)),
            false if rng.chance(8) => (rng.size(48), rng.size(500)),
            false => (rng.size(12), rng.size(150)),
        };
        let max_ngram = if rng.chance(8) { rng.between(1, 200) } else { rng.between(1, 6) };
        let max_draft = if rng.chance(8) { rng.size(300) } else { rng.size(12) };
        let operator = PromptLookup::new()
            .min_ngram(rng.between(1, max_ngram))
            .max_ngram(max_ngram)
            .max_draft(max_draft)
            .occurrence(rng.choice())
            .pad_with_last(rng.chance(3));
        let token = rng.token_dtype();
        let slots = texts::slots(rng, batch);
        let tokens = (0..slots).flat_map(|_| text(rng, max_len)).collect();
        let wild = rng.pick(&[12, 1_000_000]);
        let lengths: Vec<i64> = (0..slots)
            .map(|_| match rng.chance(wild) {
                false => rng.between(max_len / 2, max_len) as i64,
                true => rng.pick(&[0, -1, i64::MIN, i64::MAX, 1 << 31, max_len as i64 + 1, 1]),
            })
            .collect();
        let lengths = Rng::integers(rng.int_dtype(), lengths);
        let column = rng.chance(3);
        let counts: &[usize] = if column { &[batch, 1] } else { &[batch] };
        let case = Case::new(operator)
            .input("tokens", Tensor::matrix(Rng::integers(token, tokens), slots, max_len))
            .input("lengths", per_request(lengths, column));
        texts::with_requests(case, rng, (slots, batch), max_draft)
            .output("drafts", texts::drafts_dtype(rng, token))
            .output_of("counts", DType::I32, counts)
            .in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the requests, in another order, some of them twice.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        texts::recomposed(case, rng, &["drafts", "counts"])
    }
}

/// A text in which patterns recur. It is either random letters of a small or large alphabet, some
/// of which may differ only in their high 32 bits; or a period that repeats, with some letters
/// changed.
fn text(rng: &mut Rng, length: usize) -> Vec<i64> {
    let letters = rng.pick(&[1, 2, 3, 5, 40, 5000]);
    let high = rng.chance(4);
    let letter = |rng: &mut Rng| match rng.below(letters) as i64 {
        // Letters that are equal in their low halves; -1 is among them.
        i if high => ((i % 7) - 3) << 32 | (i / 7),
        i => i - 1,
    };
    let period: Vec<i64> = (0..rng.between(1, 300)).map(|_| letter(rng)).collect();
    let errors = rng.pick(&[0, 0, 30, 400]);
    (0..length)
        .map(|i| match errors {
            0 => letter(rng),
            errors if rng.chance(errors) => letter(rng),
            _ => period[i % period.len()],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::texts::are_in_slots;
    use super::*;
    use crate::tests::{balanced, flags, integers, results, share};
    use spec_core::ops::prompt_lookup::Occurrence::First;

    #[test]
    fn random_texts_get_everywhere() {
        let runs = results::<PromptLookup>(300);
        assert_eq!(flags(&runs), 4);
        let drafts = runs.iter().flat_map(|(_, results)| integers(results, "counts"));
        balanced(share(drafts.map(|n| n > 0)), "requests with drafts");
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
        balanced(share(runs.iter().map(|(case, _)| case.operator.occurrence == First)), "first");
        let columns =
            runs.iter().map(|(case, _)| case.get("lengths").is_some_and(|t| t.shape.len() == 2));
        balanced(share(columns), "lengths as a column");
        balanced(share(runs.iter().map(|(case, _)| case.operator.pad_with_last)), "padded");
        are_in_slots(&runs);
    }
}
