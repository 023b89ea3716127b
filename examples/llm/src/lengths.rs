//! Chooses how many drafts are worth the cost of their rows.
//!
//! An additional row costs the model a share of the time of the first row, and brings a
//! token only if every draft up to this row is accepted. How often drafts are accepted is
//! estimated for each kind of draft and each place in the draft. Drafts that were not run
//! count too: the tokens that the model chose later show whether the drafts would have been
//! accepted. So drafts of a text without repetition are not run, and copying is noticed
//! without running drafts.

use crate::draft::Draft;

/// The weight of the newest observation in the moving average.
const NEWEST: f64 = 0.125;

/// A draft for a place of the text, kept until the text shows how many of its tokens are right.
struct Open {
    place: usize,
    kind: usize,
    tokens: Vec<u32>,
    /// How many tokens of the draft equal the text so far.
    stood: usize,
}

/// Chooses the lengths of drafts from how often drafts were right so far.
pub struct Lengths {
    /// For each kind of draft and each place in the draft, the estimated probability that the
    /// token is right if all tokens before it are right.
    stand: Vec<Vec<f64>>,
    /// The cost of an additional row, as a share of the time of a run with one row.
    row: f64,
    open: Vec<Open>,
}

impl Lengths {
    /// For `kinds` kinds of drafts with up to `max` tokens each. `row` is the time of an
    /// additional row, including its drafting, as a share of the time of a run with one row;
    /// `hope` is the first estimate of the probability that a draft's first token is right.
    pub fn new(kinds: usize, max: usize, row: f64, hope: f64) -> Self {
        let mut stand = vec![0.5; max];
        stand[..max.min(1)].fill(hope);
        Lengths { stand: vec![stand; kinds], row, open: Vec::new() }
    }

    /// How many of `max` drafts of a kind to run: the number with the most expected tokens per
    /// time.
    pub fn choose(&self, kind: usize, max: usize) -> usize {
        let (mut best, mut length) = (1.0, 0);
        let (mut tokens, mut reached) = (1.0, 1.0);
        for (drafts, stands) in (1..=max).zip(&self.stand[kind]) {
            reached *= stands;
            tokens += reached;
            let speed = tokens / (1.0 + self.row * drafts as f64);
            if speed > best {
                (best, length) = (speed, drafts);
            }
        }
        length
    }

    /// Records the draft `tokens` for the text from `place` on, whether the draft is run or not.
    pub fn drafted(&mut self, place: usize, kind: usize, tokens: Vec<u32>) {
        self.open.push(Open { place, kind, tokens, stood: 0 });
    }

    /// Compares the recorded drafts with the text so far, and updates the estimates.
    pub fn observe(&mut self, text: &[u32]) {
        let stand = &mut self.stand;
        self.open.retain_mut(|open| {
            let stand = &mut stand[open.kind];
            while let (Some(draft), Some(token)) =
                (open.tokens.get(open.stood), text.get(open.place + open.stood))
            {
                let stood = if draft == token { 1.0 } else { 0.0 };
                let stands = &mut stand[open.stood];
                *stands += NEWEST * (stood - *stands);
                if draft != token {
                    return false;
                }
                open.stood += 1;
            }
            open.stood < open.tokens.len()
        });
    }
}

/// How far the shares of [`Draft`]s can be believed.
///
/// `suffix_lookup` says for each draft the share of earlier occurrences that went on as the path
/// down to the draft does. If the text goes on like one of the occurrences, the share is the
/// probability that the draft is accepted. But the text may also go on in a new way, most often
/// behind a short match, and where there was only one occurrence its share is 1. So the shares of
/// each kind are multiplied by a trust for each token of the path, which is learned: one for the
/// first token, and one for those behind an accepted draft.
pub struct Trust {
    /// For each kind of draft, the trust in the first token and in later tokens.
    trust: Vec<[f64; 2]>,
    /// The cost of an additional row, as a share of the time of a run with one row.
    row: f64,
    open: Vec<OpenTree>,
}

/// As [`Open`], for a tree.
struct OpenTree {
    place: usize,
    draft: Draft,
    /// The last node that stood; 0 for none.
    node: usize,
    /// How many nodes stood.
    stood: usize,
}

/// The first estimates of trust: what the longest matches and what others begin with. Drafts that
/// are not run count too, so low estimates are corrected at no cost.
const FIRST_TRUST: [f64; 2] = [0.2, 0.7];

impl Trust {
    /// For `kinds` kinds of drafts. `row` is the time of an additional row as a share of the time
    /// of a run with one row.
    pub fn new(kinds: usize, row: f64) -> Self {
        Trust { trust: vec![FIRST_TRUST; kinds], row, open: Vec::new() }
    }

    /// How many of the first `max` nodes of a draft to run: the number with the most expected
    /// tokens per time.
    pub fn choose(&self, draft: &Draft, max: usize) -> usize {
        let [first, later] = self.trust[draft.kind];
        let (mut best, mut number, mut tokens) = (1.0, 0, 1.0);
        // The trust in the path down to each node; that of node 0 is such that its children's is
        // the trust in a first token.
        let mut paths = vec![first / later];
        for (nodes, (parent, share)) in (1..=max).zip(draft.parents.iter().zip(&draft.shares)) {
            let path = paths[*parent] * later;
            paths.push(path);
            tokens += path * f64::from(*share);
            let speed = tokens / (1.0 + self.row * nodes as f64);
            if speed > best {
                (best, number) = (speed, nodes);
            }
        }
        number
    }

    /// Records a draft for the text from `place` on, whether it is run or not.
    pub fn drafted(&mut self, place: usize, draft: Draft) {
        self.open.push(OpenTree { place, draft, node: 0, stood: 0 });
    }

    /// Compares the recorded drafts with the text so far, and updates the estimates.
    pub fn observe(&mut self, text: &[u32]) {
        let trust = &mut self.trust;
        self.open.retain_mut(|open| {
            let draft = &open.draft;
            while let Some(token) = text.get(open.place + open.stood) {
                // The share of the occurrences so far that went on with one of the children.
                let children = draft.parents.iter().zip(&draft.shares);
                let children = children.filter(|(parent, _)| **parent == open.node);
                let drafted: f64 = children.map(|(_, share)| f64::from(*share)).sum();
                if drafted == 0.0 {
                    return false;
                }
                let so_far = open.node.checked_sub(1).map_or(1.0, |node| draft.shares[node]);
                let child = draft.child(open.node, *token);
                let stood = if child.is_some() { 1.0 } else { 0.0 };
                let trust = &mut trust[draft.kind][open.stood.min(1)];
                *trust += NEWEST * (stood - *trust * drafted / f64::from(so_far));
                // A later draft must stay possible, so that it is tried again.
                *trust = trust.clamp(0.01, 1.0);
                let Some(child) = child else { return false };
                open.node = child;
                open.stood += 1;
            }
            draft.parents.contains(&open.node)
        });
    }
}

/// The time that drafting may lose before the first token is written, in runs of one row.
const FIRST: f64 = 0.2;
/// The additional time that drafting may lose with each token, in runs of one row. Together with
/// [`FIRST`], drafting may lose 1 % of the time of a text of 40 tokens. This is half of the 2 %
/// that are promised, because the first additional row costs up to twice the mean of many rows,
/// and only this mean is measured.
const SHARE: f64 = 0.005;

/// A budget for the time that drafting may lose. Drafts are run only if the text would take at
/// most 2 % longer than without drafts even if all of these drafts were rejected.
///
/// [`Lengths`] chooses drafts that probably save time. But an answer of 48 tokens is over before
/// the estimates have learned that its drafts are wrong. So each rejected draft is paid from the
/// budget. Accepted drafts fill the budget by the time that they saved, and each token adds a
/// small amount.
pub struct Allowance {
    /// The budget that is left, in runs of one row.
    runs: f64,
    /// The cost of an additional row, in runs of one row.
    row: f64,
}

impl Allowance {
    /// A budget for additional rows that cost `row` runs of one row each.
    pub fn new(row: f64) -> Self {
        Allowance { runs: FIRST, row }
    }

    /// How many of `drafts` may be run: so many that the budget suffices if all are rejected.
    pub fn at_most(&self, drafts: usize) -> usize {
        if self.row <= 0.0 {
            return drafts;
        }
        // The conversion clamps a number that is too large for a usize, or below 0.
        drafts.min((self.runs / self.row) as usize)
    }

    /// Pays for the drafts of a step, and adds the time that accepted drafts saved: one run each.
    pub fn settle(&mut self, drafts: usize, accepted: usize) {
        let tokens = accepted as f64 + 1.0;
        self.runs += SHARE * tokens + accepted as f64 - self.row * drafts as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whichever drafts are made and accepted: after 40 tokens, and after each later token, a text
    /// takes at most 2 % longer than without drafts.
    #[test]
    fn no_text_loses_more_than_it_may() {
        for row in [0.05, 0.2, 0.3, 0.9, 1.5] {
            // Drafts that are never right, drafts that are right up to token 200, and drafts that
            // are right in every third step.
            let stands: [fn(usize, usize) -> bool; 3] =
                [|_, _| false, |token, _| token < 200, |_, step| step % 3 == 0];
            for stands in stands {
                let mut allowance = Allowance::new(row);
                let (mut tokens, mut time) = (0, 0.0);
                for step in 0..400 {
                    let drafts = allowance.at_most(8);
                    let accepted = if stands(tokens, step) { drafts } else { 0 };
                    allowance.settle(drafts, accepted);
                    time += 1.0 + row * drafts as f64;
                    tokens += accepted + 1;
                    assert!(time <= tokens as f64 * 1.01 + FIRST + 1e-9, "{row}: token {tokens}");
                    assert!(tokens < 40 || time <= tokens as f64 * 1.02 + 1e-9);
                }
            }
        }
    }

    /// The time that accepted drafts saved allows longer drafts at once.
    #[test]
    fn accepted_drafts_pay_for_longer_ones() {
        let mut allowance = Allowance::new(0.2);
        assert_eq!(allowance.at_most(8), 1);
        allowance.settle(1, 1);
        assert_eq!(allowance.at_most(8), 5);
        allowance.settle(5, 5);
        assert_eq!(allowance.at_most(8), 8);
    }

    /// If drafts are accepted, later drafts get longer. If drafts are wrong, no drafts are run,
    /// until drafts that were not run would have been right.
    #[test]
    fn lengths_follow_the_text() {
        let mut lengths = Lengths::new(2, 8, 0.2, 0.2);
        let text: Vec<u32> = (0..400).collect();
        for place in 0..100 {
            lengths.drafted(place, 0, text[place..place + 8].to_vec());
            lengths.drafted(place, 1, vec![u32::MAX; 8]);
            lengths.observe(&text[..place + 1]);
        }
        assert_eq!((lengths.choose(0, 8), lengths.choose(0, 3), lengths.choose(1, 8)), (8, 3, 0));
        for place in 100..200 {
            lengths.drafted(place, 1, text[place..place + 8].to_vec());
            lengths.observe(&text[..place + 1]);
        }
        assert_eq!(lengths.choose(1, 8), 8);
    }

    /// A tree as `suffix_lookup` gives it: 7 then 8 after most occurrences, 9 after the others.
    fn tree(kind: usize) -> Draft {
        Draft {
            kind,
            tokens: vec![7, 8, 9],
            parents: vec![0, 1, 0],
            shares: vec![0.75, 0.75, 0.25],
        }
    }

    /// Where texts go on as they did before, all nodes are run that their shares are worth; where
    /// they do not, none is, until drafts that were not run would have stood.
    #[test]
    fn trust_follows_the_text() {
        let mut trust = Trust::new(2, 0.1);
        let draft = tree(0);
        assert_eq!([draft.stands(&[7, 8]), draft.stands(&[9, 8]), draft.stands(&[8])], [2, 1, 0]);
        for round in 0..60 {
            let next: &[u32] = if round % 4 == 3 { &[9, 9] } else { &[7, 8] };
            trust.drafted(0, tree(0));
            trust.observe(&next[..1]);
            trust.observe(next);
            trust.drafted(0, tree(1));
            trust.observe(&[1, 2]);
        }
        assert!(trust.open.is_empty());
        assert!(trust.trust[0][0] > 0.9 && trust.trust[1][0] < 0.1, "{:?}", trust.trust);
        assert_eq!([trust.choose(&tree(0), 3), trust.choose(&tree(0), 1)], [3, 1]);
        assert_eq!(trust.choose(&tree(1), 3), 0);
        for _ in 0..60 {
            trust.drafted(0, tree(1));
            trust.observe(&[7, 8]);
        }
        assert!(trust.choose(&tree(1), 3) >= 2);
        // At a cost of half a run, the node with a share of a quarter is not worth its row.
        trust.row = 0.5;
        assert_eq!(trust.choose(&tree(0), 3), 2);
        trust.row = 1.0;
        assert_eq!(trust.choose(&tree(0), 3), 0);
    }

    /// No draft is run if a row costs as much as a run.
    #[test]
    fn rows_that_cost_all_are_not_run() {
        assert_eq!(Lengths::new(1, 8, 1.0, 0.5).choose(0, 8), 0);
        assert_eq!(Lengths::new(1, 8, 0.0, 0.5).choose(0, 8), 8);
    }
}
