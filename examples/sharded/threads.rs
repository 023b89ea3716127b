//! Ranks that share a device and exchange in host memory.

use std::any::Any;
use std::sync::{Arc, Barrier, Mutex, PoisonError};

use spec::{Buffer, Element, Handle, Result};

use super::{Communicator, Options};

/// Runs the ranks, each with a queue of its own on the device.
pub fn run(options: &Options, device: &str) -> Result<usize> {
    let (world, handle) = (options.world, device.parse::<Handle>()?);
    println!("{world} ranks on {} exchange in host memory", handle.device());
    let posts = (0..world).map(|_| Box::new(()) as Post).collect();
    let (posts, barrier) = (Arc::new(Mutex::new(posts)), Arc::new(Barrier::new(world)));
    Ok(super::run(options, |rank| {
        let (posts, barrier) = (posts.clone(), barrier.clone());
        Ok((device.parse()?, Threads { rank, world, posts, barrier }))
    }))
}

/// The numbers of a rank: a `Vec` of them.
type Post = Box<dyn Any + Send>;

/// A rank.
struct Threads {
    rank: usize,
    world: usize,
    posts: Arc<Mutex<Vec<Post>>>,
    barrier: Arc<Barrier>,
}

impl Threads {
    /// The numbers of each rank.
    fn all<T: Element>(&self, own: Vec<T>) -> Vec<Vec<T>> {
        let posts = || self.posts.lock().unwrap_or_else(PoisonError::into_inner);
        posts()[self.rank] = Box::new(own);
        self.barrier.wait();
        let read = |post: &Post| post.downcast_ref::<Vec<T>>().cloned();
        let all = posts().iter().map(|post| read(post).expect("one call on all ranks")).collect();
        // No rank posts again before all ranks have read.
        self.barrier.wait();
        all
    }

    fn reduce<T: Element>(&self, numbers: &mut Buffer<T>, with: fn(T, T) -> T) -> Result<()> {
        let all = self.all(numbers.to_vec()?);
        let at = |place: usize| all.iter().map(|own| own[place]).reduce(with).expect("a rank");
        numbers.write(&(0..numbers.len()).map(at).collect::<Vec<_>>())
    }
}

impl Communicator for Threads {
    type Graph = ();

    fn all_reduce_max(&self, numbers: &mut Buffer<f32>) -> Result<()> {
        self.reduce(numbers, f32::max)
    }

    fn all_reduce_min(&self, numbers: &mut Buffer<i64>) -> Result<()> {
        self.reduce(numbers, i64::min)
    }

    fn all_gather<T: Element>(&self, part: &Buffer<T>, parts: &mut Buffer<T>) -> Result<()> {
        parts.write(&self.all(part.to_vec()?).concat())
    }

    fn copy_to_rows<T: Element>(
        &self,
        parts: &Buffer<T>,
        rows: usize,
        whole: &mut Buffer<T>,
    ) -> Result<()> {
        let (parts, columns) = (parts.to_vec()?, parts.len() / self.world / rows);
        let places = (0..rows).flat_map(|row| (0..self.world).map(move |rank| rank * rows + row));
        let pieces = places.map(|place| &parts[place * columns..][..columns]);
        whole.write(&pieces.collect::<Vec<_>>().concat())
    }

    fn wait(&self) -> Result<()> {
        self.barrier.wait();
        Ok(())
    }

    fn capture(&self, _step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn replay(&self, (): &(), step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        step()
    }
}
