//!include params/moe_align_layout
// moe_align: the token of each place, and how far each block is filled. Runs after the dispatches of
// moe_align.wgsl, on their results, and only where one of these outputs is asked for. A thread a
// place of `sorted_ids`, and the first threads a block each.

const NONE = 0xffffffffu;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sorted_ids: array<u32>;
@group(0) @binding(2) var<storage, read> block_experts: array<u32>;
@group(0) @binding(3) var<storage, read> counts: array<u32>;
@group(0) @binding(4) var<storage, read> offsets: array<u32>;
@group(0) @binding(5) var<storage, read> num_padded: array<u32>;
@group(0) @binding(6) var<storage, read_write> sorted_tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> block_limits: array<u32>;
@group(0) @binding(8) var<storage, read_write> num_blocks: array<u32>;

@compute @workgroup_size(THREADS)
fn lay_out(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = group_index(group, groups) * THREADS + thread;
    if at == 0u && params.has_num_blocks != 0u {
        num_blocks[params.at.b8] = num_padded[params.at.b5] / params.block_size;
    }
    if at < params.capacity && params.has_tokens != 0u {
        let pick = sorted_ids[params.at.b1 + at];
        sorted_tokens[params.at.b6 + at] = select(NONE, pick / params.k, pick < params.picks);
    }
    if at < params.blocks && params.has_limits != 0u {
        let expert = block_experts[params.at.b2 + at];
        var limit = 0u;
        if expert < params.locals {
            let filled = offsets[params.at.b4 + expert] + counts[params.at.b3 + expert];
            limit = min((at + 1u) * params.block_size, filled);
        }
        block_limits[params.at.b7 + at] = limit;
    }
}
