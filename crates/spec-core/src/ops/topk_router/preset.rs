//! The routers of published models, each with the model's number of experts, and whether it has a
//! correction bias. The numbers are those of each model's `config.json` on Hugging Face, in the
//! repository that the preset's documentation names.
//!
//! The router of each model renormalizes the weights of its picks to a sum of `scale`, except where
//! a preset says otherwise.
//!
//! ```
//! use spec::ops::topk_router::preset;
//! use spec::{DType, Operator};
//!
//! let model = preset::KIMI_K2;
//! let plan = model.router().plan(&model.tensors(DType::BF16, 16))?;
//! assert_eq!((plan.experts(), plan.bias), (384, Some(DType::F32)));
//! # Ok::<(), spec::Error>(())
//! ```

use super::{GroupScore, Masked, Scoring, Select, Tensors, TopkRouter};
use crate::DType;

/// A model's router.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    model: &'static str,
    experts: usize,
    has_bias: bool,
    router: TopkRouter,
}

impl Preset {
    /// The model's name.
    pub const fn model(&self) -> &'static str {
        self.model
    }

    /// The number of experts that the router picks from, without shared experts.
    pub const fn experts(&self) -> usize {
        self.experts
    }

    /// Whether the router has a correction bias.
    pub const fn has_bias(&self) -> bool {
        self.has_bias
    }

    /// The router's options, which a caller can adjust.
    pub const fn router(&self) -> TopkRouter {
        self.router
    }

    /// Packed descriptors for `tokens` rows of logits of the type `dtype` for the model's number
    /// of experts. With an f32 bias if the model has one, f32 weights and i32 indices, and no other
    /// optional argument.
    pub fn tensors(&self, dtype: DType, tokens: usize) -> Tensors {
        let bias = self.has_bias.then_some(DType::F32);
        self.router.tensors(dtype, tokens, self.experts, bias)
    }

    /// A router with sigmoid scores and a correction bias.
    const fn sigmoid(model: &'static str, experts: usize, topk: usize, scale: f32) -> Self {
        let router = TopkRouter::new(topk).scoring(Scoring::Sigmoid).scale(scale);
        Preset { model, experts, has_bias: true, router }
    }

    /// A router with softmax scores, without bias and groups.
    const fn softmax(model: &'static str, experts: usize, topk: usize) -> Self {
        Preset { model, experts, has_bias: false, router: TopkRouter::new(topk) }
    }

    /// The router of DeepSeek-V3: sigmoid scores, a bias, 4 of 8 groups.
    const fn deepseek_v3(model: &'static str) -> Self {
        let sigmoid = Preset::sigmoid(model, 256, 8, 2.5);
        let router = sigmoid.router.groups(8).topk_groups(4).masked(Masked::Zero);
        Preset { router, ..sigmoid }
    }

    /// The router of DeepSeek-V4: square roots of softplus as scores, a bias, no groups.
    const fn deepseek_v4(model: &'static str, experts: usize, scale: f32) -> Self {
        let sigmoid = Preset::sigmoid(model, experts, 6, scale);
        let router = sigmoid.router.scoring(Scoring::SqrtSoftplus);
        Preset { router, ..sigmoid }
    }

    /// The router of gpt-oss: picks by the logit, with softmax over the picked logits as weights.
    /// This equals softmax over all logits, renormalized.
    const fn gpt_oss(model: &'static str, experts: usize) -> Self {
        let softmax = Preset::softmax(model, experts, 4);
        let router = softmax.router.select(Select::Logit);
        Preset { router, ..softmax }
    }

    /// The router of Llama 4: picks one expert by the logit, with the sigmoid as its weight.
    const fn llama_4(model: &'static str, experts: usize) -> Self {
        let router =
            TopkRouter::new(1).scoring(Scoring::Sigmoid).select(Select::Logit).renormalize(false);
        Preset { model, experts, has_bias: false, router }
    }
}

/// DeepSeek-V2 (`deepseek-ai/DeepSeek-V2`): 160 experts, softmax, the 3 best of 8 groups
/// by their largest expert, top 6, scale 16, not renormalized.
pub const DEEPSEEK_V2: Preset = Preset {
    model: "DeepSeek-V2",
    experts: 160,
    has_bias: false,
    router: TopkRouter::new(6)
        .groups(8)
        .topk_groups(3)
        .group_score(GroupScore::Max)
        .renormalize(false)
        .scale(16.0),
};

/// DeepSeek-V3 and R1 (`deepseek-ai/DeepSeek-V3`): 256 experts, sigmoid, a bias
/// (`noaux_tc`), 4 of 8 groups, top 8, renormalized, scale 2.5. The choices of experts in other
/// groups become 0 ([`Masked::Zero`]), as in Hugging Face's code. For an engine that excludes these
/// experts, take `DEEPSEEK_V3.router().masked(Masked::Excluded)`.
pub const DEEPSEEK_V3: Preset = Preset::deepseek_v3("DeepSeek-V3");

/// DeepSeek-V3.2 (`deepseek-ai/DeepSeek-V3.2`): routes as [`DEEPSEEK_V3`] does.
pub const DEEPSEEK_V3_2: Preset = Preset::deepseek_v3("DeepSeek-V3.2");

/// DeepSeek-V4-Pro (`deepseek-ai/DeepSeek-V4-Pro`): 384 experts, `sqrtsoftplus`, a bias,
/// no groups, top 6, scale 2.5. Its first three layers route by a table of token ids
/// instead: pass the table's rows as the argument `chosen`.
pub const DEEPSEEK_V4_PRO: Preset = Preset::deepseek_v4("DeepSeek-V4-Pro", 384, 2.5);

/// DeepSeek-V4-Flash (`deepseek-ai/DeepSeek-V4-Flash`): 256 experts, scale 1.5, otherwise
/// as [`DEEPSEEK_V4_PRO`].
pub const DEEPSEEK_V4_FLASH: Preset = Preset::deepseek_v4("DeepSeek-V4-Flash", 256, 1.5);

/// Kimi K2 (`moonshotai/Kimi-K2-Instruct`): 384 experts, sigmoid, a bias, one group,
/// top 8, scale 2.827.
pub const KIMI_K2: Preset = Preset::sigmoid("Kimi K2", 384, 8, 2.827);

/// GLM-4.5 (`zai-org/GLM-4.5`): 160 experts, sigmoid, a bias, one group, top 8,
/// scale 2.5.
pub const GLM_4_5: Preset = Preset::sigmoid("GLM-4.5", 160, 8, 2.5);

/// GLM-4.5-Air (`zai-org/GLM-4.5-Air`): 128 experts, scale 1, otherwise as [`GLM_4_5`].
pub const GLM_4_5_AIR: Preset = Preset::sigmoid("GLM-4.5-Air", 128, 8, 1.0);

/// MiniMax-M2 (`MiniMaxAI/MiniMax-M2`): 256 experts, sigmoid, a bias
/// (`use_routing_bias`), one group, top 8.
pub const MINIMAX_M2: Preset = Preset::sigmoid("MiniMax-M2", 256, 8, 1.0);

/// Qwen3-MoE (`Qwen/Qwen3-235B-A22B`, `Qwen/Qwen3-30B-A3B`): 128 experts, softmax,
/// top 8, renormalized.
pub const QWEN3: Preset = Preset::softmax("Qwen3-MoE", 128, 8);

/// Qwen3-Next (`Qwen/Qwen3-Next-80B-A3B-Instruct`): 512 experts, softmax, top 10,
/// renormalized. Its shared expert has a gate of its own, so the preset has no column for it.
pub const QWEN3_NEXT: Preset = Preset::softmax("Qwen3-Next", 512, 10);

/// Mixtral (`mistralai/Mixtral-8x7B-v0.1`): 8 experts, softmax, top 2.
pub const MIXTRAL: Preset = Preset::softmax("Mixtral", 8, 2);

/// gpt-oss-120b (`openai/gpt-oss-120b`): 128 experts, the 4 largest logits, softmax over
/// those four. Its router's linear layer has a bias, which is part of the logits.
pub const GPT_OSS_120B: Preset = Preset::gpt_oss("gpt-oss-120b", 128);

/// gpt-oss-20b (`openai/gpt-oss-20b`): 32 experts, otherwise as [`GPT_OSS_120B`].
pub const GPT_OSS_20B: Preset = Preset::gpt_oss("gpt-oss-20b", 32);

/// Llama 4 Scout (`meta-llama/Llama-4-Scout-17B-16E`): 16 experts, the largest logit,
/// weighted by its sigmoid.
pub const LLAMA_4_SCOUT: Preset = Preset::llama_4("Llama 4 Scout", 16);

/// Llama 4 Maverick (`meta-llama/Llama-4-Maverick-17B-128E`): 128 experts, otherwise as
/// [`LLAMA_4_SCOUT`].
pub const LLAMA_4_MAVERICK: Preset = Preset::llama_4("Llama 4 Maverick", 128);

/// All presets of this module.
pub const ALL: &[Preset] = &[
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    DEEPSEEK_V3_2,
    DEEPSEEK_V4_PRO,
    DEEPSEEK_V4_FLASH,
    KIMI_K2,
    GLM_4_5,
    GLM_4_5_AIR,
    MINIMAX_M2,
    QWEN3,
    QWEN3_NEXT,
    MIXTRAL,
    GPT_OSS_120B,
    GPT_OSS_20B,
    LLAMA_4_SCOUT,
    LLAMA_4_MAVERICK,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operator;

    #[test]
    fn every_preset_is_a_good_call() {
        for preset in ALL {
            for dtype in [DType::F32, DType::BF16] {
                let plan = preset.router().plan(&preset.tensors(dtype, 3));
                let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", preset.model()));
                assert_eq!(plan.experts(), preset.experts(), "{}", preset.model());
                assert_eq!(plan.bias.is_some(), preset.has_bias(), "{}", preset.model());
            }
        }
    }
}
