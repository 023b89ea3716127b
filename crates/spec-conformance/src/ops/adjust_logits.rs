use crate::Rng;
use crate::argument::Argument;
use crate::case::{Case, Recomposed, Rows, Subject};
use crate::plain;
use crate::tensor::{Data, Tensor};
use spec_core::ops::adjust_logits::AdjustLogits;
use spec_core::{DType, Result};

/// The sizes of a random case.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    columns: usize,
    /// The token of the first column.
    first: usize,
    /// The size of the vocabulary; more than the columns, or less, where they are a part of it.
    vocab: usize,
    requests: usize,
    max_len: usize,
    /// How many different tokens most of the text has, as far as the vocabulary has them.
    letters: usize,
    /// One in this many values is bad.
    wild: usize,
    /// The factor of logits, biases and penalties, but not of repetition: 1, or so small that many
    /// results are subnormal.
    unit: f32,
}

impl Sizes {
    fn token(&self, rng: &mut Rng) -> i64 {
        match rng.chance(self.wild) {
            true => rng.pick(&[-1, self.vocab as i64, i64::from(i32::MAX), i64::from(i32::MIN)]),
            // In a part of a vocabulary, some of these tokens have no column.
            false => {
                let first = self.first.saturating_sub(self.letters / 2);
                ((first + rng.below(self.letters)) % self.vocab.max(1)) as i64
            }
        }
    }

    /// Offsets of `parts` parts into a list of `len` elements.
    fn offsets(&self, rng: &mut Rng, parts: usize, len: usize) -> Vec<i32> {
        let mut offsets: Vec<i32> = (0..=parts).map(|_| rng.between(0, len) as i32).collect();
        offsets.sort_unstable();
        if rng.chance(2) {
            // The first and the last element belong to a part.
            (offsets[0], offsets[parts]) = (0, len as i32);
        }
        for offset in &mut offsets {
            if rng.chance(self.wild) {
                *offset = rng.pick(&[-1, len as i32 + 1, i32::MAX, i32::MIN, 0]);
            }
        }
        offsets
    }

    fn penalties(&self, rng: &mut Rng, none: f32, from: f32) -> Tensor {
        let one = |rng: &mut Rng| match rng.below(8) {
            0 => none,
            1 if rng.chance(self.wild) => rng.bad_float(),
            _ => self.unit * (from + 2.0 * rng.unit()),
        };
        Tensor::vector((0..self.requests).map(|_| one(rng)).collect::<Vec<f32>>())
    }

    fn small(&self, rng: &mut Rng, high: usize) -> Tensor {
        let one = |rng: &mut Rng| match rng.chance(self.wild) {
            true => rng.pick(&[-1, i32::MAX, i32::MIN, self.max_len as i32 + 1]),
            false => rng.size(high) as i32,
        };
        Tensor::vector((0..self.requests).map(|_| one(rng)).collect::<Vec<i32>>())
    }

    /// Adds logits and texts to a case. Texts have the lists of a thinking budget in them, and some
    /// texts repeat themselves.
    fn texts(
        &self,
        rng: &mut Rng,
        case: Case<AdjustLogits>,
        think: Option<&Think>,
    ) -> Case<AdjustLogits> {
        let Sizes { rows, columns, requests, max_len, wild, unit, .. } = *self;
        let float = rng.float_dtype();
        let scale = unit * rng.pick(&[0.1, 3.0, 20.0]);
        let logits = (0..rows * columns).map(|_| match rng.chance(40) {
            true => rng.bad_float(),
            false => rng.normal() * scale,
        });
        let logits = Rng::floats(float, logits.collect());
        let length = |rng: &mut Rng| match rng.chance(wild) {
            true => rng.pick(&[-1, i64::MIN, i64::from(i32::MAX), max_len as i64 + 1]),
            false => rng.between(0, max_len) as i64,
        };
        let lengths: Vec<i64> = (0..requests).map(|_| length(rng)).collect();
        let mut tokens: Vec<i64> = (0..requests * max_len).map(|_| self.token(rng)).collect();
        for (text, &length) in tokens.chunks_mut(max_len.max(1)).zip(&lengths) {
            if rng.chance(3) {
                let period = rng.pick(&[7, 70, 150]);
                (period..max_len).for_each(|at| text[at] = text[at - period]);
            }
            if let Some(think) = think {
                think.write(rng, text, length.clamp(0, max_len as i64) as usize);
            }
        }
        let token = rng.pick(&[DType::I64, DType::I32]);
        let lengths = Rng::integers(rng.int_dtype(), lengths);
        // Some prompts are longer than their text.
        let prompts = (0..requests).map(|_| length(rng) / rng.pick(&[1, 4])).collect();
        let prompts = Rng::integers(rng.int_dtype(), prompts);
        case.in_place("logits", Tensor::matrix(logits, rows, columns))
            .input("tokens", Tensor::matrix(Rng::integers(token, tokens), requests, max_len))
            .input("prompt_lengths", Tensor::vector(prompts))
            .input("lengths", Tensor::vector(lengths))
    }

    /// The requests of the rows; one in `changes` rows has another request than the row before it.
    fn requests_of_rows(&self, rng: &mut Rng, changes: usize) -> Tensor {
        let mut request = 0;
        let of_rows = (0..self.rows).map(|row| {
            if row == 0 || rng.chance(changes) {
                request = rng.below(self.requests) as i32;
            }
            match rng.chance(2 * self.wild) {
                true => rng.pick(&[-1, self.requests as i32, i32::MIN, i32::MAX]),
                false => request,
            }
        });
        Tensor::vector(of_rows.collect::<Vec<i32>>())
    }

    /// Adds biases, stop tokens and bad words to a case.
    fn lists(&self, rng: &mut Rng, mut case: Case<AdjustLogits>, long: bool) -> Case<AdjustLogits> {
        let requests = self.requests;
        if rng.chance(2) {
            let high = if long { 3000 } else { 40 };
            let count = rng.size(high);
            let values = (0..count).map(|_| match rng.chance(10) {
                true => rng.bad_float(),
                false => rng.normal() * self.unit,
            });
            let values: Vec<f32> = values.collect();
            case = case
                .input("bias_offsets", Tensor::vector(self.offsets(rng, requests, count)))
                .input("bias_tokens", Tensor::vector(self.tokens(rng, count)))
                .input("bias_values", Tensor::vector(values));
        }
        if rng.chance(3) {
            let count = rng.size(5);
            let stops = self.tokens(rng, requests * count);
            let stops = Tensor::matrix(stops, requests, count);
            let min_tokens = self.small(rng, self.max_len);
            case = case.input("min_tokens", min_tokens).input("stop_tokens", stops);
        }
        if rng.chance(2) {
            let (words, count) = (rng.size(30), rng.size(90));
            case = case
                .input("bad_offsets", Tensor::vector(self.offsets(rng, requests, words)))
                .input("word_offsets", Tensor::vector(self.offsets(rng, words, count)))
                .input("word_tokens", Tensor::vector(self.tokens(rng, count)));
        }
        case
    }

    fn tokens(&self, rng: &mut Rng, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.token(rng) as i32).collect()
    }

    /// The parents of the rows, which form chains and trees, sometimes with invalid parents or a
    /// cycle.
    fn parents(&self, rng: &mut Rng) -> Vec<i32> {
        let chains = rng.pick(&[2, 6, 1_000_000]);
        let one = |rng: &mut Rng, row: usize| match row {
            _ if rng.chance(2 * self.wild) => {
                rng.pick(&[-2, i32::MIN, i32::MAX, self.rows as i32, row as i32, 0])
            }
            0 => -1,
            row if rng.chance(chains) => rng.between(0, row) as i32 - 1,
            row => row as i32 - 1,
        };
        let mut parents: Vec<i32> = (0..self.rows).map(|row| one(rng, row)).collect();
        if rng.chance(self.wild) && self.rows > 1 {
            // A cycle.
            let (a, b) = (rng.below(self.rows), rng.below(self.rows));
            (parents[a], parents[b]) = (b as i32, a as i32);
        }
        parents
    }

    /// Adds DRY to a case.
    fn dry(&self, rng: &mut Rng, case: Case<AdjustLogits>) -> Case<AdjustLogits> {
        let base = |rng: &mut Rng| match rng.below(8) {
            0 => 1.0,
            // With these, a few tokens more make the penalty infinite.
            1 => rng.pick(&[1e10, f32::MAX]),
            2 if rng.chance(self.wild) => rng.bad_float(),
            3 if rng.chance(self.wild) => rng.pick(&[0.999, 0.0]),
            _ => 1.0 + 2.0 * rng.unit(),
        };
        let bases: Vec<f32> = (0..self.requests).map(|_| base(rng)).collect();
        let allowed = self.small(rng, 4);
        let mut case = case
            .input("dry_multiplier", self.penalties(rng, 0.0, 0.05))
            .input("dry_base", Tensor::vector(bases))
            .input("dry_allowed_length", allowed);
        if rng.chance(2) {
            case = case.input("dry_range", self.small(rng, self.max_len));
        }
        if rng.chance(2) {
            let high = rng.pick(&[1, 3, 200]);
            let count = rng.size(high);
            // Most texts keep a token that is no breaker.
            let breakers = (0..count).map(|_| match rng.chance(3) {
                true => self.token(rng) as i32,
                false => self.vocab as i32 - rng.size(5) as i32,
            });
            case = case.input("dry_breakers", Tensor::vector(breakers.collect::<Vec<i32>>()));
        }
        case
    }
}

/// The lists of a thinking budget.
struct Think {
    start: Vec<i32>,
    end: Vec<i32>,
    forced: Vec<i32>,
}

impl Think {
    fn random(rng: &mut Rng, sizes: &Sizes, long: bool) -> Self {
        let high = if long { 1024 } else { rng.pick(&[1, 3, 3, 12]) };
        let mut list = || {
            let count = rng.between(1, high);
            sizes.tokens(rng, count)
        };
        let (start, end, forced) = (list(), list(), list());
        let mut think = Think { start, end, forced };
        match rng.below(10) {
            0 | 1 => think.start.clear(),
            2 => think.forced.extend_from_slice(&think.end),
            3 => think.end.clone_from(&think.start),
            4 => think.end.clear(),
            5 => think.forced.clear(),
            _ => {}
        }
        think.forced.truncate(1024);
        think
    }

    /// Writes the lists to some places of a text of `len` tokens, so that budgets run out in all
    /// states of a thinking.
    fn write(&self, rng: &mut Rng, text: &mut [i64], len: usize) {
        let mut put = |end: usize, list: &[i32]| {
            if let Some(start) = end.checked_sub(list.len()) {
                text[start..end].iter_mut().zip(list).for_each(|(to, &token)| *to = token.into());
            }
        };
        for list in [&self.start, &self.end, &self.forced] {
            if rng.chance(2) {
                put(rng.between(0, len), list);
            }
        }
        // The first tokens of `forced`, or all of them, end the text.
        if rng.chance(2) {
            let count = rng.between(0, self.forced.len());
            put(len, &self.forced[..count]);
            if rng.chance(2) {
                put(len - count.min(len), &self.start);
            }
        }
    }
}

/// The operator on columns that are a part of a vocabulary. In some calls the last columns stand for
/// no token of the vocabulary, as where an engine pads the columns.
fn part_of_vocabulary(rng: &mut Rng, operator: AdjustLogits, columns: usize) -> AdjustLogits {
    let first = rng.size(2 * columns);
    let vocab = match rng.below(4) {
        0 => 0,
        1 => first + rng.between(0, columns),
        _ => first + columns + rng.size(2 * columns),
    };
    operator.first_token(first as i32).vocab(vocab as i32)
}

impl Subject for AdjustLogits {
    const GOLDEN: &'static str = include_str!("../../golden/adjust_logits.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::adjust_logits::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        // A text of four tokens, two of them generated, and two drafts after it, one of which the
        // vocabulary does not have; then a text alone, with a bias, stop tokens and a bad word.
        let case = Case::new(AdjustLogits::new())
            .in_place("logits", [[1.0, 1.0, -1.0, 0.5, 2.0, 3.0]; 4])
            .input("tokens", [[0, 1, 2, 1], [5, 4, 0, 0]])
            .input("prompt_lengths", [2, 1])
            .input("lengths", [4, 2])
            .input("requests", [0, 0, 0, 1])
            .input("draft_tokens", [1, 2, 6, 4])
            .input("parents", [-1, 0, 1, -1])
            .input("bias_offsets", [0, 0, 2])
            .input("bias_tokens", [3, 3])
            .input("bias_values", [1.0, 0.25])
            .input("repetition", [2.0, 1.0])
            .input("frequency", [0.25, 0.0])
            .input("presence", [0.5, 0.0])
            .input("min_tokens", [0, 2])
            .input("stop_tokens", [[0], [0]])
            .input("bad_offsets", [0, 0, 1])
            .input("word_offsets", [0, 2])
            .input("word_tokens", [4, 5])
            .input("no_repeat_ngram", [2, 0]);
        // DRY in texts that repeat themselves: tokens 5 and 6 come again, once behind a breaker and
        // once with an infinite penalty. A budget of two tokens behind token 7 is used, and the row
        // of a draft has the first of two forced tokens already. The columns are tokens 4 to 7 of 9.
        let text = [5, 6, 4, 7, 5, 6];
        let next = Case::new(AdjustLogits::new().first_token(4).vocab(9))
            .in_place("logits", [[1.0, 1.0, -1.0, 0.5]; 4])
            .input("tokens", [text; 3])
            .input("prompt_lengths", [2, 2, 2])
            .input("lengths", [6, 6, 6])
            .input("requests", [0, 0, 1, 2])
            .input("draft_tokens", [0, 8, 0, 0])
            .input("parents", [-1, 0, -1, -1])
            .input("dry_multiplier", [0.5, 0.5, f32::MAX])
            .input("dry_base", [2.0, 2.0, 2.0])
            .input("dry_allowed_length", [1, 3, 1])
            .input("dry_range", [0, 0, 6])
            .input("dry_breakers", [7])
            .input("think_budget", [2, 3, -1])
            .input("think_start", [7])
            .input("think_end", [3])
            .input("think_forced", [8, 3])
            .output("forced", DType::I32)
            .in_place("flags", [0_u32]);
        vec![case.in_place("flags", [0_u32]), next]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        let long = rng.rare(60);
        let mapped = rng.chance(2);
        let columns = match long {
            true => rng.pick(&[50, 3000, 40_000]),
            false => 1 + rng.size(199),
        };
        // In half of these cases most rows have the request of the row before them.
        let has_runs = mapped && rng.chance(2);
        let rows = match (long, has_runs) {
            (true, _) => rng.between(1, 6),
            (false, true) => rng.size(100),
            (false, false) => rng.size(24),
        };
        let operator = AdjustLogits::new().bad_words_in_prompt(rng.chance(2));
        let operator =
            if rng.chance(4) { part_of_vocabulary(rng, operator, columns) } else { operator };
        let sizes = Sizes {
            rows,
            columns,
            first: operator.first_token as usize,
            vocab: match operator.vocab {
                0 => operator.first_token as usize + columns,
                vocab => vocab as usize,
            },
            requests: if mapped { rng.between(1, 7) } else { rows },
            max_len: if long { rng.between(1, 20_000) } else { rng.size(200) },
            letters: rng.pick(&[1, 2, 4, 30, columns]),
            wild: rng.pick(&[5, 30, 1_000_000]),
            unit: if rng.chance(6) { f32::MIN_POSITIVE } else { 1.0 },
        };
        let think = rng.chance(3).then(|| Think::random(rng, &sizes, long));
        let mut case = sizes.texts(rng, Case::new(operator), think.as_ref());
        if mapped {
            let changes = if has_runs { rng.pick(&[3, 6, 30]) } else { 1 };
            case = case.input("requests", sizes.requests_of_rows(rng, changes));
        }
        if rng.chance(2) {
            let drafts = (0..rows).map(|_| sizes.token(rng)).collect();
            let drafts = Rng::integers(rng.pick(&[DType::I64, DType::I32]), drafts);
            case = case
                .input("draft_tokens", Tensor::vector(drafts))
                .input("parents", Tensor::vector(sizes.parents(rng)));
        }
        case = sizes.lists(rng, case, long);
        if rng.chance(2) {
            // A factor has no unit.
            let factors = Sizes { unit: 1.0, ..sizes };
            case = case.input("repetition", factors.penalties(rng, 1.0, 0.1));
        }
        if rng.chance(2) {
            case = case.input("frequency", sizes.penalties(rng, 0.0, -0.9));
        }
        if rng.chance(2) {
            case = case.input("presence", sizes.penalties(rng, 0.0, -0.9));
        }
        if rng.chance(2) {
            case = sizes.dry(rng, case);
        }
        if rng.chance(2) {
            let high = rng.pick(&[3, 5, 300]);
            case = case.input("no_repeat_ngram", sizes.small(rng, high));
        }
        if let Some(Think { start, end, forced }) = think {
            let high = rng.pick(&[3, sizes.max_len]);
            case = case
                .input("think_budget", sizes.small(rng, high))
                .input("think_start", Tensor::vector(start))
                .input("think_end", Tensor::vector(end))
                .input("think_forced", Tensor::vector(forced));
            if !rng.chance(8) {
                case = case.output("forced", DType::I32);
            }
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }

    /// Some of the rows in another order, some of them twice. Where rows have parents, all rows in
    /// another order, with their parents renumbered.
    fn recomposed(case: &Case<Self>, rng: &mut Rng) -> Recomposed<Self> {
        let rows = case.get("logits").map_or(0, Tensor::rows);
        let picked: Vec<usize> = match case.get("parents") {
            Some(_) => rng.permutation(rows),
            None if rows == 0 => Vec::new(),
            None => (0..rng.between(0, rows + 2)).map(|_| rng.below(rows)).collect(),
        };
        let place = |parent: i32| {
            let parent_at = usize::try_from(parent).ok();
            let place = picked.iter().position(|&row| Some(row) == parent_at);
            place.map_or(parent, |place| place as i32)
        };
        let mut other = case.map(|Argument { name, tensor, .. }| match *name {
            "logits" | "requests" | "draft_tokens" | "forced" => tensor.pick(&picked),
            "parents" => {
                let moved = tensor.pick(&picked);
                let Data::I32(parents) = moved.data else { return moved };
                Tensor::vector(parents.into_iter().map(place).collect::<Vec<i32>>())
            }
            _ => tensor.clone(),
        });
        if case.get("requests").is_none() {
            let requests: Vec<i32> = picked.iter().map(|&row| row as i32).collect();
            other = other.input("requests", Tensor::vector(requests));
        }
        let rows = vec![("logits", Rows::Of(picked.clone())), ("forced", Rows::Of(picked))];
        Recomposed { case: other, rows }
    }
}
