//! Speculative decoding of a Llama model from a GGUF file.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use spec::{Corpus, Handle};
use spec_llm::replay::{self, Outcome, Timed, WAYS};
use spec_llm::{
    Agreement, Decoded, Drafter, Llama, Request, Result, Sampling, Text, Weights, agreement, bench,
    decode, drafting,
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
    /// Writes the model's answers to the prompts under prompts/like to a file, for `replay` and
    /// `turns`; or, of files that are named, their tokens.
    Texts {
        #[command(flatten)]
        model: Model,
        /// Where to write them, as JSON.
        #[arg(long)]
        out: PathBuf,
        /// Tokens of an answer, or of a file, at most.
        #[arg(long, default_value_t = 96)]
        tokens: usize,
        /// Files whose own text takes the place of answers. Those with one ending are a group.
        files: Vec<PathBuf>,
    },
    /// Compares drafters on texts that are known, without the model: tokens a run, accepted share.
    Replay {
        /// What `texts` wrote.
        texts: PathBuf,
        /// One JSON value instead of words.
        #[arg(long)]
        json: bool,
    },
    /// Decodes the answers that `texts` wrote, without drafts and with each drafter in turns.
    Turns {
        #[command(flatten)]
        model: Model,
        /// What `texts` wrote.
        texts: PathBuf,
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
    /// Texts of earlier answers, from which `suffix` and `suffix-tree` draft as well. The answer is
    /// added to them. A file that is not there is made.
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// The most tokens that the corpus keeps.
    #[arg(long, default_value_t = 1 << 20)]
    corpus_tokens: usize,
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

/// The most drafts behind each node of a tree.
const TREE_WIDTH: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DraftKind {
    None,
    Lookup,
    Ngram,
    Suffix,
    SuffixTree,
    Model,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let threads = match &options.command {
        Some(
            Command::Bench { model, .. }
            | Command::Rows { model, .. }
            | Command::Texts { model, .. }
            | Command::Turns { model, .. }
            | Command::Agree { model, .. },
        ) => model.threads,
        Some(Command::Replay { .. }) => None,
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
        Some(Command::Texts { model, out, tokens, files }) => texts(model, out, *tokens, files),
        Some(Command::Replay { texts, json }) => compare_known(texts, *json),
        Some(Command::Turns { model, texts }) => take_turns(model, texts),
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
    /// The corpus of the file, or an empty one where the file is not there.
    fn corpus(&self, handle: &Handle) -> Result<Option<Arc<Corpus<i32>>>> {
        let Some(path) = &self.corpus else { return Ok(None) };
        let has_corpus = matches!(self.draft, DraftKind::Suffix | DraftKind::SuffixTree);
        ensure!(has_corpus, "--corpus is for --draft suffix and suffix-tree");
        let corpus = if path.try_exists().context("--corpus")? {
            Corpus::load(handle, path, self.corpus_tokens)?
        } else {
            Corpus::new(handle, self.corpus_tokens)?
        };
        Ok(Some(Arc::new(corpus)))
    }

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
    let corpus = options.corpus(&handle)?;
    let suffix = |width| Drafter::suffix(&handle, capacity, most, width, corpus.clone());
    let mut drafter = match options.draft {
        DraftKind::None => Drafter::None,
        DraftKind::Lookup => Drafter::lookup(&handle, capacity, most)?,
        DraftKind::Ngram => Drafter::ngram(&handle, &prompt, capacity, most)?,
        DraftKind::Suffix => suffix(1)?,
        DraftKind::SuffixTree => {
            ensure!(model.has_trees(), "a tree needs --weights blocks, on a processor with AVX2");
            suffix(TREE_WIDTH)?
        }
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
    if let (Some(corpus), Some(path)) = (&corpus, &options.corpus) {
        corpus.append(&drafting::for_corpus(&drafted.tokens)?)?;
        corpus.save(path)?;
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

fn texts(options: &Model, out: &Path, tokens: usize, files: &[PathBuf]) -> Result<()> {
    /// Tokens that a prompt under prompts/like has at most.
    const PROMPT: usize = 1024;
    let handle = Handle::cpu()?;
    let (mut model, content) = Llama::open(options.path()?, options.weights, PROMPT + tokens)?;
    let text = Text::new(&content)?;
    let known = if files.is_empty() {
        let mut request = bench::request(tokens, 8);
        request.stop = text.end;
        request.row = bench::cost_of_a_row(&mut model, request.max_draft)?;
        replay::answers(&handle, &mut model, &text, &request, |known| {
            if !options.json {
                let answer = text.text(&known.answer).unwrap_or_default();
                println!("{}: {answer}\n", known.group);
            }
        })?
    } else {
        replay::files(files, &text, tokens)?
    };
    replay::save(out, &known)
}

/// Tokens a run, and the share of drafts that stood.
fn rates(outcome: &Outcome) -> (f64, f64) {
    let share = outcome.accepted as f64 / outcome.drafted.max(1) as f64;
    (outcome.tokens as f64 / outcome.runs.max(1) as f64, share)
}

fn compare_known(path: &Path, json: bool) -> Result<()> {
    let groups = replay::replay(&Handle::cpu()?, &replay::load(path)?)?;
    let micros = |outcome: &Outcome| outcome.time.as_secs_f64() * 1e6 / outcome.runs.max(1) as f64;
    if json {
        let rows = groups.iter().flat_map(|(group, outcomes)| {
            outcomes.iter().map(move |(way, outcome)| {
                let (each, share) = rates(outcome);
                json!({
                    "group": group,
                    "drafter": way.name,
                    "tokens": outcome.tokens,
                    "runs": outcome.runs,
                    "drafted": outcome.drafted,
                    "accepted": outcome.accepted,
                    "tokens_per_run": each,
                    "accepted_share": share,
                    "microseconds_per_call": micros(outcome),
                })
            })
        });
        println!("{:#}", Value::Array(rows.collect()));
        return Ok(());
    }
    let names = groups.iter().map(|group| format!("{:>24}", group.0)).collect::<String>();
    println!("{:<20}{names}", "");
    println!("{:<20}{}", "", "    tokens/run  stood   us".repeat(groups.len()));
    for (at, way) in WAYS.iter().enumerate() {
        let cells = groups.iter().map(|(_, outcomes)| {
            let outcome = &outcomes[at].1;
            let (each, share) = rates(outcome);
            format!("{each:>14.2}{:>6.0}%{:>5.0}", 100.0 * share, micros(outcome))
        });
        println!("{:<20}{}", way.name, cells.collect::<String>());
    }
    Ok(())
}

fn take_turns(options: &Model, path: &Path) -> Result<()> {
    let handle = Handle::cpu()?;
    let texts = replay::load(path)?;
    let longest = texts.iter().map(|known| known.prompt.len() + known.answer.len()).max();
    let capacity = longest.context("no texts")? + 32;
    let (mut model, _) = Llama::open(options.path()?, options.weights, capacity)?;
    let mut request = bench::request(0, 8);
    request.row = bench::cost_of_a_row(&mut model, request.max_draft)?;
    let all = replay::turns(&handle, &mut model, &texts, &request)?;
    let by = |a: std::time::Duration, b: std::time::Duration| a.as_secs_f64() / b.as_secs_f64();
    let mut rows = Vec::new();
    if !options.json {
        println!("a row costs {:.3} of a run", request.row);
        println!("                        tokens/run  stood  faster  by CPU time");
    }
    for turns in &all {
        for (way, Timed { outcome, total, processors }) in &turns.drafted {
            let (each, share) = rates(outcome);
            let (faster, cheaper) =
                (by(turns.plain.total, *total), by(turns.plain.processors, *processors));
            if options.json {
                rows.push(json!({
                    "group": turns.group,
                    "drafter": way.name,
                    "cost_of_a_row": request.row,
                    "tokens_per_run": each,
                    "accepted_share": share,
                    "faster": faster,
                    "faster_by_cpu_time": cheaper,
                    "tokens_per_second_without_drafts":
                        turns.plain.outcome.tokens as f64 / turns.plain.total.as_secs_f64(),
                }));
            } else {
                let (group, name) = (&turns.group, way.name);
                let share = 100.0 * share;
                println!(
                    "{group:<8}{name:<20}{each:>6.2}{share:>6.0}%{faster:>8.2}{cheaper:>13.2}"
                );
            }
        }
    }
    if options.json {
        println!("{:#}", Value::Array(rows));
    }
    Ok(())
}
