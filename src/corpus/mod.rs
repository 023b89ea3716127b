//! A corpus that lives: finished texts, from which [`suffix_lookup`](crate::ops::suffix_lookup)
//! drafts for other requests.
//!
//! A [`Corpus`] owns device memory whose address never changes: a buffer of a fixed number of
//! tokens, and one word with the number of tokens that there are by now. So a descriptor is
//! created once, and a captured CUDA graph that reads the corpus sees every text that was
//! appended since. Texts lie one after the other, each with a negative token behind it, so that
//! no match reaches from one text into the next.
//!
//! ```
//! use spec::ops::SuffixLookup;
//! use spec::ops::suffix_lookup::Buffers;
//! use spec::{Corpus, DType, Handle};
//!
//! let handle = Handle::cpu()?;
//! let corpus = Corpus::<i32>::new(&handle, 1 << 16)?;
//! let params = SuffixLookup::new().min_match(2);
//! let tensors = params.tensors(DType::I32, 1, 8, 4);
//! let tensors = tensors.corpus(corpus.tokens_desc()).corpus_length(corpus.length_desc());
//! let lookup = handle.create(&params, &tensors)?;
//! let mut workspace = lookup.workspace(&handle)?;
//!
//! // The answer of an earlier request.
//! corpus.append(&[5, 6, 7, 8, 9])?;
//!
//! let text = [1, 2, 6, 7, 0, 0, 0, 0];
//! let (mut drafts, mut counts) = ([0i32; 4], [0i32]);
//! let reading = corpus.read();
//! let buffers = Buffers::new(&text, &[4], &mut drafts, &mut counts);
//! let buffers = buffers.corpus(reading.tokens()).corpus_length(reading.length());
//! lookup.call(&mut workspace, buffers)?;
//! assert_eq!((drafts, counts), ([8, 9, -1, -1], [2]));
//! # Ok::<(), spec::Error>(())
//! ```
//!
//! # What a token costs
//! A token takes 4 bytes (i32) or 8 bytes (i64) of device memory, and as many of host memory for a
//! copy, from which the corpus is moved and saved without reading the device. A call of
//! `suffix_lookup` reads the corpus once: on a GPU once for all requests of the batch, on the CPU
//! once for each request. So the limit of tokens bounds the time of a call.
//!
//! # Order
//! What reads the corpus and what appends to it may be different threads.
//!
//! * **On the CPU** a call holds a [`Reading`] while it runs, and [`append`](Corpus::append) waits
//!   for it. A thread that holds a [`Reading`] must not append: it would wait for itself. The same
//!   holds for a job of the rayon pool in which calls run, since a thread of the pool that waits
//!   for a part of its call may take up such a job.
//! * **On wgpu and on CUDA** a [`Reading`] is held while the call is enqueued. On the queue of the
//!   corpus's handle, calls that were enqueued before an append read the corpus before it, and
//!   calls that are enqueued after it the corpus after it. On CUDA, an append waits for the work
//!   on that queue; while that queue is being captured into a graph, nothing may be appended.
//! * **On another CUDA stream**, captured graphs among them, only the caller can order replays
//!   against appends: by events, or by appending where no replay is in flight. Work that starts
//!   after [`append`](Corpus::append) has returned sees its text without more ado.
//!
//! A replay that is not ordered against an append may read the corpus between two states. That
//! costs drafts at most. The text is written first and the length behind it, so that nothing is
//! read that was never written. While the oldest texts are dropped, a window may be looked at that
//! two texts share; its drafts are tokens of texts, which verification rejects like any wrong
//! draft. Separators are the least number of the type: if a device writes an i64 in halves, what
//! it shows in between is a separator or a token below 2^31 that was appended, or token 0.
//!
//! # Privacy
//! What one user wrote becomes a draft of another. Verification leaves every text as it would be
//! without drafts, but the time of an answer tells whether its drafts were accepted: a user can
//! find out by trying whether somebody's text had these words. Where that matters, keep a corpus
//! for each tenant. [`clear`](Corpus::clear) forgets all texts. A saved file has them in clear.

mod file;
mod replace;

use std::path::Path;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use spec_core::{Buffer, DType, Device, Element, Error, Result, Status, TensorDesc, View};

use crate::Handle;

mod sealed {
    pub trait Sealed {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
}

/// A token of a corpus: i32 or i64.
pub trait CorpusToken: Element + Ord + sealed::Sealed {
    /// What lies behind each text: the least number of the type.
    const SEPARATOR: Self;

    /// Whether this is a token of a text: not negative.
    fn is_token(self) -> bool;

    /// The number whose bytes in memory are this number's bytes, the least first.
    fn little_endian(self) -> Self;
}

macro_rules! tokens {
    ($($ty:ty),+) => {$(
        impl CorpusToken for $ty {
            const SEPARATOR: Self = Self::MIN;

            fn is_token(self) -> bool {
                self >= 0
            }

            fn little_endian(self) -> Self {
                self.to_le()
            }
        }
    )+};
}

tokens!(i32, i64);

/// The most tokens of a corpus: places in it are i32.
const MAX: usize = i32::MAX as usize;

/// Finished texts in device memory, from which other requests draft. See the
/// [module](self) for what a token costs, for the order of calls and appends, and for privacy.
pub struct Corpus<T: CorpusToken> {
    device: Device,
    limit: usize,
    state: RwLock<State<T>>,
}

struct State<T: CorpusToken> {
    /// A copy of the tokens in host memory.
    known: Vec<T>,
    /// `limit` tokens; those behind `length` are separators, or were dropped.
    tokens: Buffer<T>,
    /// How many tokens there are.
    length: Buffer<i32>,
}

/// The memory of a [`Corpus`], while nothing is appended.
pub struct Reading<'a, T: CorpusToken>(RwLockReadGuard<'a, State<T>>);

impl<T: CorpusToken> Reading<'_, T> {
    /// All of the corpus's memory: the argument `corpus` of `suffix_lookup`.
    pub fn tokens(&self) -> View<'_> {
        self.0.tokens.view()
    }

    /// One i32, how many tokens there are: the argument `corpus_length` of `suffix_lookup`.
    pub fn length(&self) -> View<'_> {
        self.0.length.view()
    }
}

impl<T: CorpusToken> Corpus<T> {
    /// An empty corpus in memory of `handle`, with room for `limit` tokens, separators included.
    ///
    /// # Errors
    /// Status 3 for a limit outside `2 ..= 2^31 - 1`, 1 when there is not enough memory.
    pub fn new(handle: &Handle, limit: usize) -> Result<Self> {
        Self::holding(handle, limit, Vec::new())
    }

    /// A corpus with the texts of a file that [`save`](Self::save) wrote. Of a file that has more
    /// tokens than `limit`, the oldest texts are left out.
    ///
    /// # Errors
    /// As [`new`](Self::new); status 3 for a file that is damaged, no corpus, no regular file, or one
    /// of the other type of tokens, 1 where it cannot be read.
    pub fn load(handle: &Handle, path: impl AsRef<Path>, limit: usize) -> Result<Self> {
        check_limit(limit)?;
        let known = file::read(handle.device(), path.as_ref())?;
        let excess = known.len().saturating_sub(limit);
        let start = if excess == 0 { 0 } else { boundary(&known, excess) };
        Self::holding(handle, limit, known[start..].to_vec())
    }

    fn holding(handle: &Handle, limit: usize, known: Vec<T>) -> Result<Self> {
        check_limit(limit)?;
        let mut tokens = vec![T::SEPARATOR; limit];
        tokens[..known.len()].copy_from_slice(&known);
        let state = State {
            tokens: handle.upload(&tokens)?,
            length: handle.upload(&[known.len() as i32])?,
            known,
        };
        Ok(Corpus { device: handle.device(), limit, state: RwLock::new(state) })
    }

    /// The most tokens that there can be, separators included.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// How many tokens there are, separators included.
    pub fn len(&self) -> usize {
        self.state().known.len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens, a separator behind each text.
    pub fn to_vec(&self) -> Vec<T> {
        self.state().known.clone()
    }

    /// Describes [`Reading::tokens`].
    pub fn tokens_desc(&self) -> TensorDesc {
        TensorDesc::new(T::DTYPE, [self.limit])
    }

    /// Describes [`Reading::length`].
    pub fn length_desc(&self) -> TensorDesc {
        TensorDesc::new(DType::I32, [1])
    }

    /// The memory, to pass to calls. Appending waits until the result is dropped.
    pub fn read(&self) -> Reading<'_, T> {
        Reading(self.state())
    }

    /// Appends a finished text and a separator. Where they do not fit, the oldest texts are
    /// dropped first: at least half of the tokens there are, and the rest of the text that this
    /// cuts. Of a text that is longer than the limit, the last tokens are kept. Negative tokens
    /// of the text separate its parts.
    ///
    /// # Errors
    /// Status 1 when the device fails. The corpus may then have lost its newest or its oldest
    /// texts, and still serves calls.
    pub fn append(&self, text: &[T]) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let text = &text[text.len().saturating_sub(self.limit - 1)..];
        let mut state = self.state_mut();
        let State { known, tokens, length } = &mut *state;
        let excess = (known.len() + text.len() + 1).saturating_sub(self.limit);
        let mut changed = Vec::new();
        // In both cases the tokens are written before the length: what reads them at the same
        // time, on a stream that nobody has ordered, finds no token that was never written.
        if excess == 0 {
            changed.extend(text.iter().copied().chain([T::SEPARATOR]));
            tokens.write_at(known.len(), &changed)?;
            length.write(&[(known.len() + changed.len()) as i32])?;
            known.append(&mut changed);
        } else {
            let start = boundary(known, excess.max(known.len() / 2));
            changed.extend(known[start..].iter().chain(text).copied().chain([T::SEPARATOR]));
            tokens.write_at(0, &changed)?;
            length.write(&[changed.len() as i32])?;
            *known = changed;
        }
        Ok(())
    }

    /// Forgets all texts, and overwrites the memory that they lie in.
    ///
    /// # Errors
    /// Status 1 when the device fails.
    pub fn clear(&self) -> Result<()> {
        let mut state = self.state_mut();
        state.length.write(&[0])?;
        state.tokens.write(&vec![T::SEPARATOR; self.limit])?;
        state.known.fill(T::SEPARATOR);
        state.known.clear();
        Ok(())
    }

    /// Saves the texts to a file that replaces the one at `path` when it is complete and safe on
    /// disk. The file can be read by its owner alone. Appending goes on meanwhile, and so do other
    /// saves to the same path, the last of which stays. What a save that was killed has left beside
    /// `path` is removed by the next one.
    ///
    /// The file has these numbers, each with its least byte first:
    ///
    /// | bytes | what |
    /// |---|---|
    /// | 8 | the ASCII letters `SPECCORP` |
    /// | 4 | 1, the version of the format |
    /// | 4 | bytes of a token: 4 or 8 |
    /// | 8 | how many tokens there are |
    /// | 4 or 8 each | the tokens, a negative one behind each text |
    /// | 4 | the CRC-32 (that of gzip) of all bytes before |
    ///
    /// # Errors
    /// Status 1 where the file cannot be written, or where something else than a regular file is at
    /// `path`. What was at `path` before is then still there.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        file::write(self.device, path.as_ref(), &self.to_vec())
    }

    fn state(&self) -> RwLockReadGuard<'_, State<T>> {
        // What a panic of another thread left is a corpus: see the order of writes in `append`.
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, State<T>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_limit(limit: usize) -> Result<()> {
    // A token and its separator.
    if (2..=MAX).contains(&limit) {
        return Ok(());
    }
    Err(Error::Argument {
        status: Status::BadParam,
        operator: "Corpus",
        argument: "limit",
        value: limit.to_string(),
        expected: "a number of tokens in 2 ..= 2^31 - 1".into(),
    })
}

/// Where the first text starts that starts at `least`, at least 1, or behind it.
fn boundary<T: CorpusToken>(known: &[T], least: usize) -> usize {
    let ends = known[least - 1..].iter().position(|token| !token.is_token());
    ends.map_or(known.len(), |end| least + end)
}

impl<T: CorpusToken> std::fmt::Debug for Corpus<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (len, limit) = (self.len(), self.limit);
        write!(f, "Corpus({len} of {limit} {} on {})", T::DTYPE, self.device)
    }
}

impl<T: CorpusToken> std::fmt::Debug for Reading<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reading({} {})", self.0.known.len(), T::DTYPE)
    }
}
