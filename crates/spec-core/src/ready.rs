//! A descriptor together with its workspace.

use crate::{Buffer, Descriptor, Operator, Result, Stream, Supports};

/// A descriptor with a workspace of its own, for callers whose calls of the descriptor follow one
/// another.
#[derive(Debug)]
pub struct Ready<O: Operator> {
    descriptor: Descriptor<O>,
    workspace: Buffer<u8>,
}

impl<O: Operator> Ready<O> {
    /// Creates the operator on `backend`, and allocates its workspace there.
    ///
    /// # Errors
    /// As [`Descriptor::create`] and [`Descriptor::workspace`].
    pub fn new<B: Supports<O> + ?Sized>(
        backend: &B,
        operator: &O,
        tensors: &O::Tensors,
    ) -> Result<Self> {
        let descriptor = Descriptor::create(backend, operator, tensors)?;
        let workspace = descriptor.workspace(backend)?;
        Ok(Ready { descriptor, workspace })
    }

    /// The descriptor.
    pub fn descriptor(&self) -> &Descriptor<O> {
        &self.descriptor
    }

    /// As [`Descriptor::call`].
    ///
    /// # Errors
    /// As [`Descriptor::call_on`].
    pub fn call(&mut self, buffers: O::Buffers<'_>) -> Result<()> {
        self.call_on(buffers, Stream::default())
    }

    /// As [`Descriptor::call_on`].
    ///
    /// # Errors
    /// As [`Descriptor::call_on`].
    pub fn call_on(&mut self, buffers: O::Buffers<'_>, stream: Stream<'_>) -> Result<()> {
        self.descriptor.call_on(&mut self.workspace, buffers, stream)
    }
}
