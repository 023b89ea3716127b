//! `suffix_lookup` on the CPU: requests in parallel. A vectorised scan, the most recent place
//! first, finds the windows with the longest match; the tree then grows from these windows alone.
//! The nodes of a request are noted in the workspace, and later written to the outputs in order.

mod search;
mod tree;

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::flags::BAD_LENGTHS;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{Buffers, MAX_DRAFTS, Plan};
use spec_core::{Element, Kernel, Matrix, Result, Route, Supports, ViewMut};

use super::ngram::{FEW, Token};
use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Ints, Rows, Workspace, raise, slice, slice_mut, workspace_size};
use search::search;
use tree::grow;

/// Words that a request notes before its nodes: the number of nodes, the length of the match, the
/// number of windows.
const HEAD: usize = 3;
/// Words of a node: its token, its parent, its number of windows.
const NODE: usize = 3;

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<SuffixLookup> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<SuffixLookup>>> {
        let words = plan.tokens.rows.saturating_mul(words_of_request(plan));
        let size = workspace_size(&[words.saturating_mul(8)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<SuffixLookup, _>(plan.clone(), size, launch, loops) })
    }
}

fn words_of_request(plan: &Plan) -> usize {
    HEAD + NODE * plan.drafts.cols
}

fn loops(plan: &Plan, route: &mut Route) {
    let corpus = plan.corpus.map_or(0, |corpus| corpus.len);
    let threads = if is_few(plan, corpus) { "one thread" } else { "all threads" };
    route.push("suffix_lookup", format_args!("{} requests, {threads}", plan.tokens.rows));
}

/// Whether the calling thread looks all texts up before it would have woken another.
fn is_few(plan: &Plan, corpus: usize) -> bool {
    plan.tokens.rows.saturating_mul(plan.tokens.cols + corpus) <= FEW
}

fn launch(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(plan.tokens.dtype, run(plan, workspace, buffers))
}

fn run<T: Token + Int>(plan: &Plan, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let bits = AtomicU32::new(0);
    let cut = |given: i64, max: usize| {
        let within = given.clamp(0, max as i64);
        if within != given {
            bits.fetch_or(BAD_LENGTHS, Ordering::Relaxed);
        }
        within as usize
    };
    let texts = Rows::<T>::new(buffers.tokens, plan.tokens)?;
    let lengths = Ints::new(buffers.lengths)?;
    let corpus = buffers.corpus.map(slice::<T>).transpose()?.unwrap_or_default();
    let corpus = match buffers.corpus_length.map(Ints::new).transpose()? {
        // Without requests, `corpus_length` is not read and sets no flag.
        Some(length) if plan.tokens.rows > 0 => &corpus[..cut(length.get(0), corpus.len())],
        _ => corpus,
    };
    let (batch, words) = (plan.tokens.rows, words_of_request(plan));
    let noted = Workspace::new(workspace)?.take::<u64>(batch * words)?;
    let look_up = |(request, noted): (usize, &mut [u64])| {
        let text = &texts.row(request)[..cut(lengths.get(request), plan.tokens.cols)];
        let windows = search(&plan.params, text, corpus);
        let (head, nodes) = noted.split_at_mut(HEAD);
        let count = grow(&plan.params, &windows, nodes.as_chunks_mut::<NODE>().0);
        head.copy_from_slice(&[count, windows.length, windows.len()].map(|size| size as u64));
    };
    if is_few(plan, corpus.len()) {
        noted.chunks_mut(words).enumerate().for_each(look_up);
    } else {
        noted.par_chunks_mut(words).enumerate().for_each(look_up);
    }

    let mut drafts = Out::<T>::new(Some(buffers.drafts), Some(plan.drafts))?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let mut parents = Out::<i32>::new(buffers.parents, plan.parents)?;
    let mut first_child = Out::<i32>::new(buffers.first_child, plan.first_child)?;
    let mut next_sibling = Out::<i32>::new(buffers.next_sibling, plan.next_sibling)?;
    let mut shares = Out::<f32>::new(buffers.shares, plan.shares)?;
    let mut match_lengths = buffers.match_lengths.map(slice_mut::<i32>).transpose()?;
    for (request, noted) in noted.chunks(words).enumerate() {
        let (head, nodes) = noted.split_at(HEAD);
        let (count, windows) = (head[0] as usize, head[2] as f32);
        let nodes = &nodes.as_chunks::<NODE>().0[..count];
        counts[request] = count as i32;
        if let Some(match_lengths) = &mut match_lengths {
            match_lengths[request] = head[1] as i32;
        }
        drafts.fill(request, T::NONE);
        parents.fill(request, -1);
        first_child.fill(request, -1);
        next_sibling.fill(request, -1);
        shares.fill(request, 0.0);
        // The last child of each node so far; 0 for a node without children.
        let mut youngest = [0; MAX_DRAFTS + 1];
        for (at, &[token, parent, share]) in nodes.iter().enumerate() {
            drafts.set(request, at, T::from_bits(token));
            parents.set(request, at, parent as i32);
            shares.set(request, at, share as f32 / windows);
            let node = at as i32 + 1;
            match std::mem::replace(&mut youngest[parent as usize], at + 1) {
                0 => first_child.set(request, parent as usize, node),
                elder => next_sibling.set(request, elder, node),
            }
        }
    }
    raise(buffers.flags, bits.into_inner())
}

/// The rows of an output that may be absent.
struct Out<'a, T> {
    data: &'a mut [T],
    rows: Option<Matrix>,
}

impl<'a, T: Element> Out<'a, T> {
    fn new(view: Option<ViewMut<'a>>, rows: Option<Matrix>) -> Result<Self> {
        Ok(Out { data: view.map(slice_mut::<T>).transpose()?.unwrap_or_default(), rows })
    }

    fn fill(&mut self, row: usize, value: T) {
        if let Some(rows) = self.rows {
            self.data[row * rows.row_stride..][..rows.cols].fill(value);
        }
    }

    fn set(&mut self, row: usize, column: usize, value: T) {
        if let Some(rows) = self.rows {
            self.data[row * rows.row_stride + column] = value;
        }
    }
}
