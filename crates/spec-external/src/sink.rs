//! Where distinct keys go.

use crate::{Key, Result};

/// Takes the distinct keys in ascending order, block by block.
///
/// One implementation a format. The work is split in two, so that threads share
/// it: [`encode`](Self::encode) is called from several threads at once and does
/// what can be done without its predecessors (format text, compress a row
/// group; or all of it, where a block's place follows from its rank);
/// [`append`](Self::append) is called from one thread at a time, in ascending
/// order of the blocks. [`finish`](Self::finish) makes the result appear; a
/// sink that is dropped without it leaves nothing behind
/// ([`Output`](crate::Output) does both).
pub trait Sink<K: Key>: Send + Sync {
    /// What [`encode`](Self::encode) makes of a block.
    type Encoded: Send;

    /// Whether the sink wants to be told how often each key occurs.
    fn counts(&self) -> bool;

    /// Bytes of host memory that [`Encoded`](Self::Encoded) holds at most for
    /// each key; 0 where it holds none.
    fn key_memory(&self) -> usize {
        0
    }

    /// A block of distinct ascending keys, of which `rank` smaller ones exist.
    /// `counts` has one number a key if [`counts`](Self::counts) asked for it,
    /// and is empty otherwise. A block has some thousand keys to a million.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<Self::Encoded>;

    /// The next block, in order.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn append(&self, block: Self::Encoded) -> Result<()>;

    /// All blocks, `distinct` keys, have been appended: makes the result
    /// complete, safe on disk, and visible. Returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn finish(self, distinct: u64) -> Result<u64>
    where
        Self: Sized;
}

/// Counts and keeps nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl<K: Key> Sink<K> for Discard {
    type Encoded = ();

    fn counts(&self) -> bool {
        false
    }

    fn encode(&self, _rank: u64, _keys: &[K], _counts: &[u64]) -> Result<()> {
        Ok(())
    }

    fn append(&self, _block: ()) -> Result<()> {
        Ok(())
    }

    fn finish(self, _distinct: u64) -> Result<u64> {
        Ok(0)
    }
}
