//! Functions of InfiniOp that this library does not implement. Programs look the functions up when
//! they start, so the symbols exist; each function writes its name to standard error and returns
//! status 2, "not implemented".
//!
//! The names are those that InfiniCore's Python package of tests looks up.

use std::io::Write as _;

use crate::Code;

/// Says which function is not here, and why; status 2.
#[cold]
fn refused(name: &str) -> Code {
    // Nobody to tell is no reason to fail: standard error may be closed.
    let _ = writeln!(
        std::io::stderr(),
        "{name} is not implemented: this libinfiniop is spec's, which has topkrouter and \
         topksoftmax, and stands in for InfiniOp's in tests of these two operators"
    );
    spec::Status::NotImplemented.code()
}

/// Exports `infiniop` + name for each function that is listed, and the four functions of each
/// operator that is listed. The functions declare no parameters: in C's calling conventions the
/// caller removes the arguments from the stack, so a call with arguments is safe.
macro_rules! missing {
    (operators: $($operator:literal)+; functions: $($function:literal)+;) => {
        $(
            missing!(@ concat!("infiniopCreate", $operator, "Descriptor"));
            missing!(@ concat!("infiniopGet", $operator, "WorkspaceSize"));
            missing!(@ concat!("infiniop", $operator));
            missing!(@ concat!("infiniopDestroy", $operator, "Descriptor"));
        )+
        $( missing!(@ concat!("infiniop", $function)); )+

        /// The names of the exported functions, for the test that looks them up.
        pub const NAMES: &[&str] = &[
            $(
                concat!("infiniopCreate", $operator, "Descriptor"),
                concat!("infiniopGet", $operator, "WorkspaceSize"),
                concat!("infiniop", $operator),
                concat!("infiniopDestroy", $operator, "Descriptor"),
            )+
            $( concat!("infiniop", $function), )+
        ];
    };
    (@ $name:expr) => {
        const _: () = {
            #[unsafe(export_name = $name)]
            extern "C" fn not_implemented() -> Code {
                refused($name)
            }
        };
    };
}

missing! {
    operators:
        "Add" "AddRMSNorm" "Addcmul" "Asum" "Atanh" "Attention" "AvgPool1d" "AvgPool3d"
        "AwqMarlinGemm" "Axpy" "BCEWithLogits" "BlasAmax" "BlasAmin" "BlasCopy" "BlasDot"
        "CausalSoftmax" "Cdist" "ChunkGatedDeltaRule" "Clip" "Conv" "CrossEntropy" "DeepseekMoe"
        "DequantizeAWQ" "DequantizeGPTQ" "Dot" "Equal" "Erf" "Erfc" "Erfinv" "FusedFFN"
        "FusedGatedDeltaNetGating" "FusedMoe" "Gelu" "GeluTanh" "Gemm" "GptqMarlinGemm"
        "GptqMarlinRepack" "GptqQyblasGemm" "HardSwish" "HardTanh" "Histc" "I8Gemm" "KVCaching"
        "LPNorm" "LayerNorm" "Log10" "Log1p" "LogSoftmax" "MRoPE" "MatrixPower" "Mul"
        "Mxfp4Dequantize" "Nrm2" "NsaCompressPagedCache" "NsaPagedAttention" "Ones"
        "PagedAttention" "PagedAttentionPrefill" "PagedCaching" "PerChannelQuantI8"
        "PerTensorDequantI8" "PerTensorQuantI8" "PixelShuffle" "QuickGelu" "RMSNorm"
        "RandomSample" "Reciprocal" "RecurrentGatedDeltaRule" "RoPE" "Rot" "Rotg" "Rotm" "Rotmg"
        "Scal" "Sigmoid" "Silu" "SiluAndMul" "Softmax" "Sub" "Swap" "SwiGLU" "Tanh" "Zeros";
    // Functions of operators whose other functions InfiniCore's tests do not look up.
    functions:
        "AwqMarlinRepack" "CreateAwqMarlinRepackDescriptor" "CreateRearrangeDescriptor"
        "CreateReluDescriptor" "CreateSoftplusDescriptor" "DeepseekMoeWithDevicePtrs"
        "DestroyRearrangeDescriptor" "DestroyReluDescriptor" "DestroySoftplusDescriptor"
        "GetAwqMarlinRepackWorkspaceSize" "Rearrange" "Relu" "Softplus";
}
