"""The n-gram drafts in FastDeploy's own signatures, for a kernel to be replaced by a line.

    from spec_ops.fastdeploy import hybrid_mtp_ngram, ngram_match

The budgets of tokens come from the environment variables that FastDeploy reads.
"""

from __future__ import annotations

import os

from . import _functions as functions
from ._results import Array

__all__ = ["hybrid_mtp_ngram", "ngram_match"]


def ngram_match(
    input_ids: Array,
    input_ids_len: Array,
    token_ids_all: Array,
    prompt_lens: Array,
    step_idx: Array,
    draft_token_num: Array,
    draft_tokens: Array,
    seq_lens_this_time: Array,
    seq_lens_encoder: Array,
    seq_lens_decoder: Array,
    max_dec_len: Array,
    max_ngram_size: int,
    max_draft_tokens: int,
) -> None:
    """As FastDeploy's; `max_draft_tokens` bounds `draft_token_num` there, and no result here."""
    del max_draft_tokens
    functions.ngram_match(
        input_ids,
        input_ids_len,
        token_ids_all,
        prompt_lens,
        step_idx,
        draft_token_num,
        draft_tokens,
        seq_lens_this_time,
        seq_lens_encoder,
        seq_lens_decoder,
        max_dec_len,
        max_ngram_size=max_ngram_size,
        token_threshold=int(os.environ.get("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", 128)),
    )


def hybrid_mtp_ngram(
    input_ids: Array,
    input_ids_len: Array,
    pre_ids: Array,
    step_idx: Array,
    draft_token_num: Array,
    draft_tokens: Array,
    seq_lens_this_time: Array,
    seq_lens_decoder: Array,
    max_dec_len: Array,
    max_ngram_size: int,
    min_ngram_size: int,
    max_draft_tokens: int,
) -> None:
    """As FastDeploy's; no result depends on `draft_token_num`, there or here."""
    del draft_token_num
    functions.hybrid_mtp_ngram(
        input_ids,
        input_ids_len,
        pre_ids,
        step_idx,
        draft_tokens,
        seq_lens_this_time,
        seq_lens_decoder,
        max_dec_len,
        max_draft_tokens=max_draft_tokens,
        max_ngram_size=max_ngram_size,
        min_ngram_size=min_ngram_size,
        token_threshold=int(os.environ.get("SPEC_TOKENUM_THRESHOLD", 1024)),
    )
