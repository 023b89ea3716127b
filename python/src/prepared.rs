//! An operator created for certain shapes, dtypes and a device, with the workspaces of its calls.

use std::sync::Arc;

use pyo3::prelude::*;
use spec::{Address, Device, Result, TensorDesc};

use crate::call::{Call, Create, MAX_ARGUMENTS};
use crate::contract::Contract;
use crate::device;
use crate::dlpack::Array;
use crate::library::{Arrays, Fresh};
use crate::workspace::{Keeps, Need, Workspaces};

/// Descriptors of an operator's arguments, in the contract's order; `None` for absent arguments.
pub type Descs = [Option<TensorDesc>; MAX_ARGUMENTS];

/// An operator that is ready to be called.
pub struct Prepared {
    call: Box<dyn Call>,
    /// The descriptors that the operator was created for.
    pub descs: Descs,
    /// For each argument, the output to make if the caller gives none.
    pub outputs: [Option<Fresh>; MAX_ARGUMENTS],
    need: Need,
    workspaces: Workspaces,
}

impl Prepared {
    /// Creates the operator for `descs` on `device`.
    ///
    /// # Errors
    /// As [`spec::Handle::create`].
    pub fn new(
        py: Python<'_>,
        operator: &dyn Create,
        device: Device,
        descs: Descs,
        outputs: [Option<Fresh>; MAX_ARGUMENTS],
    ) -> PyResult<Self> {
        let raise = |error| crate::error::raise(py, &error);
        let handle = device::open(device).map_err(raise)?;
        let count = operator.arguments().len();
        let call = operator.create(&handle, &descs[..count]).map_err(raise)?;
        let need = Need::new(py, call.workspace_size())?;
        Ok(Prepared { call, descs, outputs, need, workspaces: Workspaces::new(handle) })
    }

    /// The device that the operator was created for.
    pub fn device(&self) -> Device {
        self.workspaces.device()
    }

    /// Bytes that a call uses besides its arguments.
    pub fn workspace_size(&self) -> usize {
        self.need.bytes()
    }

    /// The kernels that a call runs, in words.
    ///
    /// # Errors
    /// As [`spec::Descriptor::route`].
    pub fn route(&self) -> Result<String> {
        self.call.route()
    }

    /// Enqueues a call on arrays that have the descriptors `descs`.
    ///
    /// # Safety
    /// The arrays are on the plan's device and valid for the shapes and strides of `descs`. All
    /// other work on the arrays is ordered against the stream of `lent`.
    pub unsafe fn run(
        &self,
        py: Python<'_>,
        contract: &Contract,
        lent: &Arrays<'_>,
        arrays: &[Option<Array>],
        keeps: Keeps,
    ) -> PyResult<()> {
        let mut addresses = [None; MAX_ARGUMENTS];
        for (address, array) in addresses.iter_mut().zip(arrays) {
            *address = array.map(|array| Address::from(array.address));
        }
        let addresses = &addresses[..arrays.len()];
        // SAFETY: the operator uses a workspace as the work of its call.
        let done = unsafe {
            self.workspaces.run(lent, &self.need, keeps, |workspace, on| {
                // SAFETY: the caller promised what `call` needs of the arrays, and `run` gives a
                // workspace of the size that this operator was created with.
                self.call.call(Address::from(workspace), addresses, on.stream())
            })
        };
        let done = done.map_err(|raised| contract.foreign(py, "no workspace", raised))?;
        done.map_err(|error| crate::error::raise(py, &error))
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared(on {})", self.device())
    }
}

/// A prepared operator, shared by the plans and calls that use it.
pub type Shared = Arc<Prepared>;
