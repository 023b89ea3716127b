//! Random logits with temperature 0.8 and the most common filters of engines; and rows
//! in which the cut of top-k or top-p is hard to find.

use crate::baselines::Designs;
use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::ops::SampleLogits;
use spec::{DType, bf16, f16};
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    rows: usize,
    vocab: usize,
    filter: Filter,
    logits: Logits,
    wants: Wants,
    dtype: DType,
}

/// What a row asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wants {
    /// One token.
    Token,
    /// Four tokens, drawn without replacement.
    Four,
    /// A token and its log-probability by the logits as given.
    Logprobs,
    /// A token and the 20 likeliest tokens with their log-probabilities.
    TopLogprobs,
    /// A token and its log-probability in what it was drawn from.
    Processed,
    /// A token and the distribution that it was drawn from.
    Probs,
    /// A token of a draft head whose columns stand for other tokens.
    TokenIds,
    /// The winner among a rank's columns, where the largest logit over all ranks is known.
    Winners,
    /// The largest logit of a rank's columns.
    Largest,
    /// The log-probability of a given token.
    Forced,
    /// A token, and the first 64 of those from which it was drawn.
    Kept,
    /// A token of the first rows, one in `PADDED`; the others are padding.
    Padding,
}

const WANTS: [(&str, Wants); 12] = [
    ("token", Wants::Token),
    ("n-4", Wants::Four),
    ("logprobs", Wants::Logprobs),
    ("top-logprobs-20", Wants::TopLogprobs),
    ("processed-logprobs", Wants::Processed),
    ("probs", Wants::Probs),
    ("token-ids", Wants::TokenIds),
    ("winners", Wants::Winners),
    ("largest", Wants::Largest),
    ("forced-logprobs", Wants::Forced),
    ("kept-64", Wants::Kept),
    ("padding", Wants::Padding),
];
/// How many of these are of whole rows without forced tokens or kept tokens.
const OF_ROWS: usize = 6;

/// The filters of the requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Filter {
    /// Temperature 0.
    Greedy,
    Plain,
    /// Min-p 0.05.
    MinP,
    /// Top-k 50 and top-p 0.9.
    TopKTopP,
    /// Top-p 0.9.
    TopP,
    /// Top-p 0.999999.
    Nearly,
}

const FILTERS: [(&str, Filter); 6] = [
    ("plain", Filter::Plain),
    ("min-p", Filter::MinP),
    ("greedy", Filter::Greedy),
    ("top-k-p", Filter::TopKTopP),
    ("top-p", Filter::TopP),
    ("top-p-0.999999", Filter::Nearly),
];

/// The distribution of the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Logits {
    /// Normal, with a standard deviation of 2.5.
    Normal,
    /// All equal.
    Equal,
    /// One logit is far above the others.
    Peak,
    /// About 10^5 equal logits are the largest.
    Ties,
}

const LOGITS: [(&str, Logits); 4] = [
    ("normal", Logits::Normal),
    ("equal", Logits::Equal),
    ("peak", Logits::Peak),
    ("ties", Logits::Ties),
];

fn name_of<T: PartialEq>(of: &T, names: &[(&'static str, T)]) -> &'static str {
    names.iter().find(|(_, value)| value == of).map_or("", |(name, _)| name)
}

impl Logits {
    fn draw(self, rng: &mut Rng) -> f32 {
        match self {
            Logits::Normal => rng.normal() * 2.5,
            Logits::Equal => 1.5,
            Logits::Peak => rng.normal(),
            // 0.78 of 128256 tokens are about 10^5.
            Logits::Ties if rng.unit() < 0.78 => 9.0,
            Logits::Ties => rng.normal(),
        }
    }
}

/// Of so many rows one is none of the padding that a captured step has.
const PADDED: usize = 32;

/// Larger inputs, in bytes, are not in a GPU's cache when an engine calls the operator.
const CACHE: u64 = 48 << 20;

impl Designs for SampleLogits {}

impl Measured for SampleLogits {
    type Shape = Shape;

    const SMALL: &str = "rows=3,vocab=1000";

    fn table() -> Vec<Entry<Shape>> {
        let row = |rows, vocab, filter| {
            let (logits, wants, dtype) = (Logits::Normal, Wants::Token, DType::F32);
            Shape { rows, vocab, filter, logits, wants, dtype }
        };
        let mut table = Vec::new();
        // Goals on an H200 in microseconds, without filters and with filters.
        for (rows, vocab, plain, filtered) in
            [(1, 151_936, 6.5, 8.0), (32, 128_256, 9.0, 14.0), (256, 128_256, 40.0, 55.0)]
        {
            let quick = rows == 32;
            table.push(Entry::goal(row(rows, vocab, Filter::Plain), plain).quick_if(quick));
            table.push(Entry::goal(row(rows, vocab, Filter::TopKTopP), filtered).quick_if(quick));
            for filter in [Filter::Plain, Filter::TopKTopP] {
                table.push(Entry::plain(Shape { dtype: DType::BF16, ..row(rows, vocab, filter) }));
            }
        }
        table.push(Entry::plain(row(32, 128_256, Filter::Greedy)));
        table.push(Entry::plain(row(32, 128_256, Filter::TopP)));
        table.push(Entry::plain(row(32, 128_256, Filter::Nearly)));
        for logits in [Logits::Equal, Logits::Peak, Logits::Ties] {
            for filter in [Filter::TopKTopP, Filter::TopP] {
                table.push(Entry::plain(Shape { logits, ..row(32, 128_256, filter) }));
            }
        }
        for (rows, vocab) in [(1, 151_936), (32, 128_256), (256, 128_256)] {
            for dtype in [DType::F32, DType::BF16] {
                let plain = Shape { dtype, ..row(rows, vocab, Filter::Plain) };
                table.push(Entry::plain(Shape { filter: Filter::MinP, ..plain }));
                let wants = WANTS[..OF_ROWS].iter().map(|&(_, wants)| wants);
                let wants = wants.filter(|&wants| wants != Wants::Token);
                table.extend(wants.map(|wants| Entry::plain(Shape { wants, ..plain })));
            }
        }
        // Goals in microseconds beside those above: ids cost 1, 2 and 6 more, winners 0.3, and kept
        // tokens 3.
        for (rows, vocab, ids, winners) in
            [(1, 151_936, 7.5, 6.8), (32, 128_256, 11.0, 9.3), (256, 128_256, 46.0, 40.3)]
        {
            let wants = |wants| Shape { wants, ..row(rows, vocab, Filter::Plain) };
            table.push(Entry::goal(wants(Wants::TokenIds), ids));
            table.push(Entry::goal(wants(Wants::Winners), winners));
            table.push(Entry::plain(wants(Wants::Largest)));
            table.push(Entry::plain(wants(Wants::Forced)));
        }
        let kept = Shape { wants: Wants::Kept, ..row(32, 128_256, Filter::TopKTopP) };
        table.push(Entry::goal(kept, 17.0));
        // Eight rows, and as many among 256.
        for filter in [Filter::Plain, Filter::TopKTopP] {
            table.push(Entry::plain(row(256 / PADDED, 128_256, filter)));
            let padding = Shape { wants: Wants::Padding, ..row(256, 128_256, filter) };
            table.push(Entry::plain(padding));
        }
        table
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            rows: fields.number("rows", 32, 1..=1 << 16)?,
            vocab: fields.number("vocab", 128_256, 1..=1 << 22)?,
            filter: fields.word("filter", &FILTERS)?,
            logits: fields.word("logits", &LOGITS)?,
            wants: fields.word("wants", &WANTS)?,
            dtype: fields.dtype(&[DType::F32, DType::F16, DType::BF16])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { rows, vocab, filter, logits, wants, dtype } = *shape;
        let mut kind = name_of(&filter, &FILTERS).to_owned();
        if logits != Logits::Normal {
            kind += &format!(", {}", name_of(&logits, &LOGITS));
        }
        if wants != Wants::Token {
            kind += &format!(", {}", name_of(&wants, &WANTS));
        }
        if dtype != DType::F32 {
            kind += &format!(", {dtype}");
        }
        Words {
            shape: format!("{rows} x {vocab}, {kind}"),
            series: kind,
            size: rows as f64,
            unit: "rows",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        // Probabilities are written, the likeliest tokens of all rows are few bytes.
        let written = if shape.wants == Wants::Probs { DType::F32.size() } else { 0 };
        let padded = if shape.wants == Wants::Padding { PADDED } else { 1 };
        (shape.rows.div_ceil(padded) * shape.vocab * (shape.dtype.size() + written)) as u64
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        Ok(match shape.dtype {
            DType::F16 => work(shape, f16::from_f32),
            DType::BF16 => work(shape, bf16::from_f32),
            _ => work(shape, |x| x),
        })
    }
}

fn work<T>(shape: &Shape, narrow: fn(f32) -> T) -> Work<SampleLogits>
where
    T: spec::Element,
    spec_conformance::Data: From<Vec<T>>,
{
    let Shape { rows, vocab, filter, logits, wants, .. } = *shape;
    let seed = seed(&[rows, vocab]);
    let mut values = random(seed, rows * vocab, |rng| narrow(logits.draw(rng)));
    // The largest logit over all ranks: a little above the largest of normal logits.
    let maxima = vec![16.0_f32; rows];
    if logits == Logits::Peak {
        values.iter_mut().skip(vocab / 3).step_by(vocab).for_each(|x| *x = narrow(60.0));
    }
    let mut rng = Rng::new(seed, "requests");
    let temperature = if filter == Filter::Greedy { 0.0 } else { 0.8 };
    let mut case = Case::new(SampleLogits::default())
        .input("logits", Tensor::matrix(values, rows, vocab))
        .input(
            "positions",
            Tensor::vector((0..rows).map(|_| rng.below(4096) as i64).collect::<Vec<_>>()),
        )
        .input("temperature", Tensor::vector(vec![temperature; rows]))
        .input("seeds", Tensor::vector((0..rows).map(|_| rng.next()).collect::<Vec<_>>()));
    if filter == Filter::TopKTopP {
        case = case.input("top_k", Tensor::vector(vec![50_i32; rows]));
    }
    let top_p = match filter {
        Filter::TopKTopP | Filter::TopP => Some(0.9_f32),
        Filter::Nearly => Some(0.999_999),
        Filter::Greedy | Filter::Plain | Filter::MinP => None,
    };
    if filter == Filter::MinP {
        case = case.input("min_p", Tensor::vector(vec![0.05_f32; rows]));
    }
    if let Some(top_p) = top_p {
        case = case.input("top_p", Tensor::vector(vec![top_p; rows]));
    }
    let case = match wants {
        Wants::Four => case.output_of("tokens", DType::I32, &[rows, 4]),
        Wants::Largest => case.output_of("tokens", DType::I32, &[rows, 0]),
        _ => case.output("tokens", DType::I32),
    };
    let case = match wants {
        Wants::Token | Wants::Four => case,
        Wants::Logprobs => case.output("logprobs", DType::F32),
        Wants::Processed => case.output("processed_logprobs", DType::F32),
        Wants::Probs => case.output("probs", DType::F32),
        Wants::TopLogprobs => {
            case.output_of("top_tokens", DType::I32, &[rows, 20]).output("top_logprobs", DType::F32)
        }
        Wants::TokenIds => {
            // In order, with gaps.
            let ids: Vec<i32> = (0..vocab as i32).map(|column| column + column / 3).collect();
            case.input("token_ids", Tensor::vector(ids))
        }
        Wants::Winners => {
            case.input("maxima", Tensor::vector(maxima)).output("winners", DType::I64)
        }
        Wants::Largest => case.output("largest", DType::F32),
        Wants::Forced => {
            let forced: Vec<i32> = (0..rows).map(|_| rng.below(vocab) as i32).collect();
            case.input("forced", Tensor::vector(forced)).output("logprobs", DType::F32)
        }
        Wants::Padding => {
            let is_real = |row: usize| row < rows.div_ceil(PADDED);
            let requests = (0..rows).map(|row| if is_real(row) { row as i32 } else { -1 });
            case.input("requests", Tensor::vector(requests.collect::<Vec<_>>()))
        }
        Wants::Kept => {
            case.output_of("kept_tokens", DType::I32, &[rows, 64]).output("kept_counts", DType::I32)
        }
    };
    let rotated = SampleLogits::memory(shape) > CACHE;
    Work::new(case, SampleLogits::memory(shape)).rotated(rotated)
}
