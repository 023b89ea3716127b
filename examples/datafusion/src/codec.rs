//! Serialises this crate's operators as part of a plan.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::TaskContext;
use datafusion::logical_expr::ScalarUDF;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{
    DefaultPhysicalExtensionCodec, PhysicalExtensionCodec, PhysicalProtoConverterExtension,
};

use crate::{UniqueExec, WriteExec, range_place};

/// The first bytes of a serialised [`UniqueExec`]; whether it counts and the device's name follow.
const UNIQUE: &[u8] = b"spec.UniqueExec:2:";
/// The first bytes of a serialised [`WriteExec`]; the folder follows.
const WRITE: &[u8] = b"spec.WriteExec:1:";

/// Writes [`UniqueExec`] and [`WriteExec`] into a serialised plan and reads them back. Another codec,
/// by default DataFusion's, handles all other operators that DataFusion has no format for.
#[derive(Debug)]
pub struct Codec(Arc<dyn PhysicalExtensionCodec>);

impl Codec {
    /// A codec that leaves the operators of other crates to `others`.
    pub fn around(others: Arc<dyn PhysicalExtensionCodec>) -> Self {
        Codec(others)
    }
}

impl Default for Codec {
    fn default() -> Self {
        Codec(Arc::new(DefaultPhysicalExtensionCodec {}))
    }
}

impl PhysicalExtensionCodec for Codec {
    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        buf: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if let Some(unique) = node.downcast_ref::<UniqueExec>() {
            buf.extend_from_slice(UNIQUE);
            buf.push(u8::from(unique.has_counts()));
            buf.extend_from_slice(unique.device().as_bytes());
        } else if let Some(write) = node.downcast_ref::<WriteExec>() {
            buf.extend_from_slice(WRITE);
            buf.extend_from_slice(write.folder().as_bytes());
        } else {
            return self.0.try_encode(node, buf, converter);
        }
        Ok(())
    }

    fn try_decode(
        &self,
        buf: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if let (Some([counts, device @ ..]), [input]) = (buf.strip_prefix(UNIQUE), inputs) {
            let unique = UniqueExec::try_new(Arc::clone(input), *counts == 1, text(device)?)?;
            Ok(Arc::new(unique))
        } else if let (Some(folder), [input]) = (buf.strip_prefix(WRITE), inputs) {
            Ok(Arc::new(WriteExec::try_new(Arc::clone(input), text(folder)?)?))
        } else {
            self.0.try_decode(buf, inputs, context, converter)
        }
    }

    fn try_decode_udf(&self, name: &str, buf: &[u8]) -> Result<Arc<ScalarUDF>> {
        let own = range_place();
        if name == own.name() { Ok(own) } else { self.0.try_decode_udf(name, buf) }
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(_) => exec_err!("a plan of this example names a device or a folder that is not UTF-8"),
    }
}
