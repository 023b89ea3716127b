//! A seed has one text. The text is the same with drafts and without, for any drafter, in
//! chains and trees, in any slot of any batch, on every device.
//!
//! `SPEC_RUNS` is the number of batches to decode; without it, 200 on a CPU or a GPU, and
//! 10 on a software renderer.

use spec::ops::tree_verify::Links;
use spec::ops::{PromptLookup, SampleLogits, TreeVerify};
use spec::ops::{prompt_lookup, sample_logits, tree_verify};
use spec::{DType, Handle, Result, TensorDesc};
use spec_conformance::Rng;

const VOCAB: usize = 40;
const TOKENS: usize = 24;
const MAX_DRAFTS: usize = 6;

/// The settings of a request, and its text so far.
#[derive(Clone)]
struct Request {
    seed: u64,
    temperature: f32,
    top_k: i32,
    top_p: f32,
    min_p: f32,
    prompt: usize,
    text: Vec<i32>,
}

impl Request {
    fn random(rng: &mut Rng) -> Request {
        let prompt = 2 + rng.below(6);
        Request {
            seed: rng.next(),
            temperature: rng.pick(&[0.0, 0.5, 1.0, 1.5]),
            top_k: rng.pick(&[0, 0, 3, 12]),
            top_p: rng.pick(&[1.0, 1.0, 0.9, 0.6]),
            min_p: rng.pick(&[0.0, 0.0, 0.05]),
            prompt,
            text: (0..prompt).map(|_| rng.below(VOCAB) as i32).collect(),
        }
    }

    fn is_done(&self) -> bool {
        self.text.len() >= self.prompt + TOKENS
    }

    fn generated(&self) -> &[i32] {
        &self.text[self.prompt..self.prompt + TOKENS]
    }
}

/// The logits of a language model whose context is two tokens: some tokens are much likelier
/// than others. The logits of the draft model are near those of the target.
fn logits(context: [i32; 2], is_draft: bool) -> Vec<f32> {
    let seed = (context[0] as u64) << 32 | context[1] as u64;
    let mut target = Rng::new(seed, "target");
    let mut draft = Rng::new(seed, "draft");
    let mut row: Vec<f32> = (0..VOCAB).map(|_| 2.0 * target.normal()).collect();
    if is_draft {
        row.iter_mut().for_each(|x| *x += 0.7 * draft.normal());
    }
    row
}

/// Draws tokens for rows of some requests. Each row has a request, a context and a position.
fn choose(
    handle: &Handle,
    requests: &[&Request],
    rows: &[(usize, [i32; 2], usize)],
    is_draft: bool,
) -> Result<Vec<i32>> {
    let params = SampleLogits::default();
    let of_request = |dtype| Some(TensorDesc::new(dtype, [requests.len()]));
    let flags = Some(TensorDesc::new(DType::U32, [1]));
    let mut tensors = params.tensors_of(rows.len(), requests.len(), VOCAB);
    tensors.top_k = of_request(DType::I32);
    tensors.top_p = of_request(DType::F32);
    tensors.min_p = of_request(DType::F32);
    tensors.flags = flags;
    let sample = handle.create(&params, &tensors)?;
    let mut workspace = sample.workspace(handle)?;
    let all: Vec<f32> = rows.iter().flat_map(|row| logits(row.1, is_draft)).collect();
    let positions: Vec<i64> = rows.iter().map(|row| row.2 as i64).collect();
    let of_rows: Vec<i32> = rows.iter().map(|row| row.0 as i32).collect();
    let mut tokens = handle.allocate::<i32>(rows.len())?;
    let mut flags = handle.upload(&[0_u32])?;
    let floats = |of: fn(&Request) -> f32| {
        handle.upload(&requests.iter().map(|request| of(request)).collect::<Vec<f32>>())
    };
    let top_k: Vec<i32> = requests.iter().map(|request| request.top_k).collect();
    let seeds: Vec<u64> = requests.iter().map(|request| request.seed).collect();
    let logits_there = handle.upload(&all)?;
    let positions_there = handle.upload(&positions)?;
    let temperature_there = floats(|r| r.temperature)?;
    let seeds_there = handle.upload(&seeds)?;
    let top_k_there = handle.upload(&top_k)?;
    let top_p_there = floats(|r| r.top_p)?;
    let min_p_there = floats(|r| r.min_p)?;
    let requests_there = handle.upload(&of_rows)?;
    let buffers = sample_logits::Buffers::new(
        &logits_there,
        &positions_there,
        &temperature_there,
        &seeds_there,
        &mut tokens,
    )
    .top_k(&top_k_there)
    .top_p(&top_p_there)
    .min_p(&min_p_there)
    .requests(&requests_there)
    .flags(&mut flags);
    sample.call(&mut workspace, buffers)?;
    assert_eq!(flags.to_vec()?, [0]);
    tokens.to_vec()
}

/// Decodes a request alone and without drafts: one token per step.
fn plain(handle: &Handle, request: &Request) -> Result<Vec<i32>> {
    let mut request = request.clone();
    while !request.is_done() {
        let &[.., a, b] = &request.text[..] else { unreachable!("a prompt has two tokens") };
        let token = choose(handle, &[&request], &[(0, [a, b], request.text.len())], false)?[0];
        request.text.push(token);
    }
    Ok(request.generated().to_vec())
}

/// The drafts of a request: the token and the parent of each node after the root.
#[derive(Clone, Default)]
struct Tree {
    tokens: Vec<i32>,
    parents: Vec<i32>,
}

impl Tree {
    fn chain(tokens: &[i32]) -> Tree {
        Tree { tokens: tokens.to_vec(), parents: (0..tokens.len() as i32).collect() }
    }

    /// The last two tokens at each node, and the position of the next token; the root comes
    /// first.
    fn places(&self, text: &[i32]) -> Vec<([i32; 2], usize)> {
        let &[.., a, b] = text else { unreachable!("a prompt has two tokens") };
        let mut places = vec![([a, b], text.len())];
        for (&token, &parent) in self.tokens.iter().zip(&self.parents) {
            let (context, position) = places[parent as usize];
            places.push(([context[1], token], position + 1));
        }
        places
    }
}

/// Drafts by `prompt_lookup` for each request.
fn lookup(handle: &Handle, batch: &[&Request]) -> Result<Vec<Tree>> {
    let params = PromptLookup::default().min_ngram(1).max_draft(MAX_DRAFTS);
    let max = batch.iter().map(|request| request.text.len()).max().unwrap_or(1);
    let tensors = params.tensors(DType::I32, batch.len(), max);
    let operator = handle.create(&params, &tensors)?;
    let mut workspace = operator.workspace(handle)?;
    let mut tokens = vec![0; batch.len() * max];
    for (row, request) in tokens.chunks_exact_mut(max).zip(batch) {
        row[..request.text.len()].copy_from_slice(&request.text);
    }
    let lengths: Vec<i32> = batch.iter().map(|request| request.text.len() as i32).collect();
    let mut drafts = handle.allocate::<i32>(batch.len() * MAX_DRAFTS)?;
    let mut counts = handle.allocate::<i32>(batch.len())?;
    let tokens_there = handle.upload(&tokens)?;
    let lengths_there = handle.upload(&lengths)?;
    let buffers =
        prompt_lookup::Buffers::new(&tokens_there, &lengths_there, &mut drafts, &mut counts);
    operator.call(&mut workspace, buffers)?;
    let drafts = drafts.to_vec()?;
    let rows = drafts.chunks_exact(MAX_DRAFTS).zip(counts.to_vec()?);
    Ok(rows.map(|(row, count)| Tree::chain(&row[..count as usize])).collect())
}

/// A chain of the draft model's choices for each request, with the request's own random
/// numbers or with other ones.
fn model(handle: &Handle, batch: &[&Request], own: bool, count: usize) -> Result<Vec<Tree>> {
    let other: Vec<Request> =
        batch.iter().map(|&r| Request { seed: r.seed ^ u64::from(!own), ..r.clone() }).collect();
    let other: Vec<&Request> = other.iter().collect();
    let mut trees = vec![Tree::default(); batch.len()];
    for _ in 0..count {
        let place = |(slot, tree): (usize, &Tree)| {
            let &(context, position) = tree.places(&batch[slot].text).last().unwrap();
            (slot, context, position)
        };
        let rows: Vec<_> = trees.iter().enumerate().map(place).collect();
        for (tree, token) in trees.iter_mut().zip(choose(handle, &other, &rows, true)?) {
            tree.tokens.push(token);
            tree.parents.push(tree.parents.len() as i32);
        }
    }
    Ok(trees)
}

/// A random tree of random tokens, some of which are the target's greedy choices.
fn any_tree(rng: &mut Rng, request: &Request) -> Tree {
    let mut tree = Tree::default();
    for node in 0..rng.below(MAX_DRAFTS + 1) {
        let parent = rng.below(node + 1);
        let (context, _) = tree.places(&request.text)[parent];
        let row = logits(context, false);
        let likeliest = (0..VOCAB).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        let token = if rng.chance(3) { rng.below(VOCAB) } else { likeliest };
        tree.tokens.push(token as i32);
        tree.parents.push(parent as i32);
    }
    tree
}

/// One step of a batch. Returns the tokens that each request emits.
fn verify(handle: &Handle, batch: &[&Request], trees: &[Tree]) -> Result<Vec<Vec<i32>>> {
    let nodes = trees.iter().map(|tree| tree.tokens.len() + 1).max().unwrap_or(1);
    let mut rows = Vec::new();
    let (mut tokens, mut first_child, mut next_sibling) = (Vec::new(), Vec::new(), Vec::new());
    for (slot, (request, tree)) in batch.iter().zip(trees).enumerate() {
        let mut places = tree.places(&request.text);
        // Fills the row with nodes that no link leads to.
        places.resize(nodes, ([0, 0], 0));
        tokens.extend(places.iter().map(|place| place.0[1]));
        rows.extend(places.iter().map(|&(context, position)| (slot, context, position)));
        let parents: Vec<i32> = [-1].iter().chain(&tree.parents).copied().collect();
        let mut links = Links::from_parents(&parents)?;
        links.first_child.resize(nodes, -1);
        links.next_sibling.resize(nodes, -1);
        first_child.extend(links.first_child);
        next_sibling.extend(links.next_sibling);
    }
    let chosen = choose(handle, batch, &rows, false)?;
    let params = TreeVerify::new(nodes - 1);
    let operator = handle.create(&params, &params.tensors(batch.len(), nodes))?;
    let mut workspace = operator.workspace(handle)?;
    let mut emitted = handle.allocate::<i32>(batch.len() * nodes)?;
    let mut path = handle.allocate::<i32>(batch.len() * nodes)?;
    let mut counts = handle.allocate::<i32>(batch.len())?;
    let draft_tokens_there = handle.upload(&tokens)?;
    let target_tokens_there = handle.upload(&chosen)?;
    let first_child_there = handle.upload(&first_child)?;
    let next_sibling_there = handle.upload(&next_sibling)?;
    let buffers = tree_verify::Buffers::new(tree_verify::Required {
        draft_tokens: (&draft_tokens_there).into(),
        target_tokens: (&target_tokens_there).into(),
        tokens: (&mut emitted).into(),
        nodes: (&mut path).into(),
        num_tokens: (&mut counts).into(),
    })
    .first_child(&first_child_there)
    .next_sibling(&next_sibling_there);
    operator.call(&mut workspace, buffers)?;
    let emitted = emitted.to_vec()?;
    let rows = emitted.chunks_exact(nodes).zip(counts.to_vec()?);
    Ok(rows.map(|(row, count)| row[..count as usize].to_vec()).collect())
}

/// Decodes a batch; each step shuffles the slots and changes the drafter. Returns the number
/// of accepted drafts, and of all drafts.
fn speculative(handle: &Handle, requests: &mut [Request], rng: &mut Rng) -> Result<[usize; 2]> {
    let mut seen = [0, 0];
    loop {
        let mut order = rng.permutation(requests.len());
        order.retain(|&at| !requests[at].is_done());
        if order.is_empty() {
            return Ok(seen);
        }
        // Some requests skip a step, like preempted requests.
        order.truncate(1 + rng.below(order.len()));
        let batch: Vec<&Request> = order.iter().map(|&at| &requests[at]).collect();
        let trees = match rng.below(5) {
            0 => vec![Tree::default(); batch.len()],
            1 => lookup(handle, &batch)?,
            2 => model(handle, &batch, true, 3)?,
            3 => model(handle, &batch, false, 3)?,
            _ => batch.iter().map(|request| any_tree(rng, request)).collect(),
        };
        let emitted = verify(handle, &batch, &trees)?;
        for ((at, tokens), tree) in order.into_iter().zip(emitted).zip(trees) {
            seen[0] += tokens.len() - 1;
            seen[1] += tree.tokens.len();
            requests[at].text.extend(tokens);
        }
    }
}

#[cfg(feature = "cpu")]
#[test]
fn a_seed_has_one_text() -> Result<()> {
    let cpu = Handle::cpu()?;
    let asked = std::env::var("SPEC_RUNS").ok().map(|runs| runs.parse().expect("a number"));
    for handle in crate::common::handles() {
        let runs = asked.unwrap_or(if handle.info().software { 10 } else { 200 });
        let mut seen = [0, 0];
        for run in 0..runs {
            let mut rng = Rng::new(run, "decoding");
            let mut requests: Vec<Request> =
                (0..1 + rng.below(6)).map(|_| Request::random(&mut rng)).collect();
            let alone: Vec<Vec<i32>> =
                requests.iter().map(|request| plain(&cpu, request)).collect::<Result<_>>()?;
            let [accepted, drafted] = speculative(&handle, &mut requests, &mut rng)?;
            seen = [seen[0] + accepted, seen[1] + drafted];
            for (request, alone) in requests.iter().zip(&alone) {
                assert_eq!(request.generated(), alone, "run {run} on {}", handle.device());
            }
        }
        println!("{}: {runs} batches, {} of {} drafts accepted", handle.device(), seen[0], seen[1]);
        assert!(seen[0] * 5 > seen[1], "drafts are too bad to test anything: {seen:?}");
    }
    Ok(())
}
