//! Speculative decoding of a Llama model from a GGUF file.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use spec::Handle;
use spec_llm::{
    Agreement, Decoded, Drafter, Llama, Request, Result, Sampling, Text, Weights, agreement, bench,
    decode,
};

/// Writes on with a Llama model: with drafts, and without them to compare.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    answer: Answer,
}

#[derive(Subcommand)]
enum Command {
    /// Times answers to the prompts under prompts/ with drafts and without, in turns.
    Bench {
        #[command(flatten)]
        model: Model,
        /// Tokens of an answer.
        #[arg(long, default_value_t = 256)]
        tokens: usize,
        /// The most drafts of a step.
        #[arg(long, default_value_t = 15)]
        max_draft: usize,
        /// How often each prompt is answered in either way.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
        turns: u16,
    },
    /// Measures how often a draft model draws the token that the model draws: by the race, by running
    /// sums, and what rejection sampling would reach.
    Agree {
        #[command(flatten)]
        model: Model,
        /// The draft model, of the same vocabulary; the model itself if absent.
        #[arg(long)]
        draft_model: Option<PathBuf>,
        /// How the matrices of the draft model lie in memory.
        #[arg(long, value_enum, default_value_t = Weights::Q4_0)]
        draft_weights: Weights,
        /// Tokens that the model writes after each prompt.
        #[arg(long, default_value_t = 128)]
        tokens: usize,
        /// Temperatures, one table row each.
        #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 1.5])]
        temperature: Vec<f32>,
        /// Of the likeliest tokens, only as many; 0 is off.
        #[arg(long, default_value_t = 0)]
        top_k: i32,
        /// Of the likeliest tokens, only those that reach this share; 1 is off.
        #[arg(long, default_value_t = 1.0)]
        top_p: f32,
        /// The first of 32 seeds, which writes the text.
        #[arg(long, default_value_t = 0)]
        seed: u64,
    },
    /// Times 1 to 16 rows at once, with each type of weights.
    Rows {
        #[command(flatten)]
        model: Model,
        /// How often each is run.
        #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u16).range(1..))]
        turns: u16,
    },
}

#[derive(Args)]
struct Model {
    /// The model: a GGUF file of the Llama architecture.
    #[arg(long, env = "SPEC_LLM_MODEL", required = true)]
    model: Option<PathBuf>,
    /// How its matrices lie in memory.
    #[arg(long, value_enum, default_value_t)]
    weights: Weights,
    /// Threads; as many as there are cores if absent.
    #[arg(long)]
    threads: Option<std::num::NonZeroUsize>,
    /// One JSON value instead of words.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Answer {
    #[command(flatten)]
    model: Model,
    /// What drafts.
    #[arg(long, value_enum, default_value_t = DraftKind::Lookup)]
    draft: DraftKind,
    /// The smaller model that drafts, of the same vocabulary.
    #[arg(long, required_if_eq("draft", "model"))]
    draft_model: Option<PathBuf>,
    /// The most drafts of a step.
    #[arg(long, default_value_t = 15)]
    max_draft: usize,
    /// What to write on from.
    #[arg(long, conflicts_with = "prompt_file")]
    prompt: Option<String>,
    /// The same from a file; - is stdin.
    #[arg(long)]
    prompt_file: Option<PathBuf>,
    /// The prompt is what a user says, the answer the model's.
    #[arg(long)]
    chat: bool,
    /// Tokens to write at most.
    #[arg(long, default_value_t = 256)]
    tokens: usize,
    /// 0 takes the likeliest token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Of the likeliest tokens, only as many; 0 is off.
    #[arg(long, default_value_t = 0)]
    top_k: i32,
    /// Of the likeliest tokens, only those that reach this share; 1 is off.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Of the random numbers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Leave out the run without drafts.
    #[arg(long)]
    alone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DraftKind {
    None,
    Lookup,
    Ngram,
    Model,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads = match &options.command {
        Some(
            Command::Bench { model, .. }
            | Command::Rows { model, .. }
            | Command::Agree { model, .. },
        ) => model.threads,
        None => options.answer.model.threads,
    };
    if let Some(threads) = threads {
        // SAFETY: no other thread was started yet. candle and rayon read the variable when
        // they start their threads.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", threads.to_string()) };
    }
    // Runs inside of rayon's pool. There, parallel work of candle and the operators begins at
    // once; a thread outside of the pool would have to wake a thread of the pool for each of
    // thousands of small operations.
    match rayon::scope(|_| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    match &options.command {
        None => answer(&options.answer),
        Some(Command::Bench { model, tokens, max_draft, turns }) => {
            compare(model, *tokens, *max_draft, usize::from(*turns))
        }
        Some(Command::Rows { model, turns }) => rows(model, usize::from(*turns)),
        Some(Command::Agree {
            model,
            draft_model,
            draft_weights,
            tokens,
            temperature,
            top_k,
            top_p,
            seed,
        }) => {
            let path = draft_model.as_ref().map_or_else(|| model.path(), Ok)?;
            let sampling = Sampling { temperature: 0.0, top_k: *top_k, top_p: *top_p, seed: *seed };
            agree(model, (path, *draft_weights), *tokens, temperature, sampling)
        }
    }
}

impl Model {
    fn path(&self) -> Result<&PathBuf> {
        self.model.as_ref().context("no --model")
    }
}

impl Answer {
    fn prompt(&self) -> Result<String> {
        match (&self.prompt, &self.prompt_file) {
            (Some(prompt), _) => Ok(prompt.clone()),
            (None, None) => Ok(bench::PROMPTS[0].2.to_owned()),
            (None, Some(path)) if path.as_os_str() == "-" => {
                let mut text = String::new();
                std::io::stdin().read_to_string(&mut text).context("prompt from stdin")?;
                Ok(text)
            }
            (None, Some(path)) => {
                std::fs::read_to_string(path).with_context(|| format!("prompt {}", path.display()))
            }
        }
    }
}

fn answer(options: &Answer) -> Result<()> {
    let weights = options.model.weights;
    ensure!(
        weights.keep_rows_apart(),
        "with f32 and f16 weights a row's logits depend on how many there are: drafts would \
         change the text"
    );
    let handle = Handle::cpu()?;
    let path = options.model.path()?;
    // The default prompt is a user's message, so it needs the chat template.
    let chat = options.chat || (options.prompt.is_none() && options.prompt_file.is_none());
    let said = options.prompt()?;
    // A token has at least one byte; the chat template adds a few dozen tokens.
    let capacity = said.len() + 256 + options.tokens;
    let (mut model, content) = Llama::open(path, weights, capacity)?;
    let text = Text::new(&content)?;
    let prompt = text.tokens(&if chat { text.chat(&said)? } else { said })?;
    let sampling = Sampling {
        temperature: options.temperature,
        top_k: options.top_k,
        top_p: options.top_p,
        seed: options.seed,
    };
    let most = if options.draft == DraftKind::None { 0 } else { options.max_draft };
    let mut row = bench::cost_of_a_row(&mut model, most)?;
    let mut drafter = match options.draft {
        DraftKind::None => Drafter::None,
        DraftKind::Lookup => Drafter::lookup(&handle, capacity, most)?,
        DraftKind::Ngram => Drafter::ngram(&handle, &prompt, capacity, most)?,
        DraftKind::Model => {
            let path = options.draft_model.as_ref().context("no --draft-model")?;
            let (mut small, _) = Llama::open(path, weights, capacity)?;
            ensure!(small.vocab() == model.vocab(), "the draft model has other tokens");
            // A draft costs a run of the small model in addition to a row of the large model.
            row += bench::time_rows(&mut small, &[1], 7)?[0].as_secs_f64()
                / bench::time_rows(&mut model, &[1], 7)?[0].as_secs_f64();
            Drafter::model(&handle, small, sampling)
        }
    };
    let request =
        Request { tokens: options.tokens, stop: text.end, max_draft: most, sampling, row };

    let json = options.model.json;
    let mut show = text.stream(|piece| {
        if !json {
            print!("{piece}");
            // If the reader of stdout has gone, a failed write does not matter.
            let _ = std::io::stdout().flush();
        }
    });
    let drafted = decode(&handle, &mut model, &mut drafter, &prompt, &request, &mut show)?;
    drop(show);
    let plain = if options.alone || options.draft == DraftKind::None {
        None
    } else {
        let none = &mut Drafter::None;
        Some(decode(&handle, &mut model, none, &prompt, &request, |_| Ok(()))?)
    };
    if let Some(plain) = &plain {
        ensure!(plain.tokens == drafted.tokens, "drafts changed the text");
    }
    if json {
        let value = json!({
            "text": text.text(&drafted.tokens)?,
            "tokens": drafted.tokens,
            "prompt_tokens": prompt.len(),
            "cost_of_a_row": row,
            "run": summary(&drafted),
            "without_drafts": plain.as_ref().map(summary),
            // If the texts differed, the program failed before.
            "texts_compared": plain.is_some(),
        });
        println!("{value:#}");
        return Ok(());
    }
    println!("\n");
    print_summary(&drafted);
    if let Some(plain) = plain {
        println!(
            "without drafts: the same {} tokens, {:.1} a second: {:.2} times as fast with drafts",
            plain.tokens.len(),
            plain.speed(),
            drafted.speed() / plain.speed(),
        );
    }
    Ok(())
}

fn print_summary(run: &Decoded) {
    println!(
        "{} tokens in {:.2} s, {:.1} a second, after {:.2} s with the prompt",
        run.tokens.len(),
        run.total.as_secs_f64(),
        run.speed(),
        run.prompt.as_secs_f64(),
    );
    println!(
        "{} runs of the model, {:.2} tokens each; {} of {} drafts stood",
        run.steps,
        run.tokens.len() as f64 / run.steps as f64,
        run.accepted,
        run.drafted,
    );
    for (name, time, calls) in &run.watch.laps {
        let share = 100.0 * time.as_secs_f64() / run.total.as_secs_f64();
        let each = time.as_secs_f64() * 1e6 / *calls as f64;
        println!("{share:6.2} %  {name}: {calls} calls of {each:.1} µs");
    }
}

fn summary(run: &Decoded) -> Value {
    let parts = run.watch.laps.iter().map(|(name, time, calls)| {
        ((*name).to_owned(), json!({ "seconds": time.as_secs_f64(), "calls": calls }))
    });
    json!({
        "tokens_per_second": run.speed(),
        "seconds": run.total.as_secs_f64(),
        "cpu_seconds": run.processors.as_secs_f64(),
        "prompt_seconds": run.prompt.as_secs_f64(),
        "steps": run.steps,
        "drafted": run.drafted,
        "accepted": run.accepted,
        "parts": parts.collect::<serde_json::Map<_, _>>(),
    })
}

fn compare(model: &Model, tokens: usize, max_draft: usize, turns: usize) -> Result<()> {
    let handle = Handle::cpu()?;
    if !model.json {
        println!(
            "prompt    copies  tokens  plain/s  drafts/s  faster  by CPU time  tokens/run  stood"
        );
    }
    let request = bench::request(tokens, max_draft);
    let pairs = bench::pairs(&handle, model.path()?, model.weights, &request, turns, |pair| {
        if model.json {
            return;
        }
        let bench::Pair { name, copies, plain, drafted, faster, cheaper, last } = pair;
        let copies = if *copies { "yes" } else { "no" };
        let (tokens, steps) = (last.tokens.len(), last.steps);
        let each = tokens as f64 / steps as f64;
        println!(
            "{name:<8}  {copies:>6}  {tokens:>6}  {plain:>7.1}  {drafted:>8.1}  {faster:>6.2}  \
             {cheaper:>11.2}  {each:>10.2}  {}/{}",
            last.accepted, last.drafted
        );
    })?;
    if model.json {
        let rows = pairs.iter().map(|pair| {
            json!({
                "prompt": pair.name,
                "copies": pair.copies,
                "plain_tokens_per_second": pair.plain,
                "drafted_tokens_per_second": pair.drafted,
                "faster": pair.faster,
                "faster_by_cpu_time": pair.cheaper,
                "run": summary(&pair.last),
            })
        });
        println!("{:#}", Value::Array(rows.collect()));
    }
    Ok(())
}

/// Compares the draws of the model and of a draft model at each temperature.
fn agree(
    model: &Model,
    (draft_path, draft_weights): (&PathBuf, Weights),
    tokens: usize,
    temperatures: &[f32],
    sampling: Sampling,
) -> Result<()> {
    let handle = Handle::cpu()?;
    let longest = bench::PROMPTS.iter().map(|prompt| prompt.2.len()).max().unwrap_or(0);
    let capacity = longest + 256 + tokens;
    let (mut target, content) = Llama::open(model.path()?, model.weights, capacity)?;
    let (mut draft, _) = Llama::open(draft_path, draft_weights, capacity)?;
    let text = Text::new(&content)?;
    let mut all = Vec::new();
    if !model.json {
        println!("temperature  draws  by the race  by running sums  1 - TV");
    }
    for &temperature in temperatures {
        let sampling = Sampling { temperature, ..sampling };
        let mut sum = Agreement::default();
        for (_, _, said) in bench::PROMPTS {
            let prompt = text.tokens(&text.chat(said)?)?;
            let text =
                agreement::measure(&handle, &mut target, &mut draft, &prompt, tokens, sampling)?;
            sum.add(&text);
        }
        let (race, sums, rejection) = (sum.by_race(), sum.by_sums(), sum.by_rejection());
        if model.json {
            all.push(json!({
                "temperature": temperature,
                "positions": sum.positions,
                "draws": sum.draws,
                "race": race,
                "running_sums": sums,
                "rejection_sampling": rejection,
            }));
        } else {
            let draws = sum.draws;
            println!("{temperature:>11}  {draws:>5}  {race:>11.3}  {sums:>15.3}  {rejection:>6.3}");
        }
    }
    if model.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(())
}

fn rows(model: &Model, turns: usize) -> Result<()> {
    const COUNTS: [usize; 6] = [1, 2, 4, 8, 12, 16];
    let mut all = Vec::new();
    if !model.json {
        println!("weights  rows: ms a run");
    }
    for weights in
        [Weights::Auto, Weights::Q8_0, Weights::Q4_0, Weights::File, Weights::F16, Weights::F32]
    {
        let (mut llama, _) = Llama::open(model.path()?, weights, 512)?;
        let times = bench::time_rows(&mut llama, &COUNTS, turns)?;
        let name = weights.to_possible_value().map(|value| value.get_name().to_owned());
        let name = name.unwrap_or_default();
        if model.json {
            let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64()).collect();
            all.push(json!({ "weights": name, "rows": COUNTS, "seconds": times }));
        } else {
            let shown = COUNTS.iter().zip(&times);
            let shown: Vec<String> = shown
                .map(|(count, time)| format!("{count}: {:.1}", time.as_secs_f64() * 1e3))
                .collect();
            println!("{name:<7}  {}", shown.join("  "));
        }
    }
    if model.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(())
}
