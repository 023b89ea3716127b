//! The commands that measure: drafts against none, drafters against each other, rows, agreement.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::ValueEnum;
use serde_json::{Value, json};
use spec::Handle;
use spec_llm::batch::{self, Batch, Sharing};
use spec_llm::replay::{self, Outcome, Timed, WAYS};
use spec_llm::{Agreement, Llama, Result, Sampling, Text, Weights, agreement, bench};

use crate::{Model, summary};

pub fn compare(model: &Model, tokens: usize, max_draft: usize, turns: usize) -> Result<()> {
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

/// The most frequent tokens of files.
fn frequent(text: &Text, files: &[PathBuf], vocab: usize, count: usize) -> Result<Vec<u32>> {
    let read = |path: &PathBuf| {
        text.tokens(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
    };
    agreement::frequent(&files.iter().map(read).collect::<Result<Vec<_>>>()?, vocab, count)
}

/// Compares the draws of the model and of a draft model at each temperature, and those of a head
/// of the most frequent tokens of files.
pub fn agree(
    model: &Model,
    (draft_path, draft_weights): (&PathBuf, Weights),
    tokens: usize,
    temperatures: &[f32],
    sampling: Sampling,
    head: Option<(usize, &[PathBuf])>,
) -> Result<()> {
    let handle = Handle::cpu()?;
    let longest = bench::PROMPTS.iter().map(|prompt| prompt.2.len()).max().unwrap_or(0);
    let capacity = longest + 256 + tokens;
    let (mut target, content) = Llama::open(model.path()?, model.weights, capacity)?;
    let (mut draft, _) = Llama::open(draft_path, draft_weights, capacity)?;
    let text = Text::new(&content)?;
    let head = head.map(|(count, files)| frequent(&text, files, target.vocab(), count));
    let head = head.transpose()?;
    let mut all = Vec::new();
    if !model.json {
        let of_head = "  head: within  token_ids  without  1 - TV";
        let of_head = if head.is_some() { of_head } else { "" };
        println!("temperature  draws  by the race  by running sums  1 - TV{of_head}");
    }
    for &temperature in temperatures {
        let sampling = Sampling { temperature, ..sampling };
        let mut sum = Agreement::default();
        for (_, _, said) in bench::PROMPTS {
            let prompt = text.tokens(&text.chat(said)?)?;
            let models = (&mut target, &mut draft);
            let head = head.as_deref();
            sum.add(&agreement::measure(&handle, models, &prompt, tokens, sampling, head)?);
        }
        let (race, sums, rejection) = (sum.by_race(), sum.by_sums(), sum.by_rejection());
        let of_draws = |count| count as f64 / sum.draws as f64;
        let (within, mapped) = (of_draws(sum.head.within), of_draws(sum.head.mapped));
        let unmapped = of_draws(sum.head.unmapped);
        let head_rejection = sum.head.overlap / sum.positions as f64;
        if model.json {
            all.push(json!({
                "temperature": temperature,
                "positions": sum.positions,
                "draws": sum.draws,
                "race": race,
                "running_sums": sums,
                "rejection_sampling": rejection,
                "head": head.as_ref().map(|head| json!({
                    "tokens": head.len(),
                    "within": within,
                    "token_ids": mapped,
                    "without_token_ids": unmapped,
                    "rejection_sampling": head_rejection,
                })),
            }));
        } else {
            let draws = sum.draws;
            print!("{temperature:>11}  {draws:>5}  {race:>11.3}  {sums:>15.3}  {rejection:>6.3}");
            if head.is_some() {
                print!("  {within:>12.3}  {mapped:>9.3}  {unmapped:>7.3}  {head_rejection:>6.3}");
            }
            println!();
        }
    }
    if model.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(())
}

/// Decodes eight texts at once, without drafts and with each budget in each way.
pub fn batch(options: &Model, tokens: usize, budgets: &[usize], temperature: f32) -> Result<()> {
    let handle = Handle::cpu()?;
    let messages = replay::mixed();
    let most = budgets.iter().max().context("no --budget")?;
    let longest = messages.iter().map(|message| message.len()).max().unwrap_or(0);
    // A token has at least one byte; the chat template adds a few dozen tokens.
    let capacity = longest + 256 + tokens + most;
    let (mut models, mut prompts, mut stop) = (Vec::new(), Vec::new(), None);
    for message in messages {
        let (model, content) = Llama::open(options.path()?, options.weights, capacity)?;
        let text = Text::new(&content)?;
        ensure!(model.has_trees(), "a tree needs --weights blocks, on a processor with AVX2");
        prompts.push(text.tokens(&text.chat(message)?)?);
        models.push(model);
        stop = text.end;
    }
    let sampling = Sampling { temperature, ..Sampling::GREEDY };
    // The block product takes up to eight rows at once: one row, and seven additional ones.
    let row = bench::cost_of_a_row(&mut models[0], 7)? as f32;
    let plain = Batch { tokens, stop, sampling, sharing: Sharing::Shared, budget: 0, row };
    let without = batch::decode(&handle, &mut models, &prompts, &plain)?;
    let mut all = Vec::new();
    let mut show = |sharing: &str, budget: usize, run: &batch::Decoded| {
        let tokens = run.tokens() as f64;
        let (each, speed) = (tokens / run.runs as f64, tokens / run.total.as_secs_f64());
        let faster = without.total.as_secs_f64() / run.total.as_secs_f64();
        let cheaper = without.processors.as_secs_f64() / run.processors.as_secs_f64();
        if options.json {
            all.push(json!({
                "sharing": sharing,
                "budget": budget,
                "tokens": run.tokens(),
                "steps": run.steps,
                "runs": run.runs,
                "drafted": run.drafted,
                "tokens_per_run": each,
                "tokens_per_second": speed,
                "faster": faster,
                "faster_by_cpu_time": cheaper,
            }));
        } else {
            println!(
                "{sharing:<8}{budget:>7}{:>7}{each:>12.2}{:>9}{speed:>10.1}{faster:>8.2}{cheaper:>13.2}",
                run.steps, run.drafted
            );
        }
    };
    if !options.json {
        println!("an additional row costs {row:.2} of a run");
        println!("sharing  budget  steps  tokens/run  drafted  tokens/s  faster  by CPU time");
    }
    show("none", 0, &without);
    for &budget in budgets {
        for (name, sharing) in
            [("equal", Sharing::Equal), ("shared", Sharing::Shared), ("trusted", Sharing::Trusted)]
        {
            let options = Batch { sharing, budget, ..plain };
            let run = batch::decode(&handle, &mut models, &prompts, &options)?;
            ensure!(run.answers == without.answers, "{name}, {budget}: drafts changed a text");
            show(name, budget, &run);
        }
    }
    if options.json {
        println!("{:#}", Value::Array(all));
    }
    Ok(())
}

pub fn rows(model: &Model, turns: usize) -> Result<()> {
    const COUNTS: [usize; 6] = [1, 2, 4, 8, 12, 16];
    let mut all = Vec::new();
    if !model.json {
        println!("weights  rows: ms per run");
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

pub fn texts(options: &Model, out: &Path, tokens: usize, files: &[PathBuf]) -> Result<()> {
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

pub fn compare_known(path: &Path, json: bool) -> Result<()> {
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

pub fn take_turns(options: &Model, path: &Path) -> Result<()> {
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
