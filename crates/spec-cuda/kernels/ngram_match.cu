// ngram_match: finds an earlier occurrence of the last tokens of a text, and drafts the tokens that
// followed that occurrence. ngram.cuh has the search and the budget, with the mapping of warps to
// requests and the bytes. This file defines how many drafts a request may get, and how many tokens
// the budget counts for it: the request's own tokens while it is prefilling (`encoder` above 0),
// none while it is idle, and one token plus its drafts while it is decoding.
#include "ngram.cuh"

struct NgramMatch {
    static INLINE bool reserves(const Params& p, u32 index) {
        return p.encoder[index] > 0 || p.decoder[index] > 0;
    }

    struct BudgetDemand {
        i32 encoded;
        i32 decoded;
        i32 now;
        i32 drafts;

        INLINE BudgetDemand(const Params& p, u32 index)
            : encoded(p.encoder[index]), decoded(p.decoder[index]), now(p.this_time[index]),
              drafts(p.draft_token_num[index]) {}

        // The largest number of tokens that the request may add to the budget. A decoding request
        // adds one token and its drafts. A prefilling request adds its own `seq_lens_this_time` and
        // 1: the budget reserves one token for it, and never releases that token.
        INLINE u32 max_added(const Params&) const {
            const u32 tokens = clamped(encoded > 0 ? now : drafts, SUM_LIMIT);
            return encoded > 0 || decoded > 0 ? tokens + 1 : 0;
        }
    };

    static INLINE Request request(const Params& p, u32 index) {
        // All loads come first, so that none waits for another.
        const i32 encoded = p.encoder[index];
        const i32 decoded = p.decoder[index];
        const i32 now = p.this_time[index];
        Request r = cut_lengths(p, index, p.starts[index]);
        r.limit = draft_limit(p, index, p.draft_token_num[index], r.step);
        r.slot = 1;
        const bool prefills = encoded > 0;
        const bool decodes = !prefills && decoded > 0;
        r.base = prefills ? now : decodes;
        r.used = static_cast<u32>(max(r.base, 0));
        r.reserves = prefills || decodes;
        r.releases = decodes;
        if (!decodes) {
            // No length of the request is used, so none of them is bad.
            r.limit = 0;
            r.bits = 0;
        }
        if ((encoded | decoded | now) < 0) r.bits |= BAD_LENGTHS;
        return r;
    }
};

#define MATCHER(dtype, T)                                                       \
    SPEC_KERNEL_BLOCKS(ngram_match_##dtype, (draft<T, NgramMatch>), Params, THREADS, \
                       RESIDENT)

MATCHER(i32, i32)
MATCHER(i64, i64)
