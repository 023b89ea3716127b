//! `suffix_lookup` on the CPU: requests in parallel. A vectorised scan, the most recent place
//! first, finds the windows with the longest match; the tree then grows from these windows alone.
//! The nodes of a request are noted in the workspace, and later written to the outputs in order.

mod search;
mod tree;

use std::sync::atomic::{AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::flags::BAD_LENGTHS;
use spec_core::ngram::cut;
use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{Buffers, MAX_DRAFTS, Plan};
use spec_core::{Kernel, Result, Route, Supports, ViewMut};

use super::ngram::{FEW, Token};
use super::texts::{Drafts, Limits, Texts};
use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Ints, Out, Workspace, raise, slice, slice_mut, workspace_size};
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
        let words = plan.batch().saturating_mul(words_of_request(plan));
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
    let params = &plan.params;
    let texts = Texts::<T>::new(plan.tokens, buffers.tokens, buffers.lengths, buffers.requests)?;
    let limits = Limits::new(plan.drafts.cols, buffers.max_drafts)?;
    let corpus = buffers.corpus.map(slice::<T>).transpose()?.unwrap_or_default();
    let (batch, words) = (plan.batch(), words_of_request(plan));
    let (corpus, corpus_bits) = match buffers.corpus_length.map(Ints::new).transpose()? {
        Some(given) => {
            let given = given.get(0);
            let length = cut(given, corpus.len());
            (&corpus[..length], if length as i64 == given { 0 } else { BAD_LENGTHS })
        }
        None => (corpus, 0),
    };
    let noted = Workspace::new(workspace)?.take::<u64>(batch * words)?;
    let bits = AtomicU32::new(0);
    let look_up = |(request, noted): (usize, &mut [u64])| {
        let (head, nodes) = noted.split_at_mut(HEAD);
        let (text, bad) = texts.get(request);
        let Some(text) = text else {
            // Padding, and a request that has no text: the corpus is not looked at.
            bits.fetch_or(bad, Ordering::Relaxed);
            return head.fill(0);
        };
        bits.fetch_or(bad | corpus_bits, Ordering::Relaxed);
        let windows = search(params, text, corpus);
        let nodes = &mut nodes.as_chunks_mut::<NODE>().0[..limits.get(request)];
        let count = grow(params, &windows, nodes);
        head.copy_from_slice(&[count, windows.length, windows.len()].map(|size| size as u64));
    };
    if is_few(plan, corpus.len()) {
        noted.chunks_mut(words).enumerate().for_each(look_up);
    } else {
        noted.par_chunks_mut(words).enumerate().for_each(look_up);
    }

    let mut drafts = Drafts::<T>::new(plan.drafts, buffers.drafts, params.pad_with_last)?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let mut parents = Out::<i32>::new(buffers.parents, plan.parents)?;
    let mut first_child = Out::<i32>::new(buffers.first_child, plan.first_child)?;
    let mut next_sibling = Out::<i32>::new(buffers.next_sibling, plan.next_sibling)?;
    let mut shares = Out::<f32>::new(buffers.shares, plan.shares)?;
    let mut match_lengths = buffers.match_lengths.map(slice_mut::<i32>).transpose()?;
    for (request, noted) in noted.chunks(words).enumerate() {
        let (head, nodes) = noted.split_at(HEAD);
        let (count, windows) = (head[0] as usize, head[2] as u32);
        let nodes = &nodes.as_chunks::<NODE>().0[..count];
        counts[request] = count as i32;
        if let Some(match_lengths) = &mut match_lengths {
            match_lengths[request] = head[1] as i32;
        }
        let tokens = nodes.iter().map(|&[token, ..]| T::from_bits(token));
        drafts.write(request, texts.text(request), tokens);
        parents.fill(request, -1);
        first_child.fill(request, -1);
        next_sibling.fill(request, -1);
        shares.fill(request, 0.0);
        // The last child of each node so far; 0 for a node without children.
        let mut youngest = [0; MAX_DRAFTS + 1];
        for (at, &[_, parent, share]) in nodes.iter().enumerate() {
            parents.set(request, at, parent as i32);
            shares.set(request, at, SuffixLookup::share_of(share as u32, windows));
            let node = at as i32 + 1;
            match std::mem::replace(&mut youngest[parent as usize], at + 1) {
                0 => first_child.set(request, parent as usize, node),
                elder => next_sibling.set(request, elder, node),
            }
        }
    }
    raise(buffers.flags, bits.into_inner())
}
