//! Formats to write.

use crate::{Key, Result};

/// Takes the distinct keys in ascending order, block by block.
///
/// Each format has one implementation. The work is split in two steps, so that threads share
/// it. [`encode`](Self::encode) is called from several threads at once and does
/// the work that does not depend on earlier blocks, such as formatting text or compressing a row
/// group; it may even write the block, if the block's place follows from its rank.
/// [`append`](Self::append) is called from one thread at a time, in ascending
/// order of the blocks. [`finish`](Self::finish) makes the result appear. A
/// sink that is dropped without it leaves nothing behind
/// ([`Output`](crate::Output) does both).
pub trait Sink<K: Key>: Send + Sync {
    /// A block that [`encode`](Self::encode) has encoded.
    type Encoded: Send;

    /// Whether the sink wants to know how often each key occurs.
    fn counts(&self) -> bool;

    /// The largest number of bytes of host memory that [`Encoded`](Self::Encoded) holds for
    /// each key; 0 where it holds none.
    fn key_memory(&self) -> usize {
        0
    }

    /// Encodes a block of ascending distinct keys. `rank` is the number of smaller distinct keys,
    /// which come in earlier blocks. `counts` has one number for each key if
    /// [`counts`](Self::counts) asked for it, and is empty otherwise. A block has some thousand
    /// keys to a million.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn encode(&self, rank: u64, keys: &[K], counts: &[u64]) -> Result<Self::Encoded>;

    /// Appends the next block, in order.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn append(&self, block: Self::Encoded) -> Result<()>;

    /// Called after all blocks, with `distinct` keys, have been appended. Makes the result
    /// complete, safe on disk, and visible. Returns its size in bytes.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) with the path.
    fn finish(self, distinct: u64) -> Result<u64>
    where
        Self: Sized;
}

/// A sink that drops all keys, for runs that only count them.
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
