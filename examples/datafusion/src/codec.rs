//! Serialises [`UniqueExec`] as part of a plan.

use std::sync::Arc;

use datafusion::common::{Result, exec_err, not_impl_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};

use crate::UniqueExec;

/// The first bytes of a serialised [`UniqueExec`]; the device's name follows.
const MARK: &[u8] = b"spec.UniqueExec:1:";

/// Writes [`UniqueExec`] into a serialised plan and reads it back.
///
/// All other operators of the plan are DataFusion's own and need no codec.
#[derive(Debug)]
pub struct UniqueCodec;

impl PhysicalExtensionCodec for UniqueCodec {
    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let Some(unique) = node.downcast_ref::<UniqueExec>() else {
            return not_impl_err!("UniqueCodec writes UniqueExec, not {}", node.name());
        };
        buf.extend_from_slice(MARK);
        buf.extend_from_slice(unique.device().as_bytes());
        Ok(())
    }

    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let device = buf.strip_prefix(MARK).and_then(|name| std::str::from_utf8(name).ok());
        match (device, inputs) {
            (Some(device), [input]) => {
                Ok(Arc::new(UniqueExec::try_new(Arc::clone(input), device)?))
            }
            _ => exec_err!("not a UniqueExec of this version of the example"),
        }
    }
}
