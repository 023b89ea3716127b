//! A corpus of finished texts for C: `spec::Corpus` with the type of its tokens chosen at run time,
//! and a lock that C takes in two calls.

use std::ffi::{c_char, c_void};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use spec::corpus::CorpusToken;
use spec::{Corpus, Handle, Place, Result, Status, View};

use crate::device::spec_handle;
use crate::opaque::{Slot, get, give, opaque, take};
use crate::status::{guard, out_pointer, refuse, spec_status, text};
use crate::tensor::{SPEC_DTYPE_I32, SPEC_DTYPE_I64};

/// Finished texts in device memory, from which `suffix_lookup` drafts for other requests.
/// `spec_corpus_create` and `spec_corpus_load` make a corpus, `spec_corpus_destroy` destroys it.
/// Threads may share it.
///
/// The texts lie one after the other, each with a negative token behind it, in a buffer of `limit`
/// tokens whose address never changes. A word of device memory has the number of tokens. So a
/// descriptor is created once, and a captured CUDA graph sees every text that was appended since.
/// A token takes 4 or 8 bytes of device memory and as many of host memory. What one user wrote
/// becomes a draft of another: where the time of an answer must tell nothing about other texts,
/// keep a corpus for each tenant.
pub struct spec_corpus(Slot<Kept>);

opaque!(spec_corpus: Kept, b"speccorp", "corpus");

/// A corpus and its lock.
#[derive(Debug)]
pub struct Kept {
    corpus: Typed,
    lock: Lock,
}

/// A corpus of either type of tokens.
#[derive(Debug)]
enum Typed {
    I32(Corpus<i32>),
    I64(Corpus<i64>),
}

/// Calls a method of the corpus of a [`Typed`], whatever its type of tokens.
macro_rules! on {
    ($typed:expr, $corpus:ident => $body:expr) => {
        match $typed {
            Typed::I32($corpus) => $body,
            Typed::I64($corpus) => $body,
        }
    };
}

/// Threads that read the corpus, and threads that wait to change it.
#[derive(Debug, Default)]
struct Threads {
    reading: usize,
    waiting: usize,
}

/// A lock for many readers or one writer. C gives a reader's part back in another call, for which
/// the guards of the standard library cannot be kept.
#[derive(Debug, Default)]
struct Lock {
    threads: Mutex<Threads>,
    changed: Condvar,
}

impl Lock {
    fn threads(&self) -> MutexGuard<'_, Threads> {
        // The counts are consistent whenever the mutex is released.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to read. A thread that waits to write comes first.
    fn enter(&self) {
        let threads = self.threads();
        let threads = self.changed.wait_while(threads, |threads| threads.waiting > 0);
        threads.unwrap_or_else(PoisonError::into_inner).reading += 1;
    }

    /// Ends to read; false if nobody reads.
    fn leave(&self) -> bool {
        let mut threads = self.threads();
        let Some(rest) = threads.reading.checked_sub(1) else { return false };
        threads.reading = rest;
        drop(threads);
        self.changed.notify_all();
        true
    }

    fn is_read(&self) -> bool {
        self.threads().reading > 0
    }

    /// Runs `write` while nobody reads.
    fn alone<T>(&self, write: impl FnOnce() -> T) -> T {
        let mut threads = self.threads();
        threads.waiting += 1;
        let threads = self.changed.wait_while(threads, |threads| threads.reading > 0);
        let mut threads = threads.unwrap_or_else(PoisonError::into_inner);
        threads.waiting -= 1;
        // Held until the end, so that no thread enters meanwhile.
        let done = write();
        drop(threads);
        self.changed.notify_all();
        done
    }
}

impl Kept {
    fn of(corpus: Typed) -> Self {
        Kept { corpus, lock: Lock::default() }
    }
}

/// Makes a corpus by `make`, for the type of tokens with this number.
fn made(
    call: &'static str,
    handle: &Handle,
    dtype: u32,
    narrow: impl FnOnce() -> Result<Corpus<i32>>,
    wide: impl FnOnce() -> Result<Corpus<i64>>,
) -> Result<*mut spec_corpus> {
    let device = handle.device();
    if device.backend() == "wgpu" {
        let expected = "the CPU or CUDA, whose memory has addresses";
        return Err(refuse(Status::NotImplemented, call, "handle", device.to_string(), expected));
    }
    let corpus = match dtype {
        SPEC_DTYPE_I32 => Typed::I32(narrow()?),
        SPEC_DTYPE_I64 => Typed::I64(wide()?),
        other => {
            let expected = "SPEC_DTYPE_I32 or SPEC_DTYPE_I64";
            return Err(refuse(Status::BadTensorDtype, call, "dtype", other.to_string(), expected));
        }
    };
    Ok(give(Kept::of(corpus)))
}

/// Makes an empty corpus on the handle's device, with room for `limit` tokens of dtype
/// `SPEC_DTYPE_I32` or `SPEC_DTYPE_I64`, separators included. `corpus` becomes yours, to be given to
/// `spec_corpus_destroy`, or NULL where the call fails.
///
/// # Errors
/// Status 10 for another dtype, 3 for a limit outside 2 to 2^31 - 1 or a handle that is closed, 4
/// for a null pointer, 1 if there is not enough memory, 2 on wgpu, whose memory has no addresses.
///
/// # Safety
/// `handle` is from `spec_open`; `corpus` is NULL or points to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_create(
    handle: *const spec_handle,
    dtype: u32,
    limit: usize,
    corpus: *mut *mut spec_corpus,
) -> spec_status {
    let call = "spec_corpus_create";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is null or valid for writing.
        let corpus = unsafe { out_pointer(call, "corpus", corpus)? };
        corpus.write(std::ptr::null_mut());
        // SAFETY: the caller promises that `handle` is from `spec_open`.
        let handle = unsafe { get(call, handle)? };
        let (narrow, wide) = (|| Corpus::new(handle, limit), || Corpus::new(handle, limit));
        corpus.write(made(call, handle, dtype, narrow, wide)?);
        Ok(())
    })
}

/// Makes a corpus with the texts of a file that `spec_corpus_save`, or Rust's or Python's `Corpus`,
/// wrote. Of a file that has more tokens than `limit`, the oldest texts are left out.
///
/// # Errors
/// As `spec_corpus_create`; status 3 for a file that is damaged, no corpus, no regular file, or one
/// of the other dtype, and for a path that is not UTF-8; 1 if the file cannot be read.
///
/// # Safety
/// As for `spec_corpus_create`; `path` is NULL or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_load(
    handle: *const spec_handle,
    dtype: u32,
    path: *const c_char,
    limit: usize,
    corpus: *mut *mut spec_corpus,
) -> spec_status {
    let call = "spec_corpus_load";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is null or valid for writing.
        let corpus = unsafe { out_pointer(call, "corpus", corpus)? };
        corpus.write(std::ptr::null_mut());
        // SAFETY: the caller promises that `handle` is from `spec_open`, and that `path` is null or
        // ends with a zero.
        let (handle, path) = unsafe { (get(call, handle)?, text(call, "path", path)?) };
        let narrow = || Corpus::load(handle, path, limit);
        let wide = || Corpus::load(handle, path, limit);
        corpus.write(made(call, handle, dtype, narrow, wide)?);
        Ok(())
    })
}

/// Saves the texts to a file, which replaces the one at `path` when it is complete and safe on disk.
/// Only its owner can read the file. Other threads may append meanwhile. Of saves to one path at the
/// same time, the last one stays. What a killed save has left beside `path` is removed by the next.
///
/// # Errors
/// Status 1 if the file cannot be written, or if `path` is something else than a regular file; what
/// was at `path` before is then still there. 4 for a null pointer, 3 for a corpus that was destroyed
/// or a path that is not UTF-8.
///
/// # Safety
/// `corpus` is from this library; `path` is NULL or text that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_save(
    corpus: *const spec_corpus,
    path: *const c_char,
) -> spec_status {
    let call = "spec_corpus_save";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library, and that `path` is null
        // or ends with a zero.
        let (kept, path) = unsafe { (get(call, corpus)?, text(call, "path", path)?) };
        on!(&kept.corpus, corpus => corpus.save(path))
    })
}

/// Appends a finished text of `count` tokens in host memory, and a separator. Where they do not fit,
/// the oldest texts are dropped first: at least half of the tokens there are, and the rest of the
/// text that this cuts. Of a text longer than the limit, the last tokens are kept. Negative tokens
/// separate the parts of a text.
///
/// The call waits for threads that hold `spec_corpus_lock`, and on CUDA for the work that was
/// enqueued on the handle's own stream; nothing may be appended while that stream is captured. Work
/// that starts later, on any stream, sees the text. Work on another stream that runs meanwhile may
/// draft from half of the change, which costs drafts and never a wrong text, because verification
/// rejects what the model would not have written.
///
/// # Errors
/// Status 1 if the device fails; the corpus may then have lost its newest or its oldest texts, and
/// still serves calls. 4 for a null pointer, 3 for a corpus that was destroyed or a text that is not
/// aligned to its tokens.
///
/// # Safety
/// `corpus` is from this library; `text` points to `count` tokens of the corpus's dtype.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_append(
    corpus: *const spec_corpus,
    text: *const c_void,
    count: usize,
) -> spec_status {
    let call = "spec_corpus_append";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library.
        let kept = unsafe { get(call, corpus)? };
        // SAFETY: the caller promises `count` tokens of the corpus's dtype at `text`.
        on!(&kept.corpus, corpus => unsafe { append(call, &kept.lock, corpus, text, count) })
    })
}

/// # Safety
/// `text` is null or points to `count` tokens, if it is aligned for them.
unsafe fn append<T: CorpusToken>(
    call: &'static str,
    lock: &Lock,
    corpus: &Corpus<T>,
    text: *const c_void,
    count: usize,
) -> Result<()> {
    if count == 0 {
        return Ok(());
    }
    let text = text.cast::<T>();
    if text.is_null() {
        return Err(refuse(Status::NullPointer, call, "text", "a null pointer", "tokens"));
    }
    if !text.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        let value = format!("{count} tokens at {text:p}");
        return Err(refuse(Status::BadParam, call, "text", value, "aligned tokens in memory"));
    }
    // SAFETY: `text` is not null and aligned, and the caller promises `count` tokens there.
    let text = unsafe { std::slice::from_raw_parts(text, count) };
    lock.alone(|| corpus.append(text))
}

/// Forgets all texts and overwrites their memory. Waits as `spec_corpus_append` does.
///
/// # Errors
/// Status 1 if the device fails, 4 for NULL, 3 for a corpus that was destroyed.
///
/// # Safety
/// `corpus` is from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_clear(corpus: *const spec_corpus) -> spec_status {
    let call = "spec_corpus_clear";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library.
        let kept = unsafe { get(call, corpus)? };
        kept.lock.alone(|| on!(&kept.corpus, corpus => corpus.clear()))
    })
}

/// Writes how many tokens there are, separators included, and how many there can be. Either pointer
/// may be NULL.
///
/// # Errors
/// Status 4 if `corpus` is NULL, 3 for a corpus that was destroyed.
///
/// # Safety
/// `corpus` is from this library; `count` and `limit` are NULL or point to memory for a `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_size(
    corpus: *const spec_corpus,
    count: *mut usize,
    limit: *mut usize,
) -> spec_status {
    let call = "spec_corpus_size";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library.
        let kept = unsafe { get(call, corpus)? };
        let (len, max) = on!(&kept.corpus, corpus => (corpus.len(), corpus.limit()));
        for (name, to, value) in [("count", count, len), ("limit", limit, max)] {
            if !to.is_null() {
                // SAFETY: the caller promises that `to`, if it is not null, is valid for writing.
                unsafe { out_pointer(call, name, to)? }.write(value);
            }
        }
        Ok(())
    })
}

/// Writes the pointers to give to `suffix_lookup`: `tokens` for `corpus`, a packed tensor of `limit`
/// tokens, and `length` for `corpus_length`, a tensor of one i32, the number of tokens. They are
/// host pointers on the CPU and device pointers on CUDA, are valid until the corpus is destroyed, and
/// never change, so that a captured graph may keep them. The memory must not be written.
///
/// # Errors
/// Status 4 for a null pointer, 3 for a corpus that was destroyed.
///
/// # Safety
/// `corpus` is from this library; `tokens` and `length` are NULL or point to memory for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_pointers(
    corpus: *const spec_corpus,
    tokens: *mut *const c_void,
    length: *mut *const c_void,
) -> spec_status {
    let call = "spec_corpus_pointers";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library, and that the other
        // pointers are null or valid for writing.
        let (kept, tokens, length) = unsafe {
            let to = (out_pointer(call, "tokens", tokens)?, out_pointer(call, "length", length)?);
            (get(call, corpus)?, to.0, to.1)
        };
        on!(&kept.corpus, corpus => {
            let reading = corpus.read();
            tokens.write(pointer(&reading.tokens()));
            length.write(pointer(&reading.length()));
        });
        Ok(())
    })
}

/// The address of memory of the CPU or of CUDA.
fn pointer(view: &View<'_>) -> *const c_void {
    match view.place() {
        Place::Host(bytes) => std::ptr::with_exposed_provenance(bytes.as_ptr().expose_provenance()),
        Place::Address { address, .. } => std::ptr::with_exposed_provenance(address as usize),
        // `made` refuses devices whose memory has no addresses.
        _ => std::ptr::null(),
    }
}

/// Keeps the corpus as it is until `spec_corpus_unlock`: appending waits. Hold the lock during each
/// call that reads the corpus: on the CPU until the call returns, on CUDA while the call is enqueued.
/// Many threads may hold it at the same time. A thread that holds the lock must neither append, nor
/// clear, nor lock again: it would wait for itself.
///
/// Replays of a captured graph need no lock; see `spec_corpus_append` for what they see.
///
/// # Errors
/// Status 4 for NULL, 3 for a corpus that was destroyed.
///
/// # Safety
/// `corpus` is from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_lock(corpus: *const spec_corpus) -> spec_status {
    let call = "spec_corpus_lock";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library.
        unsafe { get(call, corpus)? }.lock.enter();
        Ok(())
    })
}

/// Gives back what `spec_corpus_lock` took, once for each call of it, on whichever thread.
///
/// # Errors
/// Status 4 for NULL, 3 for a corpus that was destroyed or is not locked.
///
/// # Safety
/// `corpus` is from this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_unlock(corpus: *const spec_corpus) -> spec_status {
    let call = "spec_corpus_unlock";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library.
        if unsafe { get(call, corpus)? }.lock.leave() {
            return Ok(());
        }
        Err(refuse(Status::BadParam, call, "corpus", "not locked", "a corpus that is locked"))
    })
}

/// Destroys a corpus and frees its memory once the work that the handle's own stream has enqueued so
/// far is done. Descriptors that were created for it stay valid, and read other memory from then on.
///
/// # Errors
/// Status 4 for NULL, 3 for a corpus that was destroyed already, or that is locked.
///
/// # Safety
/// No other thread uses the corpus, now or later, nor does any work on other streams.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spec_corpus_destroy(corpus: *mut spec_corpus) -> spec_status {
    let call = "spec_corpus_destroy";
    guard(call, || {
        // SAFETY: the caller promises that `corpus` is from this library and used by nobody else.
        if unsafe { get(call, corpus)? }.lock.is_read() {
            let expected = "a corpus that no thread has locked";
            return Err(refuse(Status::BadParam, call, "corpus", "locked", expected));
        }
        // SAFETY: the caller promises that nobody else uses the corpus, now or later.
        drop(unsafe { take(call, corpus)? });
        Ok(())
    })
}
