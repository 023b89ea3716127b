// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "params/shared.cuh"

// Codes of scoring functions: the logistic function, softmax over the row, and the square root of
// softplus.
enum : u32 { SIGMOID = 0u };
enum : u32 { SOFTMAX = 1u };
enum : u32 { SQRT_SOFTPLUS = 2u };
// The largest number of threads of a block of the kernel for any shape.
enum : u32 { GENERAL_THREADS = 128u };
// Threads of a block of the quick, the grouped and the flat route.
enum : u32 { QUICK_THREADS = 256u };
enum : u32 { GROUPED_THREADS = 128u };
enum : u32 { FLAT_THREADS = 128u };
// Threads of a block of the kernel that counts the load.
enum : u32 { LOAD_THREADS = 1024u };

// The parameters of every kernel of `topk_router`.
struct Params {
    // Logits, [tokens, experts] of type `x_type`.
    Rows<const void> x;
    // The bias of each expert, [experts] of f32 or of `bias_type`, or null.
    const float* bias;
    // The weights of the picks, [tokens, topk + shared_experts].
    Rows<float> weights;
    // The places of the picks, [tokens, topk + shared_experts].
    Rows<i32> indices;
    // One word of flags, or null.
    u32* flags;
    // The number of tokens.
    u64 tokens;
    // The number of experts.
    u32 experts;
    // The number of groups of experts.
    u32 groups;
    // The number of groups that are kept.
    u32 topk_groups;
    // The number of picks of a token.
    u32 topk;
    // The scoring function: `SIGMOID`, `SOFTMAX` or `SQRT_SOFTPLUS`.
    u32 scoring;
    // 1 if a group's score is its largest choice, 0 if it is the sum of the two largest.
    u32 group_max;
    // 1 if experts of dropped groups are excluded, 0 if their choice is 0.0.
    u32 excluded;
    // 1 if the weights of a token are normalized to a sum of `scale`, else 0.
    u32 renormalize;
    // The factor of every weight.
    float scale;
    // The type of the logits: `F32`, `F16` or `BF16`.
    u32 x_type;
};
// In bytes, as the host has them.
static_assert(sizeof(Params) == 112);
static_assert(SPEC_OFFSET(Params, x.data) == 0);
static_assert(SPEC_OFFSET(Params, x.stride) == 8);
static_assert(SPEC_OFFSET(Params, bias) == 16);
static_assert(SPEC_OFFSET(Params, weights.data) == 24);
static_assert(SPEC_OFFSET(Params, weights.stride) == 32);
static_assert(SPEC_OFFSET(Params, indices.data) == 40);
static_assert(SPEC_OFFSET(Params, indices.stride) == 48);
static_assert(SPEC_OFFSET(Params, flags) == 56);
static_assert(SPEC_OFFSET(Params, tokens) == 64);
static_assert(SPEC_OFFSET(Params, experts) == 72);
static_assert(SPEC_OFFSET(Params, groups) == 76);
static_assert(SPEC_OFFSET(Params, topk_groups) == 80);
static_assert(SPEC_OFFSET(Params, topk) == 84);
static_assert(SPEC_OFFSET(Params, scoring) == 88);
static_assert(SPEC_OFFSET(Params, group_max) == 92);
static_assert(SPEC_OFFSET(Params, excluded) == 96);
static_assert(SPEC_OFFSET(Params, renormalize) == 100);
static_assert(SPEC_OFFSET(Params, scale) == 104);
static_assert(SPEC_OFFSET(Params, x_type) == 108);

// Additional parameters of the kernels with options. An absent option is null or 0.
struct Options {
    // The number of rows that are tokens, one number; null: all rows.
    const i32* num_tokens;
    // The places of each expert's replicas, [experts, max_replicas], or null.
    Rows<const i32> replicas;
    // The number of replicas of each expert, [experts].
    const i32* replica_counts;
    // The load: the number of picks of each place is added to it, [physical], or null.
    i32* load;
    // The type of the bias: `F32`, `F16` or `BF16`.
    u32 bias_type;
    // 1 if `indices` has 64 bits, 0 if it has 32.
    u32 wide_indices;
    // The number of columns of shared experts, after the picks.
    u32 shared_experts;
    // The weight of every shared expert.
    float shared_weight;
    // The number of places of experts; without replicas, the number of experts.
    u32 physical;
    // The number of columns of `replicas`.
    u32 max_replicas;
    // topk_router_general: 1 if experts are chosen by their logit, 0 by their score.
    u32 by_logit;
    // topk_router_general: the number of neighbouring experts in a lane's chunk.
    u32 chunk;
    // topk_router_general and topk_router_flat: words of shared memory for each warp.
    u32 words;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Options) == 80);
static_assert(SPEC_OFFSET(Options, num_tokens) == 0);
static_assert(SPEC_OFFSET(Options, replicas.data) == 8);
static_assert(SPEC_OFFSET(Options, replicas.stride) == 16);
static_assert(SPEC_OFFSET(Options, replica_counts) == 24);
static_assert(SPEC_OFFSET(Options, load) == 32);
static_assert(SPEC_OFFSET(Options, bias_type) == 40);
static_assert(SPEC_OFFSET(Options, wide_indices) == 44);
static_assert(SPEC_OFFSET(Options, shared_experts) == 48);
static_assert(SPEC_OFFSET(Options, shared_weight) == 52);
static_assert(SPEC_OFFSET(Options, physical) == 56);
static_assert(SPEC_OFFSET(Options, max_replicas) == 60);
static_assert(SPEC_OFFSET(Options, by_logit) == 64);
static_assert(SPEC_OFFSET(Options, chunk) == 68);
static_assert(SPEC_OFFSET(Options, words) == 72);
static_assert(SPEC_OFFSET(Options, reserved) == 76);

// The parameters of the kernels with options.
struct Extended {
    Params common;
    Options options;
};
// In bytes, as the host has them.
static_assert(sizeof(Extended) == 192);
static_assert(SPEC_OFFSET(Extended, common) == 0);
static_assert(SPEC_OFFSET(Extended, options) == 112);

// Additional parameters of the kernel for any shape.
struct Replay {
    // The given experts, [tokens, topk], or null.
    Rows<const i32> chosen;
    // The picked experts before `replicas` turns them into places, [tokens, topk + shared_experts],
    // or null.
    Rows<i32> logical;
    // The type of the weights: `F32`, `F16` or `BF16`.
    u32 weights_type;
    u32 reserved;
};
// In bytes, as the host has them.
static_assert(sizeof(Replay) == 40);
static_assert(SPEC_OFFSET(Replay, chosen.data) == 0);
static_assert(SPEC_OFFSET(Replay, chosen.stride) == 8);
static_assert(SPEC_OFFSET(Replay, logical.data) == 16);
static_assert(SPEC_OFFSET(Replay, logical.stride) == 24);
static_assert(SPEC_OFFSET(Replay, weights_type) == 32);
static_assert(SPEC_OFFSET(Replay, reserved) == 36);

// The parameters of the kernel for any shape.
struct Replayed {
    Extended extended;
    Replay replay;
};
// In bytes, as the host has them.
static_assert(sizeof(Replayed) == 232);
static_assert(SPEC_OFFSET(Replayed, extended) == 0);
static_assert(SPEC_OFFSET(Replayed, replay) == 192);
