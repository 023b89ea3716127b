//! The drafts of a request: a tree that grows from its windows, the best node first.

use std::cmp::Reverse;

use spec_core::ops::SuffixLookup;
use spec_core::ops::suffix_lookup::{MAX_DRAFTS, MAX_WINDOWS};

use super::NODE;
use super::search::Windows;
use crate::ops::ngram::Token;
use crate::slices::Int;

/// Windows with the same continuation so far: a range of [`Growth::order`].
#[derive(Clone, Copy, Default)]
struct Group {
    start: u16,
    end: u16,
}

impl Group {
    fn len(self) -> u16 {
        self.end - self.start
    }
}

/// A child that is offered.
#[derive(Clone, Copy, Default)]
struct Offer {
    group: Group,
    /// The bits of the child's token.
    token: u64,
    depth: u16,
    /// The number of the child's most recent window.
    first: u16,
    /// The parent of the child.
    parent: u16,
}

impl Offer {
    /// The key of an offer. Offers become nodes in ascending order of their keys.
    fn order(&self) -> (Reverse<u16>, u16, u16) {
        (Reverse(self.group.len()), self.depth, self.first)
    }
}

/// Grows a tree, and notes the token, the parent and the number of windows of each node. Returns
/// the number of nodes.
pub(super) fn grow<T: Token + Int>(
    params: &SuffixLookup,
    windows: &Windows<'_, T>,
    nodes: &mut [[u64; NODE]],
) -> usize {
    let n = nodes.len().min(MAX_DRAFTS);
    let mut growth = Growth {
        params,
        windows,
        limit: params.depth_limit(windows.length, n),
        order: std::array::from_fn(|window| window as u16),
        offers: [Offer::default(); MAX_DRAFTS],
        offered: 0,
    };
    let all = Group { start: 0, end: windows.len() as u16 };
    growth.offer_children(all, 0, 0, n);
    for (at, node) in nodes[..n].iter_mut().enumerate() {
        let Some(best) = growth.take_best() else { return at };
        *node = [best.token, best.parent.into(), best.group.len().into()];
        growth.offer_children(best.group, best.depth.into(), at as u16 + 1, n - at - 1);
    }
    n
}

struct Growth<'a, 'w, T> {
    params: &'a SuffixLookup,
    windows: &'a Windows<'w, T>,
    /// The largest depth of a draft.
    limit: usize,
    /// The numbers of the windows, those of a node next to each other.
    order: [u16; MAX_WINDOWS],
    /// The offered children, the best last.
    offers: [Offer; MAX_DRAFTS],
    offered: usize,
}

impl<T: Token + Int> Growth<'_, '_, T> {
    fn take_best(&mut self) -> Option<Offer> {
        self.offered = self.offered.checked_sub(1)?;
        Some(self.offers[self.offered])
    }

    /// Offers the children of a node. Only the `left` best offers are kept, because no more can
    /// become nodes.
    fn offer_children(&mut self, group: Group, depth: usize, parent: u16, left: usize) {
        if depth >= self.limit || left == 0 {
            return;
        }
        let windows = self.windows;
        let (start, end) = (usize::from(group.start), usize::from(group.end));
        // Each token is read once: another thread may change it meanwhile, and sorting needs keys
        // that do not change. Windows without a token at this depth come first.
        let mut keys = [(None, 0); MAX_WINDOWS];
        let keys = &mut keys[..end - start];
        for (key, &window) in keys.iter_mut().zip(&self.order[start..end]) {
            *key = (windows.token(window, depth).map(Token::bits), window);
        }
        keys.sort_unstable();
        for (window, key) in self.order[start..end].iter_mut().zip(&*keys) {
            *window = key.1;
        }
        let mut children = [Offer::default(); MAX_WINDOWS];
        let (mut count, mut from) = (0, group.start);
        for same in keys.chunk_by(|a, b| a.0 == b.0) {
            let group = Group { start: from, end: from + same.len() as u16 };
            from = group.end;
            let Some(token) = same[0].0 else { continue };
            let depth = depth as u16 + 1;
            children[count] = Offer { group, token, depth, first: same[0].1, parent };
            count += 1;
        }
        let children = &mut children[..count];
        children.sort_unstable_by_key(Offer::order);
        let needed = u64::from(self.params.share_floor()) * windows.len() as u64;
        let offered = children.iter().take(self.params.width.min(left));
        for &child in offered.filter(|child| u64::from(child.group.len()) * 65536 >= needed) {
            self.insert(child, left);
        }
    }

    /// Inserts an offer in order. If there are then more offers than can become nodes, the worst
    /// offer is dropped.
    fn insert(&mut self, offer: Offer, left: usize) {
        let better = |known: &Offer| known.order() < offer.order();
        let at = self.offers[..self.offered].iter().position(better).unwrap_or(self.offered);
        if self.offered < left {
            self.offers.copy_within(at..self.offered, at + 1);
            self.offers[at] = offer;
            self.offered += 1;
        } else if at > 0 {
            self.offers.copy_within(1..at, 0);
            self.offers[at - 1] = offer;
        }
    }
}
