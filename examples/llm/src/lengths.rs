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
    /// takes, drafting it included, in units of a run of one row.
    pub fn new(kinds: usize, most: usize, row: f64) -> Self {
        Lengths { stand: vec![vec![0.5; most]; kinds], row, open: Vec::new() }
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
        self.open.push(Open { place, kind, tokens });
    }

    /// Learns from the text so far.
    pub fn observe(&mut self, text: &[u32]) {
        let stand = &mut self.stand;
        self.open.retain(|open| {
            let known = &text[open.place.min(text.len())..];
            let agreed = open.tokens.iter().zip(known).take_while(|(a, b)| a == b).count();
            if agreed == known.len() && agreed < open.tokens.len() {
                return true; // The text has not decided yet.
            }
            let places = stand[open.kind].iter_mut().take(open.tokens.len()).enumerate();
            for (place, stands) in places.take(agreed + 1) {
                let stood = if place < agreed { 1.0 } else { 0.0 };
                *stands += NEWEST * (stood - *stands);
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts that stand get longer, those that fall are not run any more, and come back
    /// when they would have stood.
    #[test]
    fn lengths_follow_the_text() {
        let mut lengths = Lengths::new(2, 8, 0.2);
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
        assert_eq!(Lengths::new(1, 8, 1.0).choose(0, 8), 0);
        assert_eq!(Lengths::new(1, 8, 0.0).choose(0, 8), 8);
    }
}
