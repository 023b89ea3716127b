//! `spec decode`

mod drafting;
mod engine;
mod model;
mod sampling;
mod settings;
mod stopwatch;
#[cfg(test)]
mod tests;
mod text;

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use spec::Handle;

use self::engine::Decoded;
use self::model::Model;
use self::settings::{DraftKind, ModelTime, Sampling, Settings};
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
    /// Milliseconds that a run of the target model takes at least, however many drafts
    /// it checks: a model made of counts costs nothing, an LLM does
    #[arg(long, value_name = "MS", default_value = "5", value_parser = parse_model_ms)]
    model_ms: f64,
    /// The same of the draft model, which makes one draft per run
    #[arg(long, value_name = "MS", default_value = "0.25", value_parser = parse_model_ms)]
    draft_model_ms: f64,
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
        model_time: ModelTime {
            target: Duration::from_secs_f64(options.model_ms / 1e3),
            draft: Duration::from_secs_f64(options.draft_model_ms / 1e3),
        },
    };
    let model = Model::new(&text.tokens, text.vocabulary());
    let decode = |settings: &Settings, what| {
        let mut progress = Progress::new(what, Some(settings.tokens));
        engine::decode(&handle, &model, &text.tokens, settings, |n| progress.set(n))
    };
    // With drafts first: what is slow the first time (threads that start, kernels that
    // are loaded) counts against drafting, not for it.
    let decoded = decode(&settings, "tokens")?;
    let plain = match settings.draft {
        DraftKind::None => None,
        _ => {
            let settings = Settings { draft: DraftKind::None, ..settings.clone() };
            Some(decode(&settings, "tokens without drafts")?)
        }
    };
    if plain.as_ref().is_some_and(|plain| plain.tokens != decoded.tokens) {
        let device = handle.device();
        let what = format!("on {device} the text with drafts is not the text without drafts");
        return Err(Error::Message(what));
    }
    let result = Outcome { handle, text, settings, decoded, plain };
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
    /// The same without drafts, where there were drafts.
    plain: Option<Decoded>,
}

impl Outcome {
    fn text(&self) -> String {
        let Decoded { tokens, steps, drafted, accepted, total, watch } = &self.decoded;
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
            ("steps", steps.to_string()),
            ("tokens per step", format!("{:.2}", tokens.len() as f64 / *steps as f64)),
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
        lap("target model", watch.target.time, watch.target.count, "runs");
        if watch.draft.count > 0 {
            lap("draft model", watch.draft.time, watch.draft.count, "runs");
        }
        _ = writeln!(out, "{:<18} {}", "copies, the rest", show(rest));
        _ = writeln!(out, "{:<18} {}", "total", show(*total));
        if let Some(plain) = &self.plain {
            out += &saved(&self.decoded, plain);
        }
        _ = writeln!(out, "\n{}", self.stand_in().join("\n"));
        out
    }

    /// Where drafts come from, in words.
    fn drafts(&self) -> String {
        let Settings { draft, draft_tokens, .. } = &self.settings;
        match draft {
            DraftKind::Ngram => format!("n-gram matching, up to {draft_tokens} per step"),
            DraftKind::Lookup => format!("prompt lookup, up to {draft_tokens} per step"),
            DraftKind::Suffix => format!("suffix lookup, up to {draft_tokens} per step"),
            DraftKind::SuffixTree => {
                format!("suffix lookup, a tree of up to {draft_tokens} per step")
            }
            DraftKind::Model => format!("draft model, up to {draft_tokens} per step"),
            DraftKind::Tree => format!("draft model, a tree of up to {draft_tokens} per step"),
            DraftKind::Hybrid => {
                format!("draft model, then n-gram matching, up to {draft_tokens} per step")
            }
            DraftKind::None => "none".to_owned(),
        }
    }

    /// How tokens are chosen, in words.
    fn sampling(&self) -> String {
        let Sampling { temperature, top_k, top_p, min_p } = &self.settings.sampling;
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
        format!("temperature {temperature:?}{filters}, seed {}", self.settings.seed)
    }

    /// What the models are, said wherever their output is shown.
    fn stand_in(&self) -> [String; 2] {
        let ModelTime { target, draft } = self.settings.model_time;
        [
            "Target and draft model are an interpolated trigram and a bigram, counted in the \
             prompt: a stand-in for LLMs."
                .to_owned(),
            format!(
                "As a run of an LLM would, a run of the target takes time: {} or more, however \
                 many drafts it checks (--model-ms); a run of the draft model {} \
                 (--draft-model-ms).",
                show(target),
                show(draft)
            ),
        ]
    }

    fn vocabulary(&self) -> String {
        let (distinct, all) = (self.text.vocabulary(), self.text.tokens.len());
        format!("the {distinct} distinct words of the prompt, which has {all}")
    }

    fn json(&self) -> Value {
        let Decoded { tokens, steps, drafted, accepted, total, watch } = &self.decoded;
        let (sampling, plain) = (&self.settings.sampling, self.plain.as_ref());
        let seconds: Map<String, Value> = watch
            .laps
            .iter()
            .map(|(name, time, _)| ((*name).to_owned(), json!(time.as_secs_f64())))
            .collect();
        json!({
            "text": self.text.detokenize(tokens),
            "tokens": tokens,
            "steps": steps,
            "drafted": drafted,
            "accepted": accepted,
            "emitted": tokens.len(),
            "seconds": seconds,
            "seconds_total": total.as_secs_f64(),
            "seconds_target_model": watch.target.time.as_secs_f64(),
            "seconds_draft_model": watch.draft.time.as_secs_f64(),
            "draft_model_runs": watch.draft.count,
            "plain_steps": plain.map(|plain| plain.steps),
            "plain_seconds_total": plain.map(|plain| plain.total.as_secs_f64()),
            "saved_steps": plain.map(|plain| plain.steps - steps),
            "saved_seconds": plain.map(|plain| plain.total.as_secs_f64() - total.as_secs_f64()),
            "device": self.handle.device().to_string(),
            "draft": self.settings.draft.to_possible_value().map(|kind| kind.get_name().to_owned()),
            "draft_tokens": self.settings.draft_tokens,
            "temperature": decimal(sampling.temperature),
            "top_k": sampling.top_k,
            "top_p": decimal(sampling.top_p),
            "min_p": decimal(sampling.min_p),
            "seed": self.settings.seed,
            "draft_seed": self.settings.draft_seed,
            "vocabulary": self.text.vocabulary(),
            "prompt_tokens": self.text.tokens.len(),
            "model_ms": self.settings.model_time.target.as_nanos() as f64 / 1e6,
            "draft_model_ms": self.settings.model_time.draft.as_nanos() as f64 / 1e6,
            "note": self.stand_in().join(" "),
        })
    }
}

/// The number as it was written, not the f32 that is nearest to it.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// What drafting saved, in words, against the same text without drafts.
fn saved(drafted: &Decoded, plain: &Decoded) -> String {
    let runs = plain.steps - drafted.steps;
    let faster = plain.total.as_secs_f64() / drafted.total.as_secs_f64();
    let time = match plain.total.checked_sub(drafted.total) {
        Some(time) => format!("and {}: {faster:.2} times as fast", show(time)),
        None => {
            let lost = show(drafted.total - plain.total);
            format!("but no time: {lost} more, {faster:.2} times as fast")
        }
    };
    format!(
        "without drafts     {} in {} runs of the target model, the same text\n\
         drafting saved     {runs} of them {time}\n",
        show(plain.total),
        plain.steps
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
