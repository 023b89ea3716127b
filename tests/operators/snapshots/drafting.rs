//! The operators that draft tokens.

use std::fmt::Write;

use spec::ops::prompt_lookup::Occurrence;
use spec::ops::{
    HybridMtpNgram, NgramMatch, PromptLookup, hybrid_mtp_ngram, ngram_match, prompt_lookup,
};
use spec::{DType, TensorDesc};

use super::on_every_device;

const PROMPT: [[i64; 8]; 2] = [[1, 2, 3, 4, 5, 6, 7, 8], [9, 9, 9, 9, 9, 9, 9, 9]];
const GENERATED: [[i64; 6]; 2] = [[0, 0, 2, 3, 0, 0], [4, 5, 4, 5, 4, 0]];

#[test]
fn ngram() {
    on_every_device("ngram_match", |handle| {
        let mut text = String::new();
        for token_threshold in [100, 6, 5, 3] {
            let params = NgramMatch::new().max_ngram_size(2).token_threshold(token_threshold);
            let op = handle.create(&params, &params.tensors(2, 8, 6, 5))?;
            let mut workspace = op.workspace(handle)?;
            let prompt = handle.upload(PROMPT.as_flattened())?;
            let generated = handle.upload(GENERATED.as_flattened())?;
            let (lens, starts) = (handle.upload(&[8i64, 8])?, handle.upload(&[0i64, 0])?);
            let (steps, max_dec) = (handle.upload(&[3i64, 4])?, handle.upload(&[100i64, 100])?);
            let (number, encoder) = (handle.upload(&[3i32, 3])?, handle.upload(&[0i32, 0])?);
            let decoder = handle.upload(&[1i32, 1])?;
            let mut drafts = handle.upload(&[-1i64; 10])?;
            let mut this_time = handle.upload(&[0i32, 0])?;
            let buffers = ngram_match::Buffers::new(ngram_match::Required {
                input_ids: prompt.view(),
                input_ids_len: lens.view(),
                token_ids_all: generated.view(),
                prompt_lens: starts.view(),
                step_idx: steps.view(),
                draft_token_num: number.view(),
                draft_tokens: drafts.view_mut(),
                seq_lens_this_time: this_time.view_mut(),
                seq_lens_encoder: encoder.view(),
                seq_lens_decoder: decoder.view(),
                max_dec_len: max_dec.view(),
            });
            op.call(&mut workspace, buffers)?;
            let (drafts, this_time) = (drafts.to_vec()?, this_time.to_vec()?);
            let rows: Vec<_> = drafts.chunks(5).collect();
            writeln!(text, "threshold {token_threshold}: {rows:?} this time {this_time:?}")
                .expect("a string");
        }
        Ok(text)
    });
}

#[test]
fn hybrid() {
    on_every_device("hybrid_mtp_ngram", |handle| {
        let params =
            HybridMtpNgram::new(4).max_ngram_size(2).min_ngram_size(2).token_threshold(100);
        let op = handle.create(&params, &params.tensors(2, 8, 6, 6))?;
        let mut workspace = op.workspace(handle)?;
        let prompt = handle.upload(PROMPT.as_flattened())?;
        let generated = handle.upload(GENERATED.as_flattened())?;
        let (lens, steps) = (handle.upload(&[8i64, 8])?, handle.upload(&[3i64, 4])?);
        let max_dec = handle.upload(&[100i64, 100])?;
        let decoder = handle.upload(&[1i32, 1])?;
        let mut drafts = handle.upload(&[50i64, 51, -1, -1, -1, -1, 60, 61, 62, -1, -1, -1])?;
        let mut this_time = handle.upload(&[2i32, 3])?;
        let buffers = hybrid_mtp_ngram::Buffers::new(hybrid_mtp_ngram::Required {
            input_ids: prompt.view(),
            input_ids_len: lens.view(),
            pre_ids: generated.view(),
            step_idx: steps.view(),
            draft_tokens: drafts.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec.view(),
        });
        op.call(&mut workspace, buffers)?;
        let drafts = drafts.to_vec()?;
        let rows: Vec<_> = drafts.chunks(6).collect();
        Ok(format!("{rows:?} this time {:?}\n", this_time.to_vec()?))
    });
}

#[test]
fn lookup() {
    on_every_device("prompt_lookup", |handle| {
        // Row by row: the pattern 2 3; the pattern 9 9, whose match overlaps the end; no
        // match; a length beyond the row.
        let tokens = [
            [1, 2, 3, 4, 2, 3, 5, 6, 2, 3],
            [9, 9, 9, 9, 9, 9, 0, 0, 0, 0],
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 0],
            [7, 1, 8, 7, 2, 8, 7, 3, 8, 7],
        ];
        let lengths = [10, 6, 10, 11];
        let mut text = String::new();
        for occurrence in [Occurrence::First, Occurrence::Last] {
            let params =
                PromptLookup::new().min_ngram(1).max_ngram(2).max_draft(3).occurrence(occurrence);
            let tensors = params.tensors(DType::I32, 4, 10).flags(TensorDesc::new(DType::U32, [1]));
            let op = handle.create(&params, &tensors)?;
            let mut workspace = op.workspace(handle)?;
            let (input, given) = (handle.upload(tokens.as_flattened())?, handle.upload(&lengths)?);
            let (mut drafts, mut counts) =
                (handle.allocate::<i32>(12)?, handle.allocate::<i32>(4)?);
            let mut flags = handle.upload(&[0u32])?;
            let buffers = prompt_lookup::Buffers::new(
                input.view(),
                given.view(),
                drafts.view_mut(),
                counts.view_mut(),
            )
            .flags(flags.view_mut());
            op.call(&mut workspace, buffers)?;
            let (drafts, counts) = (drafts.to_vec()?, counts.to_vec()?);
            writeln!(text, "{occurrence:?}:").expect("a string");
            for (row, (drafts, count)) in tokens.iter().zip(drafts.chunks(3).zip(counts)) {
                writeln!(text, "{row:?} -> {drafts:?}, {count} drafts").expect("a string");
            }
            writeln!(text, "flags {}", flags.to_vec()?[0]).expect("a string");
        }
        Ok(text)
    });
}

/// Requests whose texts lie in slots.
#[test]
fn lookup_in_slots() {
    on_every_device("prompt_lookup_in_slots", |handle| {
        let texts = [[1, 2, 3, 4, 2, 3, 0, 0], [9, 9, 9, 9, 9, 9, 9, 9], [5, 6, 7, 8, 0, 0, 0, 0]];
        let (requests, max_drafts) = ([2, 0, -1, 1, 0, 3], [3, 3, 3, 2, 0, 3]);
        let mut text = String::new();
        for pad_with_last in [false, true] {
            let params = PromptLookup::new().min_ngram(1).max_draft(3).pad_with_last(pad_with_last);
            let per_request = TensorDesc::new(DType::I32, [6]);
            let mut tensors = params.tensors(DType::I32, 3, 8);
            tensors.drafts = TensorDesc::new(DType::I64, [6, 3]);
            tensors.counts = per_request;
            let tensors = tensors
                .requests(per_request)
                .max_drafts(per_request)
                .flags(TensorDesc::new(DType::U32, [1]));
            let op = handle.create(&params, &tensors)?;
            let mut workspace = op.workspace(handle)?;
            let tokens = handle.upload(texts.as_flattened())?;
            let lengths = handle.upload(&[6, 8, 4])?;
            let (rows, limits) = (handle.upload(&requests)?, handle.upload(&max_drafts)?);
            let (mut drafts, mut counts) =
                (handle.allocate::<i64>(18)?, handle.allocate::<i32>(6)?);
            let mut flags = handle.upload(&[0u32])?;
            let buffers = prompt_lookup::Buffers::new(&tokens, &lengths, &mut drafts, &mut counts)
                .requests(&rows)
                .max_drafts(&limits)
                .flags(&mut flags);
            op.call(&mut workspace, buffers)?;
            let (drafts, counts) = (drafts.to_vec()?, counts.to_vec()?);
            writeln!(text, "padded with the last token: {pad_with_last}").expect("a string");
            let given = requests.iter().zip(max_drafts);
            for ((slot, limit), (drafts, count)) in given.zip(drafts.chunks(3).zip(counts)) {
                writeln!(text, "slot {slot}, up to {limit} -> {drafts:?}, {count} drafts")
                    .expect("a string");
            }
            writeln!(text, "flags {}", flags.to_vec()?[0]).expect("a string");
        }
        Ok(text)
    });
}
