//! A common interface of all operators, without the names of their arguments. An operator is
//! created from descriptors in the contract's order, and called with addresses in this order.

use spec::{
    Address, Argument, Descriptor, Handle, InOrder, Portable, Result, Signature, Stream, TensorDesc,
};

/// The largest number of arguments that an operator may have.
pub const MAX_ARGUMENTS: usize = 32;

/// An operator with its parameters.
pub trait Create: Send + Sync {
    /// The operator's name.
    fn name(&self) -> &'static str;

    /// The operator's arguments.
    fn arguments(&self) -> &'static [Argument];

    /// The outputs that are not given, as [`spec::sizes::outputs`] has them.
    fn outputs(
        &self,
        given: &[Option<TensorDesc>],
        extents: &[(&str, usize)],
    ) -> Vec<Option<TensorDesc>>;

    /// Creates the operator for these descriptors, in the order of the arguments.
    ///
    /// # Errors
    /// As [`Handle::create`].
    fn create(&self, handle: &Handle, descs: &[Option<TensorDesc>]) -> Result<Box<dyn Call>>;
}

/// An operator that was created for certain descriptors.
pub trait Call: Send + Sync {
    /// The bytes of workspace that a call needs.
    fn workspace_size(&self) -> usize;

    /// The kernels that a call runs, in words.
    ///
    /// # Errors
    /// As [`Descriptor::route`].
    fn route(&self) -> Result<String>;

    /// Enqueues a call.
    ///
    /// # Errors
    /// As [`Descriptor::call_at`].
    ///
    /// # Safety
    /// As for [`Descriptor::call_at`]; the addresses are in the order of the arguments.
    unsafe fn call(
        &self,
        workspace: Address,
        addresses: &[Option<Address>],
        stream: Stream<'_>,
    ) -> Result<()>;
}

impl<O: Portable> Create for O {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn arguments(&self) -> &'static [Argument] {
        const { assert!(O::ARGUMENTS.len() <= MAX_ARGUMENTS, "raise MAX_ARGUMENTS") };
        O::ARGUMENTS
    }

    fn outputs(
        &self,
        given: &[Option<TensorDesc>],
        extents: &[(&str, usize)],
    ) -> Vec<Option<TensorDesc>> {
        spec::sizes::outputs(self, given, extents)
    }

    fn create(&self, handle: &Handle, descs: &[Option<TensorDesc>]) -> Result<Box<dyn Call>> {
        let tensors = O::tensors_from(&mut InOrder::new(|at| descs[at]))?;
        Ok(Box::new(handle.create(self, &tensors)?))
    }
}

impl<O: Portable> Call for Descriptor<O> {
    fn workspace_size(&self) -> usize {
        self.workspace_size()
    }

    fn route(&self) -> Result<String> {
        Ok(self.route()?.to_string())
    }

    unsafe fn call(
        &self,
        workspace: Address,
        addresses: &[Option<Address>],
        stream: Stream<'_>,
    ) -> Result<()> {
        let addresses = <O as Signature>::addresses_from(&mut InOrder::new(|at| addresses[at]))?;
        // SAFETY: the caller promised what `call_at` needs.
        unsafe { self.call_at(workspace, addresses, stream) }
    }
}
