//! A batch of requests that share a budget of drafts:
//! `cargo run --example tree_budget -- [DEVICE] [BUDGET]`.
//!
//! Each step runs a model on a fixed number of rows: the last token of each request, and the drafts
//! of all requests together. [`suffix_lookup`] proposes a tree of candidates for each request,
//! [`draft_tree`] decides which of them are worth a row, and [`tree_verify`] follows what the model
//! chose. The text of each request is the model's own, whatever the drafts are. Three ways to share
//! the rows are compared: in equal parts, by the shares of `suffix_lookup`, and by these shares and
//! a `trust` in each request, which is learnt from how many of its drafts were kept.

use spec::ops::{AppendTokens, DraftTree, SuffixLookup, TreeVerify};
use spec::ops::{append_tokens, draft_tree, suffix_lookup, tree_verify};
use spec::{DType, Handle, Ready, Result, TensorDesc};

/// Stands for a language model with one token per byte: a prompt and the answer to it.
#[derive(Clone, Copy)]
struct Request {
    prompt: &'static str,
    answer: &'static str,
}

/// The token that ends a text.
const END: i32 = 0;
/// The longest text, the candidates of a request, and its most drafts.
const MAX: usize = 512;
const CANDIDATES: usize = 24;

impl Request {
    /// The token that the model chooses after a text; `END` after one that it would not write.
    fn choose(&self, text: &[i32]) -> i32 {
        let known = [self.prompt, self.answer].concat();
        let is_known = text.iter().zip(known.bytes()).all(|(&a, b)| a == i32::from(b));
        known.as_bytes().get(text.len()).copied().filter(|_| is_known).map_or(END, i32::from)
    }
}

/// How requests share the rows of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sharing {
    Equal,
    Shared,
    Trusted,
}

fn ints<const R: usize>(shape: [usize; R]) -> TensorDesc
where
    [usize; R]: spec::Shape,
{
    TensorDesc::new(DType::I32, shape)
}

/// The operators of a step. Their sizes do not change from step to step.
struct Operators {
    lookup: Ready<SuffixLookup>,
    tree: Ready<DraftTree>,
    verify: Ready<TreeVerify>,
    append: Ready<AppendTokens>,
}

impl Operators {
    /// For `batch` requests with up to `n` drafts each, in `rows` rows.
    fn new(handle: &Handle, batch: usize, n: usize, rows: usize) -> Result<Self> {
        let (nodes, floats) = (n + 1, |shape| TensorDesc::new(DType::F32, shape));
        let lookup = SuffixLookup::new().width(3);
        let lookup_tensors = lookup
            .tensors(DType::I32, batch, MAX, CANDIDATES)
            .parents(ints([batch, CANDIDATES]))
            .shares(floats([batch, CANDIDATES]));
        let tree = DraftTree::new().cumulative(true);
        let mut tree_tensors = tree
            .tensors(DType::I32, batch, CANDIDATES, n)
            .parents(ints([batch, CANDIDATES]))
            .shares(floats([batch, CANDIDATES]))
            .counts(ints([batch]))
            .trust(TensorDesc::new(DType::F32, [batch]))
            .finished(ints([batch]))
            .budget(ints([1]))
            .roots(ints([batch]))
            .first_child(ints([batch, nodes]))
            .next_sibling(ints([batch, nodes]))
            .row_offsets(ints([batch + 1]))
            .row_requests(ints([rows]))
            .row_parents(ints([rows]))
            .row_tokens(ints([rows]));
        // Drafts lie behind the root, where `tree_verify` reads them.
        tree_tensors.drafts = TensorDesc::with_strides(DType::I32, [batch, n], [nodes as isize, 1]);
        let verify = TreeVerify::new(n);
        let mut verify_tensors = verify.tensors(batch, nodes).row_offsets(ints([batch + 1]));
        verify_tensors.target_tokens = ints([rows]);
        let append = AppendTokens::new();
        let append_tensors = append
            .tensors(DType::I32, batch, MAX, nodes)
            .stop_tokens(ints([batch, 1]))
            .finished(ints([batch]))
            .last_tokens(ints([batch]));
        Ok(Operators {
            lookup: Ready::new(handle, &lookup, &lookup_tensors)?,
            tree: Ready::new(handle, &tree, &tree_tensors)?,
            verify: Ready::new(handle, &verify, &verify_tensors)?,
            append: Ready::new(handle, &append, &append_tensors)?,
        })
    }
}

/// Decodes all requests. Returns their texts and the number of steps.
fn decode(
    handle: &Handle,
    requests: &[Request],
    sharing: Sharing,
    budget: usize,
) -> Result<(Vec<String>, usize)> {
    let batch = requests.len();
    let n = if sharing == Sharing::Equal { budget / batch } else { CANDIDATES };
    let (rows, nodes) = (batch + budget, n + 1);
    let mut operators = Operators::new(handle, batch, n, rows)?;
    let mut tokens = vec![-1_i32; batch * MAX];
    for (row, request) in tokens.chunks_mut(MAX).zip(requests) {
        row.iter_mut().zip(request.prompt.bytes()).for_each(|(to, from)| *to = i32::from(from));
    }
    let lengths: Vec<i32> = requests.iter().map(|request| request.prompt.len() as i32).collect();
    let last = requests
        .iter()
        .map(|request| i32::from(request.prompt.as_bytes()[request.prompt.len() - 1]));
    let (mut tokens, mut lengths) = (handle.upload(&tokens)?, handle.upload(&lengths)?);
    let mut last_tokens = handle.upload(&last.collect::<Vec<i32>>())?;
    let mut finished = handle.upload(&vec![0_i32; batch])?;
    let stop_tokens = handle.upload(&vec![END; batch])?;
    let budget = handle.upload(&[budget as i32])?;
    let mut trust = vec![1.0_f32; batch];
    let mut trust_there = handle.upload(&trust)?;
    let new = |len: usize| handle.allocate::<i32>(len);
    let (mut candidates, mut counts) = (new(batch * CANDIDATES)?, new(batch)?);
    let (mut parents, mut shares) =
        (new(batch * CANDIDATES)?, handle.allocate::<f32>(batch * CANDIDATES)?);
    let (mut draft_tokens, mut num_drafts) = (new(batch * nodes)?, new(batch)?);
    let (mut first_child, mut next_sibling) = (new(batch * nodes)?, new(batch * nodes)?);
    let (mut row_offsets, mut row_requests) = (new(batch + 1)?, new(rows)?);
    let (mut row_parents, mut row_tokens) = (new(rows)?, new(rows)?);
    let mut chosen = new(rows)?;
    let (mut emitted, mut path) = (new(batch * nodes)?, new(batch * nodes)?);
    let (mut num_tokens, mut appended) = (new(batch)?, new(batch)?);
    let mut steps = 0;
    while finished.to_vec()?.contains(&0) {
        let found = suffix_lookup::Buffers::new(&tokens, &lengths, &mut candidates, &mut counts);
        operators.lookup.call(found.parents(&mut parents).shares(&mut shares))?;
        let (_, behind_the_root) = draft_tokens.view_mut().split_at(1);
        let kept = draft_tree::Buffers::new(&candidates, behind_the_root, &mut num_drafts)
            .parents(&parents)
            .shares(&shares)
            .counts(&counts)
            .trust(&trust_there)
            .finished(&finished)
            .budget(&budget)
            .roots(&last_tokens)
            .first_child(&mut first_child)
            .next_sibling(&mut next_sibling)
            .row_offsets(&mut row_offsets)
            .row_requests(&mut row_requests)
            .row_parents(&mut row_parents)
            .row_tokens(&mut row_tokens);
        operators.tree.call(kept)?;

        // One run of the model on all rows. What a row sees besides its text is its own token and
        // those of the rows above it. Padding rows come last.
        let known = (tokens.to_vec()?, lengths.to_vec()?);
        let packed = row_requests.to_vec()?.into_iter().zip(row_parents.to_vec()?);
        let mut seen: Vec<Vec<i32>> = Vec::new();
        let mut choices = vec![0; rows];
        for (at, ((request, parent), token)) in packed.zip(row_tokens.to_vec()?).enumerate() {
            let (Ok(request), above) = (usize::try_from(request), usize::try_from(parent)) else {
                break;
            };
            let text = &known.0[request * MAX..][..known.1[request] as usize];
            seen.push(above.map_or(text.to_vec(), |above| [&seen[above][..], &[token]].concat()));
            choices[at] = requests[request].choose(&seen[at]);
        }
        chosen.write(&choices)?;
        steps += 1;

        let followed = tree_verify::Buffers::new(tree_verify::Required {
            draft_tokens: (&draft_tokens).into(),
            target_tokens: (&chosen).into(),
            tokens: (&mut emitted).into(),
            nodes: (&mut path).into(),
            num_tokens: (&mut num_tokens).into(),
        });
        let followed = followed.first_child(&first_child).next_sibling(&next_sibling);
        operators.verify.call(followed.row_offsets(&row_offsets))?;
        let longer = append_tokens::Buffers::new(append_tokens::Required {
            tokens: (&mut tokens).into(),
            lengths: (&mut lengths).into(),
            new_tokens: (&emitted).into(),
            new_counts: (&num_tokens).into(),
            appended: (&mut appended).into(),
        });
        let longer = longer.stop_tokens(&stop_tokens).finished(&mut finished);
        operators.append.call(longer.last_tokens(&mut last_tokens))?;

        // A request of which k drafts were accepted, and the next one rejected, accepts about k of
        // k + 1 drafts.
        if sharing == Sharing::Trusted {
            for (trust, appended) in trust.iter_mut().zip(appended.to_vec()?) {
                let kept = (appended - 1).max(0) as f32;
                *trust = 0.75 * *trust + 0.25 * kept / (kept + 1.0);
            }
            trust_there.write(&trust)?;
        }
    }
    let (tokens, lengths) = (tokens.to_vec()?, lengths.to_vec()?);
    let texts = tokens.chunks(MAX).zip(lengths).zip(requests).map(|((row, length), request)| {
        let answer = &row[request.prompt.len()..length as usize];
        answer
            .iter()
            .filter(|&&token| token != END)
            .map(|&token| token as u8 as char)
            .collect::<String>()
    });
    Ok((texts.collect(), steps))
}

/// A copy, two edits, and prose: drafts of the first are kept, those of the last are not.
const REQUESTS: [Request; 4] = [
    Request {
        prompt: "Repeat: the quick brown fox jumps over the lazy dog, and sleeps in the sun. ->",
        answer: " the quick brown fox jumps over the lazy dog, and sleeps in the sun.",
    },
    Request {
        prompt: "fn area(width: f32, height: f32) -> f32 { width * height }\nThe same in f64:\n",
        answer: "fn area(width: f64, height: f64) -> f64 { width * height }\n",
    },
    Request {
        prompt: "{\"name\": \"ada\", \"born\": 1815}, {\"name\": \"alan\", \"born\": 1912}, ",
        answer: "{\"name\": \"grace\", \"born\": 1906}, {\"name\": \"edsger\", \"born\": 1930}",
    },
    Request {
        prompt: "What is a corpus? ",
        answer: "A body of writing that somebody gathered, often to study how words are used.",
    },
];

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let handle: Handle = words.next().unwrap_or_else(|| "auto".to_owned()).parse()?;
    let budget = words.next().and_then(|word| word.parse().ok()).unwrap_or(8);
    let tokens: usize = REQUESTS.iter().map(|request| request.answer.len() + 1).sum();
    println!(
        "{} requests, {tokens} tokens, {budget} drafts per step, on {}",
        REQUESTS.len(),
        handle.device()
    );
    for sharing in [Sharing::Equal, Sharing::Shared, Sharing::Trusted] {
        let (_, steps) = decode(&handle, &REQUESTS, sharing, budget)?;
        println!("{sharing:?}: {steps} steps, {:.2} tokens per step", tokens as f64 / steps as f64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_changes_the_steps_and_not_the_texts() {
        let cpu = Handle::cpu().unwrap();
        let answers = REQUESTS.map(|request| request.answer);
        let steps = |sharing, budget| {
            let (texts, steps) = decode(&cpu, &REQUESTS, sharing, budget).unwrap();
            assert_eq!(texts, answers, "{sharing:?}, {budget}");
            steps
        };
        let longest = answers.iter().map(|answer| answer.len() + 1).max().unwrap();
        assert_eq!(steps(Sharing::Shared, 0), longest);
        for sharing in [Sharing::Equal, Sharing::Shared, Sharing::Trusted] {
            assert!(steps(sharing, 16) <= longest, "{sharing:?}");
        }
    }
}
