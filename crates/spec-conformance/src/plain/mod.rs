//! Every operator as a plain sequential loop, written from the contract to be
//! read, not to be fast. Every backend is compared with these loops; the
//! benches time them as "plain loop".
//!
//! Only the arithmetic that the contract fixes bit by bit
//! ([`spec_core::exact`], [`spec_core::philox`]) is shared with the backends.

pub mod ngram;
mod texts;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( pub(crate) mod $module; )+ };
}

spec_core::for_each_operator!(modules);

use spec_core::{
    Backend, DType, Device, DeviceInfo, Kernel, Memory, QueueId, Result, Stream, Supports, View,
    ViewMut,
};

use crate::Subject;
use crate::host::not_host;

/// A backend on the host whose operators are the plain loops.
#[derive(Clone, Debug)]
pub struct Plain(DeviceInfo);

impl Default for Plain {
    fn default() -> Self {
        Plain(DeviceInfo {
            device: Device::CPU,
            name: "plain loops".to_owned(),
            software: true,
            memory: None,
            facts: Vec::new(),
        })
    }
}

// SAFETY: the device is always the CPU, and all memory belongs to the host's queue. Work is done
// when a call returns, so all handles share one order: the order of the calls.
unsafe impl Backend for Plain {
    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn queue_id(&self) -> QueueId {
        QueueId::HOST
    }

    fn allocate_bytes(&self, bytes: usize) -> Result<Box<dyn Memory>> {
        // Memory is made of u64 words, so every type is aligned.
        Ok(Box::new(Words { words: vec![0; bytes.div_ceil(8)], size: bytes }))
    }

    fn adopt(&self, memory: Box<dyn Memory>) -> Result<Box<dyn Memory>> {
        Ok(memory)
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn sibling(&self) -> Result<Self> {
        Ok(Plain::default())
    }
}

struct Words {
    words: Vec<u64>,
    size: usize,
}

impl Memory for Words {
    fn size(&self) -> usize {
        self.size
    }

    fn view(&self, dtype: DType, len: usize) -> View<'_> {
        View::from_bytes(dtype, &spec_core::dtype::as_bytes(&self.words)[..len * dtype.size()])
    }

    fn view_mut(&mut self, dtype: DType, len: usize) -> ViewMut<'_> {
        let bytes = spec_core::dtype::as_bytes_mut(&mut self.words);
        ViewMut::from_bytes(dtype, &mut bytes[..len * dtype.size()])
    }

    fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let all = &mut spec_core::dtype::as_bytes_mut(&mut self.words)[..self.size];
        let place = all.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or_else(not_host)?.copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let all = &spec_core::dtype::as_bytes(&self.words)[..self.size];
        let place = all.get(offset..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(place.ok_or_else(not_host)?);
        Ok(())
    }
}

// SAFETY: the loops are safe code on the slices of the buffers, and use no workspace.
unsafe impl<O: Subject> Supports<O> for Plain {
    unsafe fn prepare(&self, plan: &O::Plan) -> Result<Box<dyn Kernel<O>>> {
        Ok(Box::new(Loop::<O>(plan.clone())))
    }
}

struct Loop<O: Subject>(O::Plan);

// SAFETY: the loops are safe code on the slices of the buffers, and `workspace_size` is constant.
unsafe impl<O: Subject> Kernel<O> for Loop<O> {
    fn workspace_size(&self) -> usize {
        0
    }

    unsafe fn launch(
        &self,
        _: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        match stream.into_route() {
            Ok(route) => route.push(O::NAME, "the plain loop"),
            Err(stream) => {
                stream.check_host()?;
                O::plain(&self.0, buffers)?;
            }
        }
        Ok(())
    }
}

/// The index of the largest allowed value, the lowest index among equals.
fn largest(values: &[f32], allowed: impl Fn(usize) -> bool) -> usize {
    let mut best = None;
    for i in (0..values.len()).filter(|&i| allowed(i)) {
        if best.is_none_or(|b: usize| values[i] > values[b]) {
            best = Some(i);
        }
    }
    best.expect("something is allowed")
}
