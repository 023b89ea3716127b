//! Experts, positions and sets: `topk_router`, `moe_align`, `indexer_topk`, `deduplicate_topk`, `unique`.

use std::fmt::Write;

use spec::ops::{
    DeduplicateTopk, IndexerTopk, MoeAlign, Unique, deduplicate_topk, indexer_topk, moe_align,
    topk_router, unique,
};
use spec::{DType, TensorDesc};

use super::on_every_device;

#[test]
fn router() {
    on_every_device("topk_router", |handle| {
        // Eight experts in four groups; two groups are kept.
        let x = [
            [0.0f32, 0.0, 2.0, 1.0, 0.0, 0.0, 3.0, -3.0],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            [f32::NAN, 5.0, f32::NAN, f32::NAN, 0.0, 0.0, -1.0, f32::NEG_INFINITY],
            [f32::NAN; 8],
        ];
        let bias = [0.0f32, 0.0, 0.0, 0.0, 0.25, 0.0, 0.0, 0.0];
        let mut params = topk_router::preset::DEEPSEEK_V3.router();
        params.groups = 4;
        params.topk_groups = 2;
        params.topk = 3;
        params.scale = 1.0;
        let tensors = params
            .tensors(DType::F32, 4, 8, None)
            .bias(TensorDesc::new(DType::F32, [8]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let (x_in, bias) = (handle.upload(x.as_flattened())?, handle.upload(&bias)?);
        let (mut weights, mut indices) = (handle.allocate::<f32>(12)?, handle.allocate::<i32>(12)?);
        let mut flags = handle.upload(&[0u32])?;
        let buffers =
            topk_router::Buffers::new(x_in.view(), weights.view_mut(), indices.view_mut())
                .bias(bias.view())
                .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let (weights, indices) = (weights.to_vec()?, indices.to_vec()?);
        let mut text = String::new();
        for (token, row) in x.iter().enumerate() {
            write!(text, "{row:?} ->").expect("a string");
            for i in token * 3..token * 3 + 3 {
                write!(text, " {}: {:.4}", indices[i], weights[i]).expect("a string");
            }
            text.push('\n');
        }
        Ok(format!("{text}flags {}\n", flags.to_vec()?[0]))
    });
}

#[test]
fn deduplicate() {
    on_every_device("deduplicate_topk", |handle| {
        let indices = [[7, 3, 3, -1], [3, 9, 0, 7], [-1, -5, -1, -1], [-1, -1, -2, -1]];
        let params = DeduplicateTopk::new().mtp_step(2);
        let tensors = params.tensors(2, 4).counts(TensorDesc::new(DType::I32, [2]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(indices.as_flattened())?;
        let (mut out, mut counts) = (handle.allocate::<i32>(16)?, handle.allocate::<i32>(2)?);
        let buffers =
            deduplicate_topk::Buffers::new(input.view(), out.view_mut()).counts(counts.view_mut());
        op.call(&mut workspace, buffers)?;
        let (out, counts) = (out.to_vec()?, counts.to_vec()?);
        Ok(format!(
            "{:?} -> {:?}, {} distinct\n{:?} -> {:?}, {} distinct\n",
            &indices[..2],
            &out[..8],
            counts[0],
            &indices[2..],
            &out[8..],
            counts[1],
        ))
    });
}

#[test]
fn distinct() {
    on_every_device("unique", |handle| {
        let keys = [5i64, -1, 5, i64::MIN, 0, i64::MAX, -1, 5];
        let tensors = Unique::new()
            .tensors(DType::I64, 8)
            .counts(TensorDesc::new(DType::U64, [8]))
            .inverse(TensorDesc::new(DType::I32, [8]));
        let op = handle.create(&Unique::new(), &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(&keys)?;
        let (mut out, mut counts) = (handle.allocate::<i64>(8)?, handle.allocate::<u64>(8)?);
        let (mut count, mut inverse) = (handle.allocate::<u64>(1)?, handle.allocate::<i32>(8)?);
        let buffers = unique::Buffers::new(input.view(), out.view_mut(), count.view_mut())
            .counts(counts.view_mut())
            .inverse(inverse.view_mut());
        op.call(&mut workspace, buffers)?;
        let n = count.to_vec()?[0] as usize;
        let (distinct, counts) = (out.to_vec()?, counts.to_vec()?);
        let inverse = inverse.to_vec()?;
        Ok(format!("{keys:?}\n-> {:?}\n x {:?}\n<- {inverse:?}\n", &distinct[..n], &counts[..n]))
    });
}

#[test]
fn grouping() {
    on_every_device("moe_align", |handle| {
        // Four of six experts are local, and expert 5 is the first of them; 7 and -1 are no
        // experts.
        let ids = [[1, 5], [5, 0], [1, 3], [7, 5], [-1, 1]];
        let map = [1, 3, -1, -1, 2, 0];
        let params = MoeAlign::new(6, 2).local_experts(4);
        let tensors = params
            .tensors(DType::I32, 5, 2)
            .expert_map(TensorDesc::new(DType::I32, [6]))
            .inverse(TensorDesc::new(DType::I32, [10]))
            .sorted_tokens(TensorDesc::new(DType::I32, [14]))
            .block_limits(TensorDesc::new(DType::I32, [7]))
            .num_blocks(TensorDesc::new(DType::I32, [1]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let (topk_ids, map) = (handle.upload(ids.as_flattened())?, handle.upload(&map)?);
        let mut sorted = handle.allocate::<i32>(14)?;
        let mut blocks = handle.allocate::<i32>(7)?;
        let (mut counts, mut offsets) = (handle.allocate::<i32>(4)?, handle.allocate::<i32>(5)?);
        let mut padded = handle.allocate::<i32>(1)?;
        let mut inverse = handle.allocate::<i32>(10)?;
        let (mut tokens, mut limits) = (handle.allocate::<i32>(14)?, handle.allocate::<i32>(7)?);
        let (mut used, mut flags) = (handle.allocate::<i32>(1)?, handle.upload(&[0u32])?);
        let buffers = moe_align::Buffers::new(moe_align::Required {
            topk_ids: topk_ids.view(),
            sorted_ids: sorted.view_mut(),
            block_experts: blocks.view_mut(),
            counts: counts.view_mut(),
            offsets: offsets.view_mut(),
            num_padded: padded.view_mut(),
        })
        .expert_map(map.view())
        .inverse(inverse.view_mut())
        .sorted_tokens(tokens.view_mut())
        .block_limits(limits.view_mut())
        .num_blocks(used.view_mut())
        .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        Ok(format!(
            "{ids:?}\n-> sorted_ids {:?}\n   block_experts {:?}\n   counts {:?} offsets {:?} \
             num_padded {}\n   inverse {:?} flags {}\n   sorted_tokens {:?}\n   block_limits {:?} \
             num_blocks {}\n",
            sorted.to_vec()?,
            blocks.to_vec()?,
            counts.to_vec()?,
            offsets.to_vec()?,
            padded.to_vec()?[0],
            inverse.to_vec()?,
            flags.to_vec()?[0],
            tokens.to_vec()?,
            limits.to_vec()?,
            used.to_vec()?[0],
        ))
    });
}

#[test]
fn best() {
    on_every_device("indexer_topk", |handle| {
        let nan = f32::NAN;
        let scores = [
            [0.0f32, 0.5, -0.0, 0.5, 0.0, 2.0],
            [1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
            [nan, -1.0, nan, f32::NEG_INFINITY, -2.0, nan],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
        ];
        // Blocks of two positions: the second row and the last one lack a block.
        let blocks = [[7, 2, 5], [4, 0, -1], [0, 1, 2], [9, 8, 7], [6, -3, 0]];
        let params = IndexerTopk::new(4).block_size(2);
        let tensors = params
            .tensors(DType::F32, 5, 6)
            .lengths(TensorDesc::new(DType::I32, [5]))
            .starts(TensorDesc::new(DType::I32, [5]))
            .values(TensorDesc::new(DType::F32, [5, 4]))
            .block_table(TensorDesc::new(DType::I32, [5, 3]))
            .slots(TensorDesc::new(DType::I32, [5, 4]))
            .flags(TensorDesc::new(DType::U32, [1]));
        let op = handle.create(&params, &tensors)?;
        let mut workspace = op.workspace(handle)?;
        let input = handle.upload(scores.as_flattened())?;
        // The last row starts at its third score, and its length is beyond the row.
        let lengths = handle.upload(&[6i32, 6, 6, 3, 9])?;
        let starts = handle.upload(&[0i32, 0, 0, 1, 2])?;
        let table = handle.upload(blocks.as_flattened())?;
        let (mut out, mut flags) = (handle.allocate::<i32>(20)?, handle.upload(&[0u32])?);
        let (mut values, mut slots) = (handle.allocate::<f32>(20)?, handle.allocate::<i32>(20)?);
        let buffers = indexer_topk::Buffers::new(input.view(), out.view_mut())
            .lengths(lengths.view())
            .starts(starts.view())
            .values(values.view_mut())
            .block_table(table.view())
            .slots(slots.view_mut())
            .flags(flags.view_mut());
        op.call(&mut workspace, buffers)?;
        let (out, values, slots) = (out.to_vec()?, values.to_vec()?, slots.to_vec()?);
        let mut text = String::new();
        let outputs = out.chunks(4).zip(values.chunks(4)).zip(slots.chunks(4));
        for ((row, blocks), ((best, values), slots)) in scores.iter().zip(blocks).zip(outputs) {
            writeln!(text, "{row:?} -> {best:?} {values:?}").expect("a string");
            writeln!(text, "    blocks {blocks:?} -> {slots:?}").expect("a string");
        }
        Ok(format!("{text}flags {}\n", flags.to_vec()?[0]))
    });
}
