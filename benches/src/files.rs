//! Arrays as files of numpy, which the scripts under `benches/peers/` read. The format is a line of
//! text before the elements' bytes: a crate for it would bring twenty more, for reading.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use spec_conformance::{Data, Tensor};

/// Writes `NAME.npy`. Numbers of f16 and bf16 are written as f32, because numpy lacks bf16.
pub(crate) fn write(folder: &Path, name: &str, tensor: &Tensor) -> Result<(), String> {
    let wide = match &tensor.data {
        Data::BF16(halves) => {
            Some(halves.iter().map(|half| half.to_f32()).collect::<Vec<_>>().into())
        }
        Data::F16(halves) => {
            Some(halves.iter().map(|half| half.to_f32()).collect::<Vec<_>>().into())
        }
        _ => None,
    };
    let data = wide.as_ref().unwrap_or(&tensor.data);
    let kind = match data {
        Data::F32(_) | Data::F16(_) | Data::BF16(_) => "f4",
        Data::I8(_) => "i1",
        Data::I32(_) => "i4",
        Data::I64(_) => "i8",
        Data::U8(_) => "u1",
        Data::U32(_) => "u4",
        Data::U64(_) => "u8",
    };
    let shape: String = tensor.shape.iter().map(|extent| format!("{extent}, ")).collect();
    let order = if cfg!(target_endian = "big") { '>' } else { '<' };
    let line =
        format!("{{'descr': '{order}{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    // The elements begin at a multiple of 64 bytes, behind a newline.
    let length = (10 + line.len() + 1).next_multiple_of(64) - 10;
    let header = format!("{line:<0$}\n", length - 1);
    let path = folder.join(format!("{name}.npy"));
    let failed = |error| format!("{}: {error}", path.display());
    let mut file = File::create(&path).map_err(failed)?;
    file.write_all(b"\x93NUMPY\x01\x00").map_err(failed)?;
    file.write_all(&(length as u16).to_le_bytes()).map_err(failed)?;
    file.write_all(header.as_bytes()).map_err(failed)?;
    file.write_all(data.bytes()).map_err(failed)
}
