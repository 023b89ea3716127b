//! A decode loop that drafts from its own text, and from earlier answers:
//! `cargo run --example decode_loop -- [DEVICE] [--draft none|lookup|suffix|suffix-tree] [--corpus FILE]`.
//!
//! Each step asks an operator for drafts: tokens that followed an earlier occurrence of the last
//! tokens. [`prompt_lookup`] finds the last such occurrence in the text itself.
//! [`suffix_lookup`] weighs all of them, also those in a corpus of earlier answers, as a chain or
//! as a tree. The step then runs the model once on the last token and the drafts, keeps the drafts
//! that the model would have chosen itself, and appends the model's next token. So the text is
//! the model's own, with fewer runs of the model. In this example the model chooses greedily, and
//! the host follows its choices. To sample tokens instead, `sample_logits` chooses a token after
//! each draft, and `tree_verify` follows the chosen tokens.

use std::path::PathBuf;

use spec::ops::prompt_lookup::{self, PromptLookup};
use spec::ops::suffix_lookup::{self, SuffixLookup};
use spec::{Buffer, Corpus, DType, Descriptor, Handle, Result, TensorDesc};

/// Stands for a language model. The model has a fixed answer, with one token per byte, and
/// knows the next token of any text that begins like prompt and answer. A run takes several
/// tokens and returns the next token after each, like one forward pass of a transformer.
struct Model<'a> {
    prompt: &'a str,
    answer: &'a str,
}

impl Model<'_> {
    /// What the model chooses after the last token of `text`, and after each draft.
    fn run(&self, text: &[i32], drafts: &[Draft]) -> Vec<i32> {
        let known = [self.prompt, self.answer].concat();
        let choose = |text: &[i32]| {
            let is_known = text.iter().zip(known.bytes()).all(|(&a, b)| a == i32::from(b));
            known.as_bytes().get(text.len()).copied().filter(|_| is_known).map_or(END, i32::from)
        };
        let mut paths = vec![text.to_vec()];
        for draft in drafts {
            paths.push([&paths[draft.parent], &[draft.token][..]].concat());
        }
        paths.iter().map(|path| choose(path)).collect()
    }
}

/// The token that ends a text.
const END: i32 = 0;
/// The longest text, and the most drafts of a step.
const MAX: usize = 512;
const MAX_DRAFT: usize = 8;

/// A draft, and what it follows: 0 for the text's last token, i for draft i - 1.
struct Draft {
    token: i32,
    parent: usize,
}

/// An operator that drafts, and the memory of its arguments: one request here, a row for each
/// request in an engine. Operators are created once, with room for the longest text.
struct Drafter {
    operator: Operator,
    workspace: Buffer<u8>,
    tokens: Buffer<i32>,
    lengths: Buffer<i32>,
    drafts: Buffer<i32>,
    parents: Buffer<i32>,
    counts: Buffer<i32>,
    flags: Buffer<u32>,
}

enum Operator {
    None,
    Lookup(Box<Descriptor<PromptLookup>>),
    Suffix(Box<Descriptor<SuffixLookup>>),
}

impl Drafter {
    /// The drafter of this name; of `suffix` and `suffix-tree` with the texts of a corpus.
    fn new(handle: &Handle, name: &str, corpus: &Corpus<i32>) -> Result<Self> {
        let flags = TensorDesc::new(DType::U32, [1]);
        let operator = match name {
            "none" => Operator::None,
            "lookup" => {
                let params = PromptLookup::default().max_draft(MAX_DRAFT);
                let tensors = params.tensors(DType::I32, 1, MAX).flags(flags);
                Operator::Lookup(Box::new(handle.create(&params, &tensors)?))
            }
            _ => {
                let width = if name == "suffix-tree" { 2 } else { 1 };
                let params = SuffixLookup::default().width(width);
                let parents = TensorDesc::new(DType::I32, [1, MAX_DRAFT]);
                let tensors = params.tensors(DType::I32, 1, MAX, MAX_DRAFT).parents(parents);
                let tensors = tensors.corpus(corpus.tokens_desc());
                let tensors = tensors.corpus_length(corpus.length_desc()).flags(flags);
                Operator::Suffix(Box::new(handle.create(&params, &tensors)?))
            }
        };
        let workspace = match &operator {
            Operator::None => handle.allocate(0)?,
            Operator::Lookup(operator) => operator.workspace(handle)?,
            Operator::Suffix(operator) => operator.workspace(handle)?,
        };
        // Those of a chain, which `prompt_lookup` does not write.
        let parents: Vec<i32> = (0..MAX_DRAFT as i32).collect();
        Ok(Drafter {
            operator,
            workspace,
            tokens: handle.allocate(MAX)?,
            lengths: handle.allocate(1)?,
            drafts: handle.allocate(MAX_DRAFT)?,
            parents: handle.upload(&parents)?,
            counts: handle.upload(&[0])?,
            flags: handle.upload(&[0])?,
        })
    }

    /// Up to `limit` drafts of what follows the text.
    fn draft(&mut self, corpus: &Corpus<i32>, text: &[i32], limit: usize) -> Result<Vec<Draft>> {
        // All tokens so far. The pattern to look up is the end of the text, so the last token is
        // included.
        self.tokens.write(text)?;
        self.lengths.write(&[text.len() as i32])?;
        let Drafter { tokens, lengths, drafts, parents, counts, flags, .. } = self;
        match &self.operator {
            Operator::None => {}
            Operator::Lookup(operator) => {
                let buffers = prompt_lookup::Buffers::new(&*tokens, &*lengths, drafts, counts);
                operator.call(&mut self.workspace, buffers.flags(flags))?;
            }
            Operator::Suffix(operator) => {
                let reading = corpus.read();
                let buffers = suffix_lookup::Buffers::new(&*tokens, &*lengths, drafts, counts)
                    .corpus(reading.tokens())
                    .corpus_length(reading.length())
                    .parents(parents)
                    .flags(flags);
                operator.call(&mut self.workspace, buffers)?;
            }
        }
        let count = self.counts.to_vec()?[0] as usize;
        assert_eq!(self.flags.to_vec()?, [0], "no length was beyond its row");
        let (tokens, parents) = (self.drafts.to_vec()?, self.parents.to_vec()?);
        let drafts = tokens.into_iter().zip(parents).take(count.min(limit));
        Ok(drafts.map(|(token, parent)| Draft { token, parent: parent as usize }).collect())
    }
}

/// Decodes until the model ends the text, or until the text has `max` tokens. Returns the
/// answer, and the number of runs of the model.
fn decode(
    model: &Model<'_>,
    drafter: &mut Drafter,
    corpus: &Corpus<i32>,
    max: usize,
) -> Result<(Vec<i32>, usize)> {
    // The text starts as the prompt, so the first step drafts from the prompt alone.
    let mut text: Vec<i32> = model.prompt.bytes().map(i32::from).collect();
    let mut runs = 0;
    while text.len() < max && text.last() != Some(&END) {
        let drafts = drafter.draft(corpus, &text, max - text.len() - 1)?;

        // One run of the model, however many drafts there are.
        let chosen = model.run(&text, &drafts);
        runs += 1;

        // The model's token after the last one, then its token after each draft that it chose.
        let mut next = Some(0);
        while let Some(node) = next {
            let token = chosen[node];
            text.push(token);
            let stood =
                drafts.iter().position(|draft| draft.parent == node && draft.token == token);
            next = stood.map(|draft| draft + 1).filter(|_| token != END);
        }
    }
    Ok((text.split_off(model.prompt.len()), runs))
}

fn shown(answer: &[i32]) -> String {
    let letters = answer.iter().filter(|&&token| token != END);
    letters.map(|&token| token as u8 as char).collect()
}

/// The answer repeats the prompt with a small change: a task for which drafting works well.
const MODEL: Model<'_> = Model {
    prompt: "fn area(width: f32, height: f32) -> f32 { width * height }\nThe same in f64:\n",
    answer: "fn area(width: f64, height: f64) -> f64 { width * height }\n",
};

fn main() -> Result<()> {
    let (mut device, mut draft, mut file) = ("auto".to_owned(), "lookup".to_owned(), None);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--draft" => draft = words.next().unwrap_or_default(),
            "--corpus" => file = words.next().map(PathBuf::from),
            _ => device = word,
        }
    }
    if !["none", "lookup", "suffix", "suffix-tree"].contains(&draft.as_str()) {
        eprintln!("--draft is none, lookup, suffix or suffix-tree");
        std::process::exit(2);
    }
    let handle: Handle = device.parse()?;
    let corpus = match &file {
        Some(file) if file.exists() => Corpus::load(&handle, file, 1 << 20)?,
        _ => Corpus::new(&handle, 1 << 20)?,
    };
    let mut drafter = Drafter::new(&handle, &draft, &corpus)?;
    let (answer, runs) = decode(&MODEL, &mut drafter, &corpus, MAX)?;
    print!("{}", shown(&answer));
    println!("{} tokens in {runs} runs of the model, on {}", answer.len(), handle.device());
    if let Some(file) = &file {
        // Requests that come later draft from this answer.
        corpus.append(&answer)?;
        corpus.save(file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, corpus: &Corpus<i32>, max: usize) -> (String, usize) {
        let cpu = Handle::cpu().unwrap();
        let mut drafter = Drafter::new(&cpu, name, corpus).unwrap();
        let (answer, runs) = decode(&MODEL, &mut drafter, corpus, max).unwrap();
        (shown(&answer), runs)
    }

    /// Drafts change only the number of runs of the model.
    #[test]
    fn drafts_save_runs_and_leave_the_text() {
        let corpus = Corpus::new(&Handle::cpu().unwrap(), 1024).unwrap();
        let (plain, runs) = run("none", &corpus, MAX);
        assert_eq!((&*plain, runs), (MODEL.answer, MODEL.answer.len() + 1));
        for name in ["lookup", "suffix", "suffix-tree"] {
            let (text, fewer) = run(name, &corpus, MAX);
            assert_eq!(text, plain, "{name}");
            assert!(fewer * 3 < runs, "{name}: {fewer} runs instead of {runs}");
        }
        // An earlier answer is the same text.
        let answer: Vec<i32> = MODEL.answer.bytes().map(i32::from).collect();
        corpus.append(&answer).unwrap();
        for name in ["suffix", "suffix-tree"] {
            let (text, fewer) = run(name, &corpus, MAX);
            assert_eq!(text, plain, "{name}");
            assert!(fewer * 5 < runs, "{name}: {fewer} runs instead of {runs}");
        }
    }

    /// Decoding ends when the text has the largest number of tokens.
    #[test]
    fn a_row_is_not_overrun() {
        let corpus = Corpus::new(&Handle::cpu().unwrap(), 1024).unwrap();
        for name in ["lookup", "suffix-tree"] {
            let (text, _) = run(name, &corpus, MODEL.prompt.len() + 20);
            assert_eq!(text, MODEL.answer[..20], "{name}");
        }
    }
}
