//! How many drafts are worth their rows.
//!
//! A row more costs the model a share of what the first costs, and brings a token only
//! where every draft up to it stands. How often drafts stand is counted for each kind of
//! draft and each place in it, over those that were not run too: what the model chose
//! later says whether they would have stood. So a text that repeats nothing costs no rows,
//! and copying is noticed without trying.

/// How much the newest observation counts for.
const NEWEST: f64 = 0.125;

/// What was drafted at a place of the text, until the text says how much of it stands.
struct Open {
    place: usize,
    kind: usize,
    tokens: Vec<u32>,
    /// How many of them stand so far.
    stood: usize,
}

/// Chooses lengths of drafts from what stood so far.
pub struct Lengths {
    /// For each kind of draft and each place in it, how likely it stands if those before do.
    stand: Vec<Vec<f64>>,
    /// What a row more costs, in runs of one row.
    row: f64,
    open: Vec<Open>,
}

impl Lengths {
    /// For drafts of `kinds` kinds of up to `most` tokens. `row` is the time that a row more
    /// takes, drafting it included, in units of a run of one row; `hope` how likely the first
    /// draft stands, before anything is known of it.
    pub fn new(kinds: usize, most: usize, row: f64, hope: f64) -> Self {
        let mut stand = vec![0.5; most];
        stand[..most.min(1)].fill(hope);
        Lengths { stand: vec![stand; kinds], row, open: Vec::new() }
    }

    /// How many of `most` drafts of a kind to run: what gives the most tokens in a time.
    pub fn choose(&self, kind: usize, most: usize) -> usize {
        let (mut best, mut length) = (1.0, 0);
        let (mut tokens, mut reached) = (1.0, 1.0);
        for (drafts, stands) in (1..=most).zip(&self.stand[kind]) {
            reached *= stands;
            tokens += reached;
            let speed = tokens / (1.0 + self.row * drafts as f64);
            if speed > best {
                (best, length) = (speed, drafts);
            }
        }
        length
    }

    /// Notes what was drafted for `place` of the text and after, whether it is run or not.
    pub fn drafted(&mut self, place: usize, kind: usize, tokens: Vec<u32>) {
        self.open.push(Open { place, kind, tokens, stood: 0 });
    }

    /// Learns from the text so far.
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

/// How many runs of one row drafting may have lost before the first token is written.
const FIRST: f64 = 0.2;
/// How much more it may have lost with each token, in runs of one row. With [`FIRST`] it is 1 % of
/// a text of 40 tokens: half of the 2 % that may be lost, since the first row more costs up to twice the
/// mean of many, which is what is measured.
const SHARE: f64 = 0.005;

/// What drafting may lose: drafts are run only as long as the text, if none of them stood,
/// would still take no more than 2 % longer than without drafts.
///
/// [`Lengths`] chooses what is likely to pay. Likely is not certain, and an answer of 48 tokens
/// is over before the counts have learned that its drafts fall. So each rejected draft is paid for,
/// from what accepted ones have saved and from a small sum that grows with the text.
pub struct Allowance {
    /// What is left, in runs of one row.
    runs: f64,
    /// What a row more costs, in runs of one row.
    row: f64,
}

impl Allowance {
    /// For rows that cost `row` runs of one row each.
    pub fn new(row: f64) -> Self {
        Allowance { runs: FIRST, row }
    }

    /// How many of `drafts` may be run: if none of them stands, no more is lost than is left.
    pub fn at_most(&self, drafts: usize) -> usize {
        if self.row <= 0.0 {
            return drafts;
        }
        // A number too large for a usize, or below 0, becomes the nearest that fits.
        drafts.min((self.runs / self.row) as usize)
    }

    /// Pays for the drafts of a step, and takes in what the accepted ones saved: a run each.
    pub fn settle(&mut self, drafts: usize, accepted: usize) {
        let tokens = accepted as f64 + 1.0;
        self.runs += SHARE * tokens + accepted as f64 - self.row * drafts as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is drafted, and whatever stands: after 40 tokens and at each later one, a text
    /// takes at most 2 % longer than without drafts.
    #[test]
    fn no_text_loses_more_than_it_may() {
        for row in [0.05, 0.2, 0.3, 0.9, 1.5] {
            // Drafts that never stand, that stand up to token 200, and every third step's.
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

    /// What accepted drafts saved lets longer drafts run at once.
    #[test]
    fn accepted_drafts_pay_for_longer_ones() {
        let mut allowance = Allowance::new(0.2);
        assert_eq!(allowance.at_most(8), 1);
        allowance.settle(1, 1);
        assert_eq!(allowance.at_most(8), 5);
        allowance.settle(5, 5);
        assert_eq!(allowance.at_most(8), 8);
    }

    /// Drafts that stand get longer, those that fall are not run any more, and come back
    /// when they would have stood.
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

    /// A row that costs as much as a run is never worth it.
    #[test]
    fn rows_that_cost_all_are_not_run() {
        assert_eq!(Lengths::new(1, 8, 1.0, 0.5).choose(0, 8), 0);
        assert_eq!(Lengths::new(1, 8, 0.0, 0.5).choose(0, 8), 8);
    }
}
