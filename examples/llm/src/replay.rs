//! Drafters compared on texts that are known: what each drafts is compared with how the text goes
//! on (teacher forcing). Verification keeps exactly these drafts, so that tokens per run and the
//! accepted share are those of decoding, without running the model.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use spec::{Corpus, Handle};

use crate::Result;
use crate::bench;
use crate::drafting::{Drafter, for_corpus};
use crate::engine::{Decoded, Request, decode};
use crate::llama::Llama;
use crate::stopwatch::Stopwatch;
use crate::text::Text;

/// Users' messages of three kinds of work, and what divides the messages of a file.
const LIKE: [(&str, &str); 3] = [
    ("edits", include_str!("../prompts/like/edits.txt")),
    ("json", include_str!("../prompts/like/json.txt")),
    ("support", include_str!("../prompts/like/support.txt")),
];
const DIVIDER: &str = "\n====\n";
/// Of the messages of a kind, so many are answered before drafters are compared.
const EARLIER: usize = 10;
/// The limit of a corpus, in tokens.
const LIMIT: usize = 1 << 18;

/// A text whose tokens are known.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Known {
    /// What kind of text it is. The corpus of a text are the texts of its group before it.
    pub group: String,
    /// Tokens that were there before the first run of the model.
    pub prompt: Vec<u32>,
    /// Tokens that the model wrote, or that stand for what a model would write.
    pub answer: Vec<u32>,
    /// Whether drafters are compared on this text; if not, the text is in corpora only.
    pub measured: bool,
}

/// Eight messages of mixed work: two of each kind under `prompts/like`, and two that ask for prose.
pub fn mixed() -> Vec<&'static str> {
    let like = LIKE.iter().flat_map(|(_, messages)| messages.trim_end().split(DIVIDER).take(2));
    let prose = bench::PROMPTS.iter().filter(|prompt| ["story", "letter"].contains(&prompt.0));
    like.chain(prose.map(|prompt| prompt.2)).collect()
}

/// The model's answers to the messages under `prompts/like`, of up to `request.tokens` tokens.
///
/// # Errors
/// As [`decode`].
pub fn answers(
    handle: &Handle,
    model: &mut Llama,
    text: &Text,
    request: &Request,
    mut done: impl FnMut(&Known),
) -> Result<Vec<Known>> {
    let mut all = Vec::new();
    for (group, messages) in LIKE {
        for (at, message) in messages.trim_end().split(DIVIDER).enumerate() {
            let prompt = text.tokens(&text.chat(message)?)?;
            let mut drafter = Drafter::lookup(handle, model.capacity(), request.max_draft)?;
            let written = decode(handle, model, &mut drafter, &prompt, request, |_| Ok(()))?;
            let (group, answer) = (group.to_owned(), written.tokens);
            let known = Known { group, prompt, answer, measured: at >= EARLIER };
            done(&known);
            all.push(known);
        }
    }
    Ok(all)
}

/// The tokens of files, the first `max` of each; files with the same ending are one group.
///
/// # Errors
/// Where a file cannot be read as text.
pub fn files(paths: &[PathBuf], text: &Text, max: usize) -> Result<Vec<Known>> {
    let known = |path: &PathBuf| {
        let name = || path.display().to_string();
        let said = std::fs::read_to_string(path).with_context(name)?;
        // A token has at least one byte, and few have more than 16.
        let end = said.floor_char_boundary(max.saturating_mul(16));
        let mut tokens = text.tokens(&said[..end])?;
        tokens.truncate(max);
        let group = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(!tokens.is_empty(), "{} is empty", path.display());
        let answer = tokens.split_off(1);
        Ok(Known { group, prompt: tokens, answer, measured: true })
    };
    paths.iter().map(known).collect()
}

/// Reads what [`save`] wrote.
///
/// # Errors
/// Where the file is not of that kind.
pub fn load(path: &Path) -> Result<Vec<Known>> {
    let name = || format!("texts {}", path.display());
    let bytes = std::fs::read(path).with_context(name)?;
    serde_json::from_slice(&bytes).with_context(name)
}

/// Writes texts to a file, as JSON.
///
/// # Errors
/// Where the file cannot be written.
pub fn save(path: &Path, texts: &[Known]) -> Result<()> {
    let name = || format!("texts {}", path.display());
    std::fs::write(path, serde_json::to_vec(texts)?).with_context(name)
}

/// A drafter that is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Its name in tables.
    pub name: &'static str,
    /// The most drafts of a step.
    pub max: usize,
    /// The most children of a node of `suffix_lookup`; 0 for `prompt_lookup`.
    pub width: usize,
    /// Whether it has the corpus.
    pub corpus: bool,
}

const fn way(name: &'static str, max: usize, width: usize, corpus: bool) -> Way {
    Way { name, max, width, corpus }
}

/// Every way that is compared.
pub const WAYS: [Way; 11] = [
    way("prompt_lookup, 8", 8, 0, false),
    way("chain of 2", 2, 1, false),
    way("chain of 8", 8, 1, false),
    way("tree of 2", 2, 2, false),
    way("tree of 8", 8, 2, false),
    way("tree of 16", 16, 4, false),
    way("chain of 2 + corpus", 2, 1, true),
    way("chain of 8 + corpus", 8, 1, true),
    way("tree of 2 + corpus", 2, 2, true),
    way("tree of 8 + corpus", 8, 2, true),
    way("tree of 16 + corpus", 16, 4, true),
];

impl Way {
    /// The drafter, for texts of up to `capacity` tokens.
    ///
    /// # Errors
    /// As [`Handle::create`].
    pub fn drafter(
        &self,
        handle: &Handle,
        capacity: usize,
        corpus: &Arc<Corpus<i32>>,
    ) -> Result<Drafter> {
        let corpus = self.corpus.then(|| Arc::clone(corpus));
        match self.width {
            0 => Drafter::lookup(handle, capacity, self.max),
            width => Drafter::suffix(handle, capacity, self.max, width, corpus),
        }
    }
}

/// What a way of drafting comes to, over texts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Tokens that the model would write.
    pub tokens: usize,
    /// Its runs for them.
    pub runs: usize,
    /// Drafts that are run.
    pub drafted: usize,
    /// Drafts that stand.
    pub accepted: usize,
    /// The time of the drafting operators.
    pub time: Duration,
}

impl Outcome {
    /// Adds a text, drafted from its prompt on, all drafts run.
    fn add(&mut self, drafter: &mut Drafter, known: &Known, max: usize) -> Result<()> {
        let text = [&known.prompt[..], &known.answer].concat();
        let mut watch = Stopwatch::default();
        let mut place = known.prompt.len();
        while place < text.len() {
            // The last token of a run is the model's own, as in decoding.
            let (so_far, next) = text[..text.len() - 1].split_at(place);
            let draft = drafter.draft(so_far, max.min(next.len()), &mut watch)?;
            let stood = draft.stands(next);
            self.runs += 1;
            self.drafted += draft.tokens.len();
            self.accepted += stood;
            place += stood + 1;
        }
        self.tokens += known.answer.len();
        self.time += watch.laps.iter().map(|lap| lap.1).sum::<Duration>();
        Ok(())
    }
}

/// The name of a group of texts, and the outcome of each way to draft for these texts.
pub type GroupOutcomes = (String, Vec<(Way, Outcome)>);

/// The outcome of each way for each group of texts. The corpus of a text are the answers of its
/// group before it.
///
/// # Errors
/// As [`Drafter::draft`].
pub fn replay(handle: &Handle, texts: &[Known]) -> Result<Vec<GroupOutcomes>> {
    let mut groups: Vec<GroupOutcomes> = Vec::new();
    for (group, texts) in grouped(texts) {
        let mut outcomes = WAYS.map(|way| (way, Outcome::default()));
        let corpus = Arc::new(Corpus::new(handle, LIMIT)?);
        for known in texts {
            for (way, outcome) in outcomes.iter_mut().filter(|_| known.measured) {
                let capacity = known.prompt.len() + known.answer.len();
                let mut drafter = way.drafter(handle, capacity, &corpus)?;
                outcome.add(&mut drafter, known, way.max)?;
            }
            corpus.append(&for_corpus(&known.answer)?)?;
        }
        groups.push((group.to_owned(), outcomes.to_vec()));
    }
    Ok(groups)
}

/// Texts by group, in the order in which groups begin.
fn grouped(texts: &[Known]) -> Vec<(&str, Vec<&Known>)> {
    let mut groups: Vec<(&str, Vec<&Known>)> = Vec::new();
    for known in texts {
        match groups.iter_mut().find(|group| group.0 == known.group) {
            Some(group) => group.1.push(known),
            None => groups.push((&known.group, vec![known])),
        }
    }
    groups
}

/// Ways that [`turns`] times, beside decoding without drafts.
pub const TIMED: [usize; 5] = [0, 2, 4, 7, 9];

/// The answers of a group, decoded without drafts and by each of the ways in [`TIMED`].
pub struct Turns {
    /// The group.
    pub group: String,
    /// Without drafts.
    pub plain: Timed,
    /// The way, and what was measured.
    pub drafted: Vec<(Way, Timed)>,
}

/// Sums over the answers of a group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timed {
    /// Runs of the model, and the drafts that were run and stood.
    pub outcome: Outcome,
    /// The time of all answers.
    pub total: Duration,
    /// The CPU time of all answers, all threads together.
    pub processors: Duration,
}

impl Timed {
    fn add(&mut self, decoded: &Decoded) {
        self.outcome.tokens += decoded.tokens.len();
        self.outcome.runs += decoded.steps;
        self.outcome.drafted += decoded.drafted;
        self.outcome.accepted += decoded.accepted;
        self.total += decoded.total;
        self.processors += decoded.processors;
    }
}

/// Decodes the measured texts with a real model, each way in turn for each text, and checks that
/// every way writes the known tokens. The loop chooses how many drafts it runs.
///
/// # Errors
/// If a way changes the text; the errors of [`decode`].
pub fn turns(
    handle: &Handle,
    model: &mut Llama,
    texts: &[Known],
    request: &Request,
) -> Result<Vec<Turns>> {
    let mut all = Vec::new();
    for (group, texts) in grouped(texts) {
        let drafted = TIMED.map(|way| (WAYS[way], Timed::default())).to_vec();
        let mut turns = Turns { group: group.to_owned(), plain: Timed::default(), drafted };
        let corpus = Arc::new(Corpus::new(handle, LIMIT)?);
        for known in texts {
            if known.measured {
                let request = Request { tokens: known.answer.len(), ..*request };
                let mut run = |drafter: &mut Drafter, max_draft| -> Result<Decoded> {
                    let request = Request { max_draft, ..request };
                    let prompt = &known.prompt;
                    let decoded = decode(handle, model, drafter, prompt, &request, |_| Ok(()))?;
                    ensure!(decoded.tokens == known.answer, "{group}: the text is another one");
                    Ok(decoded)
                };
                turns.plain.add(&run(&mut Drafter::None, 0)?);
                for (way, timed) in &mut turns.drafted {
                    let capacity = known.prompt.len() + known.answer.len();
                    let mut drafter = way.drafter(handle, capacity, &corpus)?;
                    timed.add(&run(&mut drafter, way.max)?);
                }
            }
            corpus.append(&for_corpus(&known.answer)?)?;
        }
        all.push(turns);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(answer: &[u32], measured: bool) -> Known {
        let group = "numbers".to_owned();
        Known { group, prompt: vec![9, 1], answer: answer.to_vec(), measured }
    }

    /// The second text repeats the first, so that with a corpus one run writes what is left.
    #[test]
    fn a_corpus_has_the_texts_before() {
        let handle = Handle::cpu().unwrap();
        let texts = [known(&[1, 2, 3, 4, 5, 6], false), known(&[2, 3, 4, 5, 6], true)];
        let groups = replay(&handle, &texts).unwrap();
        let [(group, outcomes)] = &groups[..] else { panic!("one group") };
        assert_eq!(group, "numbers");
        for (way, outcome) in outcomes {
            assert_eq!(outcome.tokens, 5);
            assert_eq!(outcome.runs + outcome.accepted, 5, "{way:?}");
            let runs = match (way.corpus, way.max) {
                (false, _) => 5,
                // Two drafts and the model's own token, then the last two tokens.
                (true, 2) => 2,
                // The last token of a text is the model's own.
                (true, _) => 1,
            };
            assert_eq!(outcome.runs, runs, "{way:?}");
        }
    }

    #[test]
    fn prompts_of_each_kind_are_alike_in_number() {
        for (group, messages) in LIKE {
            let messages: Vec<&str> = messages.trim_end().split(DIVIDER).collect();
            assert_eq!(messages.len(), EARLIER + 4, "{group}");
            assert!(messages.iter().all(|message| message.len() > 40), "{group}");
        }
    }
}
