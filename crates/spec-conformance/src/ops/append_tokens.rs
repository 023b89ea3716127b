use super::ngram::per_request;
use crate::Rng;
use crate::case::{Case, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::append_tokens::AppendTokens;
use spec_core::{DType, Result};

impl Subject for AppendTokens {
    const GOLDEN: &'static str = include_str!("../../golden/append_tokens.json");

    const STATE: &'static [&'static str] = &["finished"];

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::append_tokens::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // A text that continues, a text that stops, a text that gets full, a text that had
        // finished, and a text with an invalid token.
        let case = Case::new(AppendTokens::new())
            .in_place("tokens", [[5, 3, 0, 0, 0, 0]; 5])
            .in_place("lengths", [2; 5])
            .input("new_tokens", [[9, 8, 7], [9, 2, 7], [9, 8, 7], [9, 8, 7], [9, -1, 7]])
            .input("new_counts", [2, 3, 3, 3, 3])
            .input("stop_tokens", [[2]; 5])
            .input("max_lengths", [9, 9, 4, 9, 9])
            .in_place("finished", [0, 0, 0, 2, 0])
            .output("appended", DType::I32)
            .output("last_tokens", DType::I32);
        vec![case.in_place("flags", [0_u32])]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let batch = rng.size(if rng.rare(40) { 1100 } else { 12 });
        let max_len = rng.size(40);
        let n = if rng.rare(30) { rng.size(200) } else { rng.size(9) };
        // Only some of the calls have bad data.
        let wild = rng.pick(&[6, 1_000_000]);
        let below = rng.pick(&[3, 20, 1 << 31]);
        let token = |rng: &mut Rng| match rng.chance(4 * wild) {
            false => rng.below(below) as i64,
            true => rng.pick(&[-1, -7, i64::from(i32::MIN)]),
        };
        let size = |rng: &mut Rng, max: usize| match rng.chance(wild) {
            false => rng.below(max + 1) as i64,
            true => rng.pick(&[-1, i64::from(i32::MIN), i64::from(i32::MAX), max as i64 + 1]),
        };
        let sizes = |rng: &mut Rng, max: usize, column: bool| {
            let values = (0..batch).map(|_| size(rng, max)).collect();
            per_request(Rng::integers(rng.int_dtype(), values), column)
        };
        let tokens = |rng: &mut Rng, dtype: DType, cols: usize| {
            let values = (0..batch * cols).map(|_| token(rng)).collect();
            Tensor::matrix(Rng::integers(dtype, values), batch, cols)
        };
        let dtype = rng.token_dtype();
        let column = rng.chance(3);
        let ids = [DType::I32, DType::U32, DType::I64];
        let mut case = Case::new(AppendTokens::new());
        case = case
            .in_place("tokens", tokens(rng, dtype, max_len))
            .in_place("lengths", sizes(rng, max_len, column))
            .input("new_tokens", {
                let dtype = rng.pick(&ids);
                tokens(rng, dtype, n)
            })
            .input("new_counts", sizes(rng, n, column));
        if rng.chance(2) {
            let (dtype, stops) = (rng.pick(&ids), rng.size(4));
            case = case.input("stop_tokens", tokens(rng, dtype, stops));
        }
        if rng.chance(2) {
            case = case.input("max_lengths", sizes(rng, max_len + 3, column));
        }
        if rng.chance(2) {
            let finished = |rng: &mut Rng| i64::from(rng.pick(&[0, 0, 0, 0, 1, 2, -1]));
            let values = (0..batch).map(|_| finished(rng)).collect();
            case = case.in_place("finished", Tensor::vector(Rng::integers(DType::I32, values)));
        }
        case = case.output("appended", DType::I32);
        if rng.chance(2) {
            case = case.output("last_tokens", dtype);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }
}
