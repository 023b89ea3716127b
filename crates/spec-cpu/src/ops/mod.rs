//! The operators: one file each, under the operator's own name.

mod ngram;
mod texts;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( mod $module; )+ };
}

spec_core::for_each_operator!(modules);

use spec_core::{Kernel, Operator, Result, Route, Signature, Stream, ViewMut};

use crate::environment::{UsualDuringCall, make_workers_usual};

/// The function that computes an operator from the prepared data, the workspace and the arguments.
type Launch<O, P> = for<'w, 'b> fn(&P, ViewMut<'w>, <O as Signature>::Buffers<'b>) -> Result<()>;

/// The function that names the loops that a call with the prepared data runs.
type Loops<P> = fn(&P, &mut Route);

/// An operator that is prepared for a plan.
struct Ready<O: Operator, P> {
    prepared: P,
    workspace_size: usize,
    launch: Launch<O, P>,
    loops: Loops<P>,
}

/// The kernel that calls `launch` with a workspace of `workspace_size` bytes.
///
/// # Safety
/// `launch` keeps within the workspace and the buffers, whatever they contain.
unsafe fn kernel<O: Operator, P: Send + Sync + 'static>(
    prepared: P,
    workspace_size: usize,
    launch: Launch<O, P>,
    loops: Loops<P>,
) -> Box<dyn Kernel<O>> {
    make_workers_usual();
    Box::new(Ready { prepared, workspace_size, launch, loops })
}

// SAFETY: `launch` keeps within the workspace and the buffers: the caller of `kernel` promised it.
unsafe impl<O: Operator, P: Send + Sync> Kernel<O> for Ready<O, P> {
    fn workspace_size(&self) -> usize {
        self.workspace_size
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        buffers: O::Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let stream = match stream.into_route() {
            Ok(route) => {
                (self.loops)(&self.prepared, route);
                return Ok(());
            }
            Err(stream) => stream,
        };
        stream.check_host()?;
        let _environment = UsualDuringCall::begin();
        (self.launch)(&self.prepared, workspace, buffers)
    }
}

/// Calls a function that is generic over a float type with the type of a run-time dtype. The plan
/// has checked that the dtype is one of the three.
macro_rules! by_float {
    ($dtype:expr, $function:ident($($arg:expr),* $(,)?)) => {
        match $dtype {
            spec_core::DType::F16 => $function::<half::f16>($($arg),*),
            spec_core::DType::BF16 => $function::<half::bf16>($($arg),*),
            _ => $function::<f32>($($arg),*),
        }
    };
}

/// Calls a function that is generic over an integer type with the type of a run-time dtype. The
/// plan has checked that the dtype is one of the three that ids and indices may have.
macro_rules! by_int {
    ($dtype:expr, $function:ident$(::<$($before:ty),*>)?($($arg:expr),* $(,)?)) => {
        match $dtype {
            spec_core::DType::I64 => $function::<$($($before,)*)? i64>($($arg),*),
            spec_core::DType::U32 => $function::<$($($before,)*)? u32>($($arg),*),
            _ => $function::<$($($before,)*)? i32>($($arg),*),
        }
    };
}
pub(crate) use {by_float, by_int};
