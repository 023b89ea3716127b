//! Speculative decoding of a Llama model from a GGUF file.

mod measure;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};
use spec::{Corpus, Handle};
use spec_llm::{
    Decoded, Drafter, Llama, Request, Result, Sampling, Text, Weights, bench, decode, drafting,
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
    /// Compares drafters on texts that are known, without the model: tokens per run, accepted share.
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
    /// Answers eight prompts at once that share a budget of drafts, by each way to share it, and
    /// without drafts.
    Batch {
        #[command(flatten)]
        model: Model,
        /// Tokens of an answer, at most.
        #[arg(long, default_value_t = 96)]
        tokens: usize,
        /// The most drafts of a step, of all requests together; one table row each.
        #[arg(long, value_delimiter = ',', default_values_t = [8, 16, 32, 64, 128])]
        budget: Vec<usize>,
        /// 0 takes the likeliest token.
        #[arg(long, default_value_t = 0.0)]
        temperature: f32,
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
        /// Also with a head of as many tokens as the draft model's: the most frequent of the files,
        /// then those of the earliest merges.
        #[arg(long, requires = "files")]
        head: Option<usize>,
        /// Texts in which tokens are counted for --head.
        #[arg(requires = "head")]
        files: Vec<PathBuf>,
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
            | Command::Batch { model, .. }
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
            measure::compare(model, *tokens, *max_draft, usize::from(*turns))
        }
        Some(Command::Rows { model, turns }) => measure::rows(model, usize::from(*turns)),
        Some(Command::Texts { model, out, tokens, files }) => {
            measure::texts(model, out, *tokens, files)
        }
        Some(Command::Replay { texts, json }) => measure::compare_known(texts, *json),
        Some(Command::Turns { model, texts }) => measure::take_turns(model, texts),
        Some(Command::Batch { model, tokens, budget, temperature }) => {
            measure::batch(model, *tokens, budget, *temperature)
        }
        Some(Command::Agree {
            model,
            draft_model,
            draft_weights,
            tokens,
            temperature,
            top_k,
            top_p,
            seed,
            head,
            files,
        }) => {
            let path = draft_model.as_ref().map_or_else(|| model.path(), Ok)?;
            let sampling = Sampling { temperature: 0.0, top_k: *top_k, top_p: *top_p, seed: *seed };
            let head = head.map(|count| (count, &files[..]));
            measure::agree(model, (path, *draft_weights), *tokens, temperature, sampling, head)
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
    let max = if options.draft == DraftKind::None { 0 } else { options.max_draft };
    let mut row = bench::cost_of_a_row(&mut model, max)?;
    let corpus = options.corpus(&handle)?;
    let suffix = |width| Drafter::suffix(&handle, capacity, max, width, corpus.clone());
    let mut drafter = match options.draft {
        DraftKind::None => Drafter::None,
        DraftKind::Lookup => Drafter::lookup(&handle, capacity, max)?,
        DraftKind::Ngram => Drafter::ngram(&handle, &prompt, capacity, max)?,
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
    let request = Request { tokens: options.tokens, stop: text.end, max_draft: max, sampling, row };

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
