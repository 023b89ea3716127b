//! The tail of a decode step with trees of drafts, for which the batch shares a budget.
//!
//! ```text
//! suffix_lookup ─> draft_tree ─> (the model) ─> adjust_logits ─> sample_logits
//!       ^              ^                                              │
//!       └── append_tokens <──────────────── tree_verify <─────────────┘
//! ```
//!
//! The number of rows is fixed: a root for each request, and the budget. `draft_tree` says on the
//! device which request and which node each row has. Rows that no request needs are padding, and
//! requests that have finished have no rows. The factor `trust` of each request is learnt: a request
//! of which k drafts were accepted, and the next one rejected, accepts about k of k + 1 drafts.
//! `trust` is the exponential mean of this share over the steps.

use spec_conformance::Complete;
use spec_core::ops::{
    AdjustLogits, AppendTokens, DraftTree, SampleLogits, SuffixLookup, TreeVerify, adjust_logits,
    append_tokens, draft_tree, sample_logits, suffix_lookup, tree_verify,
};
use spec_core::{Buffer, DType, Ready, Result, Stream, TensorDesc};

use super::{DecodeTail, NONE, Request, STOPS, Sampling, Texts, VOCAB, adjusted, logits, upload};

/// What `draft_tree` says of each packed row.
struct PackedRows {
    offsets: Buffer<i32>,
    requests: Buffer<i32>,
    parents: Buffer<i32>,
    tokens: Buffer<i32>,
    positions: Buffer<i32>,
    /// The model's logits, and the tokens that `sample_logits` chose.
    logits: Buffer<f32>,
    chosen: Buffer<i32>,
}

/// The six operators and all memory that they share.
pub struct TreeTail {
    rows: usize,
    lookup: Ready<SuffixLookup>,
    tree: Ready<DraftTree>,
    adjust: Ready<AdjustLogits>,
    sample: Ready<SampleLogits>,
    verify: Ready<TreeVerify>,
    append: Ready<AppendTokens>,
    sampling: Sampling,
    packed: PackedRows,
    texts: Texts,
    last_tokens: Buffer<i32>,
    candidates: Buffer<i32>,
    counts: Buffer<i32>,
    parents: Buffer<i32>,
    shares: Buffer<f32>,
    trust: Buffer<f32>,
    budget: Buffer<i32>,
    draft_tokens: Buffer<i32>,
    num_drafts: Buffer<i32>,
    first_child: Buffer<i32>,
    next_sibling: Buffer<i32>,
    emitted: Buffer<i32>,
    path: Buffer<i32>,
    num_tokens: Buffer<i32>,
}

impl TreeTail {
    /// Operators and memory for `batch` requests with up to `max_draft` drafts each, `budget` in
    /// all, and texts of up to `max_len` tokens.
    ///
    /// # Errors
    /// The errors of creating operators and of allocating memory.
    pub fn new<B: Complete + ?Sized>(
        backend: &B,
        (batch, max_draft): (usize, usize),
        budget: usize,
        max_len: usize,
    ) -> Result<Self> {
        let (nodes, rows) = (max_draft + 1, batch + budget);
        let flags = TensorDesc::new(DType::U32, [1]);
        let ints = |shape: [usize; 2]| TensorDesc::new(DType::I32, shape);
        let vector = |len: usize| TensorDesc::new(DType::I32, [len]);
        let lookup = SuffixLookup::new().width(3);
        let lookup_tensors = lookup
            .tensors(DType::I32, batch, max_len, max_draft)
            .parents(ints([batch, max_draft]))
            .shares(TensorDesc::new(DType::F32, [batch, max_draft]))
            .flags(flags);
        // Shares of `suffix_lookup` are of the whole way from the root.
        let tree = DraftTree::new().cumulative(true).min_survival(0.05);
        let mut tree_tensors = tree
            .tensors(DType::I32, batch, max_draft, max_draft)
            .parents(ints([batch, max_draft]))
            .shares(TensorDesc::new(DType::F32, [batch, max_draft]))
            .counts(vector(batch))
            .trust(TensorDesc::new(DType::F32, [batch]))
            .finished(vector(batch))
            .budget(vector(1))
            .roots(vector(batch))
            .starts(vector(batch))
            .first_child(ints([batch, nodes]))
            .next_sibling(ints([batch, nodes]))
            .row_offsets(vector(batch + 1))
            .row_requests(vector(rows))
            .row_parents(vector(rows))
            .row_tokens(vector(rows))
            .row_positions(vector(rows))
            .flags(flags);
        // Drafts are written where `tree_verify` reads them: behind the root.
        tree_tensors.drafts =
            TensorDesc::with_strides(DType::I32, [batch, max_draft], [nodes as isize, 1]);
        let adjust = AdjustLogits::default();
        let adjust_tensors =
            adjusted(adjust.tensors(DType::F32, rows, VOCAB, batch, max_len), batch)
                .requests(vector(rows))
                .draft_tokens(vector(rows))
                .parents(vector(rows));
        let sample = SampleLogits::default();
        let mut sample_tensors = sample.tensors_of(rows, batch, VOCAB).flags(flags);
        sample_tensors.positions = vector(rows);
        let verify = TreeVerify::new(max_draft);
        let mut verify_tensors =
            verify.tensors(batch, nodes).row_offsets(vector(batch + 1)).flags(flags);
        verify_tensors.target_tokens = vector(rows);
        let append = AppendTokens::new();
        let append_tensors = append
            .tensors(DType::I32, batch, max_len, nodes)
            .stop_tokens(ints([batch, STOPS]))
            .max_lengths(vector(batch))
            .finished(vector(batch))
            .last_tokens(vector(batch))
            .flags(flags);
        let ints = |len: usize| Buffer::allocate(backend, len);
        Ok(TreeTail {
            rows,
            lookup: Ready::new(backend, &lookup, &lookup_tensors)?,
            tree: Ready::new(backend, &tree, &tree_tensors)?,
            adjust: Ready::new(backend, &adjust, &adjust_tensors)?,
            sample: Ready::new(backend, &sample, &sample_tensors)?,
            verify: Ready::new(backend, &verify, &verify_tensors)?,
            append: Ready::new(backend, &append, &append_tensors)?,
            sampling: Sampling::new(backend, batch)?,
            packed: PackedRows {
                offsets: ints(batch + 1)?,
                requests: ints(rows)?,
                parents: ints(rows)?,
                tokens: ints(rows)?,
                positions: ints(rows)?,
                logits: Buffer::allocate(backend, rows * VOCAB)?,
                chosen: ints(rows)?,
            },
            texts: Texts::new(backend, batch, max_len)?,
            last_tokens: ints(batch)?,
            candidates: ints(batch * max_draft)?,
            counts: ints(batch)?,
            parents: ints(batch * max_draft)?,
            shares: Buffer::allocate(backend, batch * max_draft)?,
            trust: upload(backend, &vec![1.0; batch])?,
            budget: upload(backend, &[budget as i32])?,
            draft_tokens: ints(batch * nodes)?,
            num_drafts: ints(batch)?,
            first_child: ints(batch * nodes)?,
            next_sibling: ints(batch * nodes)?,
            emitted: ints(batch * nodes)?,
            path: ints(batch * nodes)?,
            num_tokens: ints(batch)?,
        })
    }

    /// Enqueues the drafts of the next step: two calls.
    fn enqueue_drafts<'a>(&mut self, stream: &impl Fn() -> Stream<'a>) -> Result<()> {
        let texts = &mut self.texts;
        let found = suffix_lookup::Buffers::new(
            &texts.tokens,
            &texts.lengths,
            &mut self.candidates,
            &mut self.counts,
        );
        let found = found.parents(&mut self.parents).shares(&mut self.shares);
        self.lookup.call_on(found.flags(&mut texts.flags), stream())?;
        let (_, behind_the_root) = self.draft_tokens.view_mut().split_at(1);
        let packed = &mut self.packed;
        let drafted =
            draft_tree::Buffers::new(&self.candidates, behind_the_root, &mut self.num_drafts)
                .parents(&self.parents)
                .shares(&self.shares)
                .counts(&self.counts)
                .trust(&self.trust)
                .finished(&texts.finished)
                .budget(&self.budget)
                .roots(&self.last_tokens)
                .starts(&texts.lengths)
                .first_child(&mut self.first_child)
                .next_sibling(&mut self.next_sibling)
                .row_offsets(&mut packed.offsets)
                .row_requests(&mut packed.requests)
                .row_parents(&mut packed.parents)
                .row_tokens(&mut packed.tokens)
                .row_positions(&mut packed.positions)
                .flags(&mut texts.flags);
        self.tree.call_on(drafted, stream())
    }
}

impl DecodeTail for TreeTail {
    fn enqueue<'a>(&mut self, stream: impl Fn() -> Stream<'a>) -> Result<()> {
        let (packed, sampling, texts) = (&mut self.packed, &self.sampling, &mut self.texts);
        let adjusted = adjust_logits::Buffers::new(adjust_logits::Required {
            logits: (&mut packed.logits).into(),
            tokens: (&texts.tokens).into(),
            prompt_lengths: (&sampling.prompt_lengths).into(),
            lengths: (&texts.lengths).into(),
        });
        let adjusted = adjusted
            .requests(&packed.requests)
            .draft_tokens(&packed.tokens)
            .parents(&packed.parents);
        self.adjust.call_on(sampling.adjusting(adjusted), stream())?;
        let chosen = sample_logits::Buffers::new(
            &packed.logits,
            &packed.positions,
            &sampling.temperature,
            &sampling.seeds,
            &mut packed.chosen,
        );
        let chosen = chosen.requests(&packed.requests).flags(&mut texts.flags);
        self.sample.call_on(chosen, stream())?;
        let followed = tree_verify::Buffers::new(tree_verify::Required {
            draft_tokens: (&self.draft_tokens).into(),
            target_tokens: (&packed.chosen).into(),
            tokens: (&mut self.emitted).into(),
            nodes: (&mut self.path).into(),
            num_tokens: (&mut self.num_tokens).into(),
        });
        let followed = followed
            .first_child(&self.first_child)
            .next_sibling(&self.next_sibling)
            .row_offsets(&packed.offsets);
        self.verify.call_on(followed.flags(&mut texts.flags), stream())?;
        let longer = append_tokens::Buffers::new(append_tokens::Required {
            tokens: (&mut texts.tokens).into(),
            lengths: (&mut texts.lengths).into(),
            new_tokens: (&self.emitted).into(),
            new_counts: (&self.num_tokens).into(),
            appended: (&mut texts.appended).into(),
        });
        let longer = longer
            .stop_tokens(&sampling.stop_tokens)
            .max_lengths(&sampling.max_lengths)
            .finished(&mut texts.finished)
            .last_tokens(&mut self.last_tokens)
            .flags(&mut texts.flags);
        self.append.call_on(longer, stream())?;
        self.enqueue_drafts(&stream)
    }

    fn start(&mut self, requests: &[Request]) -> Result<()> {
        self.texts.write(requests)?;
        self.sampling.write(requests)?;
        let last = requests.iter().map(|request| request.prompt.last().copied().unwrap_or(NONE));
        self.last_tokens.write(&last.collect::<Vec<i32>>())?;
        self.trust.write(&vec![1.0; requests.len()])?;
        self.num_tokens.write(&vec![0; requests.len()])?;
        self.enqueue_drafts(&Stream::default)
    }

    /// Over the packed rows. Learns how far each request's drafts can be trusted from what the step
    /// before kept of them.
    fn forward(&mut self) -> Result<()> {
        let tokens = self.packed.tokens.to_vec()?;
        let requests = self.packed.requests.to_vec()?;
        let mut rows = Vec::with_capacity(self.rows * VOCAB);
        for (token, request) in tokens.into_iter().zip(requests) {
            match request {
                NONE => rows.extend([f32::NAN; VOCAB]),
                _ => rows.extend(logits(token)),
            }
        }
        self.packed.logits.write(&rows)?;
        let mut trust = self.trust.to_vec()?;
        for (trust, emitted) in trust.iter_mut().zip(self.num_tokens.to_vec()?) {
            // The last token is the model's own.
            if emitted > 0 {
                let kept = (emitted - 1) as f32;
                *trust = 0.75 * *trust + 0.25 * kept / (kept + 1.0);
            }
        }
        self.trust.write(&trust)
    }

    fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl std::fmt::Debug for TreeTail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TreeTail { rows, texts: Texts { batch, max_len, .. }, .. } = self;
        write!(f, "TreeTail({batch} requests, {rows} rows, texts of {max_len})")
    }
}
