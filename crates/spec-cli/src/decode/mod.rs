//! `spec decode`

// The loop stands once: where readers of the examples look for it.
#[path = "../../../../examples/decode_loop/decoding.rs"]
mod decoding;
mod model;
#[cfg(test)]
mod tests;
mod text;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use spec::Handle;

use self::decoding::{Decoded, DraftKind, Drafter, Request, Sampling};
use self::model::Model;
use self::text::Text;
use super::{Error, Result, devices, parse_number, parse_seed};
use crate::output::{self, Progress};

/// The most tokens one run emits.
const MAX_TOKENS: usize = 100_000;
/// The largest number of drafts in a step.
const MAX_DRAFT_TOKENS: usize = 32;

/// The longest that a run of a model may be asked to take, in milliseconds.
const MAX_MODEL_MS: f64 = 10_000.0;

/// What `spec decode` takes.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Options {
    /// The text to count and to decode from; `-` is stdin [default: a text
    /// shipped with the program, from Alice's Adventures in Wonderland]
    #[arg(long, value_name = "FILE")]
    prompt: Option<PathBuf>,
    /// How many tokens to emit
    #[arg(long, value_name = "N", default_value = "256", value_parser = parse_tokens)]
    tokens: usize,
    /// Where drafts come from
    #[arg(long, value_enum, default_value_t = DraftKind::SuffixTree)]
    draft: DraftKind,
    /// The most drafts in a step
    #[arg(long, value_name = "N", default_value = "5", value_parser = parse_draft_tokens)]
    draft_tokens: usize,
    /// 0 takes the likeliest token; otherwise tokens are drawn
    #[arg(
        long,
        value_name = "T",
        default_value = "0.8",
        value_parser = parse_temperature,
        allow_hyphen_values = true
    )]
    temperature: f32,
    /// Draw among the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", default_value = "0", value_parser = parse_top_k)]
    top_k: i32,
    /// Draw among the likeliest tokens that have this share of the probability
    #[arg(long, value_name = "P", default_value = "1", value_parser = parse_share)]
    top_p: f32,
    /// Leave out tokens with less than this share of the likeliest one's probability
    #[arg(long, value_name = "P", default_value = "0", value_parser = parse_share)]
    min_p: f32,
    /// The same seed gives the same text, with any drafts and on every device
    #[arg(long, value_name = "S", default_value = "0", value_parser = parse_seed)]
    seed: u64,
    /// Milliseconds that a run of the model takes at least, however many drafts it
    /// checks: a model made of counts costs nothing, an LLM does
    #[arg(long, value_name = "MS", default_value = "5", value_parser = parse_model_ms)]
    model_ms: f64,
    /// Where the operators run: cpu, cuda:N, wgpu:N, or auto for the best there is
    #[arg(long, default_value = "auto")]
    device: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_tokens(text: &str) -> Result<usize, String> {
    parse_number(text, 1, MAX_TOKENS)
}

fn parse_draft_tokens(text: &str) -> Result<usize, String> {
    parse_number(text, 1, MAX_DRAFT_TOKENS)
}

fn parse_temperature(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number: &f32| number.is_finite() && *number >= 0.0);
    // -0 is 0.
    number.map(f32::abs).ok_or("expected a number that is 0 or larger".to_owned())
}

fn parse_top_k(text: &str) -> Result<i32, String> {
    parse_number(text, 0, i32::MAX)
}

fn parse_share(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|number| (0.0..=1.0).contains(number));
    number.ok_or("expected a number from 0 to 1".to_owned())
}

fn parse_model_ms(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=MAX_MODEL_MS).contains(number));
    // -0 is 0.
    number.map(f64::abs).ok_or(format!("expected a number from 0 to {MAX_MODEL_MS}"))
}

/// Reads the prompt, decodes with drafts and without, prints.
pub fn run(options: &Options) -> Result<ExitCode> {
    let handle = crate::open(&options.device)?;
    let prompt = text::read(options.prompt.as_deref())?;
    let text = Text::tokenize(&prompt);
    if let [] | [_] = text.tokens[..] {
        let name = text::name(options.prompt.as_deref());
        let tokens = ["0 tokens", "1 token"][text.tokens.len()];
        let what = format!("{name}: has {tokens}, expected at least 2");
        return Err(Error::Message(what));
    }
    let request = Request {
        tokens: options.tokens,
        end: None,
        sampling: Sampling {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            min_p: options.min_p,
            seed: options.seed,
        },
        run_time: Duration::from_secs_f64(options.model_ms / 1e3),
    };
    let model = Model::new(&text.tokens, text.vocabulary());
    let decode = |draft, what| -> Result<Decoded> {
        let capacity = text.tokens.len() + request.tokens;
        let mut drafter = Drafter::new(&handle, draft, options.draft_tokens, capacity, None)?;
        let mut progress = Progress::new(what, Some(request.tokens));
        let emitted = |n| progress.set(n);
        Ok(decoding::decode(&handle, &model, &mut drafter, &text.tokens, &request, emitted)?)
    };
    // With drafts first: what is slow the first time (threads that start, kernels that
    // are loaded) counts against drafting, not for it.
    let decoded = decode(options.draft, "tokens")?;
    let plain = match options.draft {
        DraftKind::None => None,
        _ => Some(decode(DraftKind::None, "tokens without drafts")?),
    };
    if plain.as_ref().is_some_and(|plain| plain.tokens != decoded.tokens) {
        let device = handle.device();
        let what = format!("on {device} the text with drafts is not the text without drafts");
        return Err(Error::Message(what));
    }
    let result = Outcome { options, handle, text, request, decoded, plain };
    if options.json {
        output::write_json(&result.json())?;
    } else {
        output::write(&result.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl ValueEnum for DraftKind {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(PossibleValue::new(self.name()).help(match self {
            DraftKind::None => "No drafts: plain decoding, one token per step",
            DraftKind::Lookup => "Copy what last followed the last tokens (prompt_lookup)",
            DraftKind::Suffix => {
                "Copy what most often followed the longest suffix that occurred before \
                 (suffix_lookup)"
            }
            DraftKind::SuffixTree => {
                "The same as a tree: the two continuations that followed most often (suffix_lookup)"
            }
        }))
    }
}

/// The results of a run, and what was asked for.
struct Outcome<'a> {
    options: &'a Options,
    handle: Handle,
    text: Text,
    request: Request,
    decoded: Decoded,
    /// The same without drafts, where there were drafts.
    plain: Option<Decoded>,
}

impl Outcome<'_> {
    fn text(&self) -> String {
        let Decoded { tokens, runs, drafted, accepted, total, model, watch } = &self.decoded;
        let rate = match drafted {
            0 => "-".to_owned(),
            _ => format!("{:.1} %", 100.0 * *accepted as f64 / *drafted as f64),
        };
        let mut out = format!("{}\n\n", self.text.detokenize(tokens));
        let info = self.handle.info();
        let rows = [
            ("device", format!("{} ({})", info.device, devices::name(info))),
            ("drafts", self.drafts()),
            ("sampling", self.sampling()),
            ("vocabulary", self.vocabulary()),
            ("drafted", drafted.to_string()),
            ("accepted", accepted.to_string()),
            ("acceptance rate", rate),
            ("emitted", tokens.len().to_string()),
            ("steps", runs.to_string()),
            ("tokens per step", format!("{:.2}", tokens.len() as f64 / *runs as f64)),
        ];
        for (name, value) in rows {
            _ = writeln!(out, "{name:<18} {value}");
        }
        let mut rest = *total;
        let mut lap = |name: &str, time: Duration, calls: usize, what: &str| {
            rest = rest.saturating_sub(time);
            let each = show(time / calls.max(1) as u32);
            _ = writeln!(out, "{name:<18} {} in {calls} {what}, {each} each", show(time));
        };
        for (name, time, calls) in &watch.laps {
            lap(name, *time, *calls, "calls");
        }
        lap("model", *model, *runs, "runs");
        _ = writeln!(out, "{:<18} {}", "copies, the rest", show(rest));
        _ = writeln!(out, "{:<18} {}", "total", show(*total));
        if let Some(plain) = &self.plain {
            out += &saved(&self.decoded, plain);
        }
        _ = writeln!(out, "\n{}", self.stand_in());
        out
    }

    /// Where drafts come from, in words.
    fn drafts(&self) -> String {
        let most = self.options.draft_tokens;
        match self.options.draft {
            DraftKind::None => "none".to_owned(),
            DraftKind::Lookup => format!("prompt lookup, up to {most} per step"),
            DraftKind::Suffix => format!("suffix lookup, up to {most} per step"),
            DraftKind::SuffixTree => format!("suffix lookup, a tree of up to {most} per step"),
        }
    }

    /// How tokens are chosen, in words.
    fn sampling(&self) -> String {
        let Sampling { temperature, top_k, top_p, min_p, seed } = &self.request.sampling;
        let mut filters = String::new();
        if *top_k > 0 {
            _ = write!(filters, ", top-k {top_k}");
        }
        if *top_p < 1.0 {
            _ = write!(filters, ", top-p {top_p}");
        }
        if *min_p > 0.0 {
            _ = write!(filters, ", min-p {min_p}");
        }
        format!("temperature {temperature:?}{filters}, seed {seed}")
    }

    /// What the model is, said wherever its output is shown.
    fn stand_in(&self) -> String {
        format!(
            "The model is an interpolated trigram, counted in the prompt: a stand-in for an LLM.\n\
             As a run of an LLM would, a run takes time: {} or more, however many drafts it checks \
             (--model-ms).",
            show(self.request.run_time)
        )
    }

    fn vocabulary(&self) -> String {
        let (distinct, all) = (self.text.vocabulary(), self.text.tokens.len());
        format!("the {distinct} distinct words of the prompt, which has {all}")
    }

    fn json(&self) -> Value {
        let Decoded { tokens, runs, drafted, accepted, total, model, watch } = &self.decoded;
        let (options, plain) = (self.options, self.plain.as_ref());
        let seconds: Map<String, Value> = watch
            .laps
            .iter()
            .map(|(name, time, _)| ((*name).to_owned(), json!(time.as_secs_f64())))
            .collect();
        json!({
            "text": self.text.detokenize(tokens),
            "tokens": tokens,
            "steps": runs,
            "drafted": drafted,
            "accepted": accepted,
            "emitted": tokens.len(),
            "seconds": seconds,
            "seconds_total": total.as_secs_f64(),
            "seconds_model": model.as_secs_f64(),
            "plain_steps": plain.map(|plain| plain.runs),
            "plain_seconds_total": plain.map(|plain| plain.total.as_secs_f64()),
            "saved_steps": plain.map(|plain| plain.runs - runs),
            "saved_seconds": plain.map(|plain| plain.total.as_secs_f64() - total.as_secs_f64()),
            "device": self.handle.device().to_string(),
            "draft": options.draft.name(),
            "draft_tokens": options.draft_tokens,
            "temperature": decimal(options.temperature),
            "top_k": options.top_k,
            "top_p": decimal(options.top_p),
            "min_p": decimal(options.min_p),
            "seed": options.seed,
            "vocabulary": self.text.vocabulary(),
            "prompt_tokens": self.text.tokens.len(),
            "model_ms": options.model_ms,
            "note": self.stand_in().replace('\n', " "),
        })
    }
}

/// The number as it was written, not the f32 that is nearest to it.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// What drafting saved, in words, against the same text without drafts.
fn saved(drafted: &Decoded, plain: &Decoded) -> String {
    let runs = plain.runs - drafted.runs;
    let faster = plain.total.as_secs_f64() / drafted.total.as_secs_f64();
    let time = match plain.total.checked_sub(drafted.total) {
        Some(time) => format!("and {}: {faster:.2} times as fast", show(time)),
        None => {
            let lost = show(drafted.total - plain.total);
            format!("but no time: {lost} more, {faster:.2} times as fast")
        }
    };
    format!(
        "without drafts     {} in {} runs of the model, the same text\n\
         drafting saved     {runs} of them {time}\n",
        show(plain.total),
        plain.runs
    )
}

/// A time with three digits or so.
fn show(time: Duration) -> String {
    match time.as_secs_f64() {
        0.0 => "0 ms".to_owned(),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}
