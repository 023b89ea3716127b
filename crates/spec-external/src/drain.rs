//! Moves keys between files and a device: several threads read and write files, one thread copies
//! to and from the device.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use spec::Memory;
use spec::dtype::{from_bytes, from_bytes_mut};

use crate::feed::Feed;
use crate::staging::Stage;
use crate::watch::{Pool, Turns, Watch, lock};
use crate::{Error, Key, Result, Sink};

/// The threads that write, and the size of their blocks.
#[derive(Clone, Copy)]
pub(crate) struct Team {
    /// The number of threads that encode at the same time.
    pub(crate) threads: usize,
    /// The number of keys in a block.
    pub(crate) block: usize,
}

/// Writes distinct keys and their counts, which are in host memory, to a sink.
pub(crate) fn from_host<K: Key, T: Sink<K>>(
    sink: &T,
    keys: &[K],
    counts: &[u64],
    Team { threads, block }: Team,
    watch: &Watch<'_>,
) -> Result<()> {
    let turns = Turns::new(());
    let next = AtomicU64::new(0);
    let blocks = keys.len().div_ceil(block);
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let start = number as usize * block;
            if start >= keys.len() {
                return Ok(());
            }
            let range = start..(start + block).min(keys.len());
            let counts = if counts.is_empty() { counts } else { &counts[range.clone()] };
            let block = sink.encode(start as u64, &keys[range.clone()], counts)?;
            turns.pass(number, watch, |()| sink.append(block))?;
            watch.advance_written((range.len() * K::SIZE) as u64)?;
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(blocks) {
            watch.spawn(scope, work);
        }
        watch.guard(work);
    });
    watch.check()
}

/// Writes the first `len` keys in a device's memory, and their counts, to a sink: this thread
/// copies them to stages, other threads write the stages.
pub(crate) fn from_device<K: Key, T: Sink<K>>(
    sink: &T,
    (keys, counts): (&dyn Memory, Option<&dyn Memory>),
    len: usize,
    stages: &Pool<Stage>,
    team: Team,
    watch: &Watch<'_>,
) -> Result<()> {
    let turns = Turns::new(());
    let (send, receive) = std::sync::mpsc::channel::<(u64, usize, usize, Stage)>();
    let receive = Mutex::new(receive);
    let write = || {
        loop {
            let received = lock(&receive).recv();
            let Ok((number, start, count, stage)) = received else { return Ok(()) };
            let (head, tail) = stage.bytes().split_at(count * K::SIZE);
            let keys = from_bytes::<K>(head).ok_or_else(misaligned)?;
            let counts = match counts {
                Some(_) => {
                    let skip = tail.as_ptr().align_offset(8);
                    from_bytes::<u64>(&tail[skip..][..count * 8]).ok_or_else(misaligned)?
                }
                None => &[],
            };
            let block = sink.encode(start as u64, keys, counts)?;
            turns.pass(number, watch, |()| sink.append(block))?;
            stages.give(stage);
            watch.advance_written((count * K::SIZE) as u64)?;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..team.threads {
            watch.spawn(scope, write);
        }
        watch.guard(|| {
            let mut start = 0;
            for number in 0.. {
                if start == len {
                    break;
                }
                let mut stage = stages.take(watch)?;
                let each = K::SIZE + if counts.is_some() { 8 } else { 0 };
                let count = ((stage.bytes().len() - 8) / each).min(team.block).min(len - start);
                let (head, tail) = stage.bytes_mut().split_at_mut(count * K::SIZE);
                keys.read_at(start * K::SIZE, head)?;
                if let Some(counts) = counts {
                    let skip = tail.as_ptr().align_offset(8);
                    counts.read_at(start * 8, &mut tail[skip..][..count * 8])?;
                }
                // The channel is closed only if a writer has failed.
                send.send((number, start, count, stage)).map_err(|_| Error::Stopped)?;
                start += count;
            }
            Ok(())
        });
        drop(send);
    });
    watch.check()
}

/// Fills a device's memory with up to `capacity` keys: other threads read into stages,
/// this thread copies the stages. Returns the number of keys.
pub(crate) fn to_device<K: Key>(
    feed: &Feed<'_, K>,
    keys: &mut dyn Memory,
    capacity: usize,
    stages: &Pool<Stage>,
    watch: &Watch<'_>,
) -> Result<usize> {
    let left = Mutex::new(capacity);
    let (send, receive) = std::sync::mpsc::channel::<(usize, Stage)>();
    let read = |send: Sender<(usize, Stage)>| {
        loop {
            let mut stage = stages.take(watch)?;
            let block = from_bytes_mut::<K>(stage.bytes_mut()).ok_or_else(misaligned)?;
            let want = {
                let mut left = lock(&left);
                let want = block.len().min(*left);
                *left -= want;
                want
            };
            let count = feed.fill_block(&mut block[..want])?;
            let is_last = count < want || want == 0;
            // The channel is closed only if the copying thread has failed.
            send.send((count, stage)).map_err(|_| Error::Stopped)?;
            if is_last {
                return Ok(());
            }
        }
    };
    let mut filled = 0;
    std::thread::scope(|scope| {
        for _ in 0..feed.threads() {
            let send = send.clone();
            watch.spawn(scope, move || read(send));
        }
        drop(send);
        watch.guard(|| {
            for (count, stage) in receive {
                keys.write_at(filled * K::SIZE, &stage.bytes()[..count * K::SIZE])?;
                stages.give(stage);
                filled += count;
            }
            Ok(())
        });
    });
    watch.check()?;
    Ok(filled)
}

fn misaligned() -> Error {
    Error::Device(spec::Error::device(
        spec::Device::CPU,
        spec::Status::InternalError,
        "staging memory is not aligned to 8 bytes",
    ))
}
