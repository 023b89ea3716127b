// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
//!include bound

// Codes of scoring functions: the logistic function, softmax over the row, and the square root of
// softplus.
const SIGMOID = 0u;
const SOFTMAX = 1u;
const SQRT_SOFTPLUS = 2u;
// 32-bit words of workgroup memory for the keys of experts and groups of all teams.
const POOL = 3328u;
// Ranking groups takes a number of iterations that grows with the square of their number. Above
// this number of groups, the kept groups are therefore found from the bits of their keys.
const MANY_GROUPS = 256u;
// The number of columns of tokens that a workgroup of `place` handles.
const PLACED = 256u;

// What the shaders of `topk_router` take.
struct Params {
    // Where the first element of each region is: see `bound`.
    at: At,
    // Tokens of the window.
    tokens: u32,
    // Experts.
    experts: u32,
    // Logits from one row to the next.
    x_stride: u32,
    // Weights from one row to the next.
    weights_stride: u32,
    // Indices from one row to the next.
    indices_stride: u32,
    // 1 where `bias` is there, else 0.
    has_bias: u32,
    // The type of the bias: `F32`, `F16` or `BF16`.
    bias_type: u32,
    // 1 where `flags` is there, else 0.
    has_flags: u32,
    // 1 where experts are chosen by their logit, 0 by their score.
    by_logit: u32,
    // Groups of experts.
    groups: u32,
    // Experts of a group.
    group_size: u32,
    // Groups that are kept.
    topk_groups: u32,
    // 1 where a group's score is the sum of its two largest choices, 0 where it is the largest.
    top2_sum: u32,
    // Lanes that share a group, whose key is found from as many parts.
    parts: u32,
    // The key of an expert whose group is not kept.
    masked_key: u32,
    // Picks of a token.
    topk: u32,
    // 1 where the weights of a token add up to `scale`, else 0.
    renormalize: u32,
    // What every weight is multiplied by.
    scale: f32,
    // Words of memory of a team.
    team_words: u32,
    // Columns behind the picks.
    shared_experts: u32,
    // The weight in each of them.
    shared_weight: f32,
    // Places of experts; without replicas, experts. Indices below this are picks.
    physical: u32,
    // 1 where indices take two words, else 0.
    wide: u32,
    // Rows of the whole call, at most 2^31.
    all_tokens: u32,
    // Which of those is the first here, at most 2^31.
    first: u32,
    // The same modulo 2^32.
    first_wrapped: u32,
    // 1 where `num_tokens` is there, else 0.
    has_num_tokens: u32,
    // 1 where `replicas` is there, else 0.
    has_replicas: u32,
    // Replicas from one expert to the next.
    replicas_stride: u32,
    // Columns of `replicas`.
    max_replicas: u32,
    // 1 where `load` is there, else 0.
    has_load: u32,
    // The type of the weights: `F32`, `F16` or `BF16`.
    weights_type: u32,
    // Given experts from one row to the next.
    given_stride: u32,
    // 1 where `logical` is there, else 0.
    has_logical: u32,
    // Elements of `logical` from one row to the next.
    logical_stride: u32,
}
