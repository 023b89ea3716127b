//! `spec decode`

mod drafting;
mod engine;
mod model;
mod sampling;
#[cfg(test)]
mod tests;
mod text;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Map, Value, json};
use spec::Handle;

use self::engine::{Decoded, DraftKind, Settings};
use self::model::Model;
use self::sampling::Sampling;
use self::text::Text;
use super::{Error, Result, parse_number, parse_seed};
use crate::output::{self, Progress};

/// The most tokens one run emits.
const MAX_TOKENS: usize = 100_000;
/// The most drafts a step may have.
const MAX_DRAFT_TOKENS: usize = 32;

/// What the models are, said wherever their output is shown.
const STAND_IN: &str = "Target and draft model are an interpolated trigram and a bigram, counted \
in the prompt: a stand-in for LLMs.";

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
    #[arg(long, value_enum, default_value_t = DraftKind::Hybrid)]
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
    /// The seed of the draft model [default: that of --seed, so that both draw alike
    /// and agree more often]
    #[arg(long, value_name = "S", value_parser = parse_seed)]
    draft_seed: Option<u64>,
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

/// Reads the prompt, decodes, prints.
pub fn run(options: &Options) -> Result<ExitCode> {
    let handle: Handle = options.device.parse()?;
    let prompt = text::read(options.prompt.as_deref())?;
    let text = Text::tokenize(&prompt)?;
    if let [] | [_] = text.tokens[..] {
        let name = text::name(options.prompt.as_deref());
        let tokens = ["0 tokens", "1 token"][text.tokens.len()];
        let what = format!("{name}: has {tokens}, expected at least 2");
        return Err(Error::Message(what));
    }
    let settings = Settings {
        tokens: options.tokens,
        draft: options.draft,
        draft_tokens: options.draft_tokens,
        sampling: Sampling {
            temperature: options.temperature,
            top_k: options.top_k,
            top_p: options.top_p,
            min_p: options.min_p,
        },
        seed: options.seed,
        draft_seed: options.draft_seed.unwrap_or(options.seed),
    };
    let model = Model::new(&text.tokens, text.vocabulary());
    let decoded = {
        let mut progress = Progress::new("tokens", Some(settings.tokens));
        engine::decode(&handle, &model, &text.tokens, &settings, |n| progress.set(n))?
    };
    let result = Outcome { handle, text, settings, decoded };
    if options.json {
        output::write_json(&result.json())?;
    } else {
        output::write(&result.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run came to, and what it was asked.
struct Outcome {
    handle: Handle,
    text: Text,
    settings: Settings,
    decoded: Decoded,
}

impl Outcome {
    fn text(&self) -> String {
        let Settings { draft, draft_tokens, sampling, seed, .. } = &self.settings;
        let Sampling { temperature, top_k, top_p, min_p } = sampling;
        let Decoded { tokens, steps, drafted, accepted, total, watch } = &self.decoded;
        let draft = match draft {
            DraftKind::Ngram => format!("n-gram matching, up to {draft_tokens} a step"),
            DraftKind::Lookup => format!("prompt lookup, up to {draft_tokens} a step"),
            DraftKind::Model => format!("draft model, up to {draft_tokens} a step"),
            DraftKind::Tree => format!("draft model, a tree of up to {draft_tokens} a step"),
            DraftKind::Hybrid => {
                format!("draft model, then n-gram matching, up to {draft_tokens} a step")
            }
            DraftKind::None => "none".to_owned(),
        };
        let rate = match drafted {
            0 => "-".to_owned(),
            _ => format!("{:.1} %", 100.0 * *accepted as f64 / *drafted as f64),
        };
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
        let mut out = format!("{}\n\n", self.text.detokenize(tokens));
        let info = self.handle.info();
        let rows = [
            ("device", format!("{} ({})", info.device, info.name)),
            ("drafts", draft),
            ("sampling", format!("temperature {temperature:?}{filters}, seed {seed}")),
            ("vocabulary", self.vocabulary()),
            ("drafted", drafted.to_string()),
            ("accepted", accepted.to_string()),
            ("acceptance rate", rate),
            ("emitted", tokens.len().to_string()),
            ("steps", steps.to_string()),
            ("tokens a step", format!("{:.2}", tokens.len() as f64 / *steps as f64)),
        ];
        for (name, value) in rows {
            _ = writeln!(out, "{name:<18} {value}");
        }
        let mut rest = *total;
        for (name, time, calls) in &watch.laps {
            rest = rest.saturating_sub(*time);
            let each = show(*time / (*calls).max(1) as u32);
            _ = writeln!(out, "{name:<18} {} in {calls} calls, {each} each", show(*time));
        }
        _ = writeln!(out, "{:<18} {}", "models and copies", show(rest));
        _ = writeln!(out, "{:<18} {}", "total", show(*total));
        _ = writeln!(out, "\n{STAND_IN}");
        out
    }

    fn vocabulary(&self) -> String {
        let (distinct, all) = (self.text.vocabulary(), self.text.tokens.len());
        format!("the {distinct} distinct cl100k tokens of the prompt, which has {all}")
    }

    fn json(&self) -> Value {
        let Decoded { tokens, steps, drafted, accepted, total, watch } = &self.decoded;
        let sampling = &self.settings.sampling;
        let seconds: Map<String, Value> = watch
            .laps
            .iter()
            .map(|(name, time, _)| ((*name).to_owned(), json!(time.as_secs_f64())))
            .collect();
        json!({
            "text": self.text.detokenize(tokens),
            "tokens": self.text.ids(tokens),
            "steps": steps,
            "drafted": drafted,
            "accepted": accepted,
            "emitted": tokens.len(),
            "seconds": seconds,
            "seconds_total": total.as_secs_f64(),
            "device": self.handle.device().to_string(),
            "draft": format!("{:?}", self.settings.draft).to_lowercase(),
            "draft_tokens": self.settings.draft_tokens,
            "temperature": decimal(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": decimal(sampling.top_p),
            "min_p": decimal(sampling.min_p),
            "seed": self.settings.seed,
            "draft_seed": self.settings.draft_seed,
            "vocabulary": self.text.vocabulary(),
            "prompt_tokens": self.text.tokens.len(),
            "note": STAND_IN,
        })
    }
}

/// The number as it was written, not the f32 that is nearest to it.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// A time with three digits or so.
fn show(time: Duration) -> String {
    match time.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}
