// hybrid_mtp_ngram: adds drafts from n-gram matching to the drafts of a multi-token-prediction
// head. ngram.cuh has the search and the budget, with the mapping of warps to requests and the
// bytes. This file defines how many drafts a request may get, and how many tokens the budget counts
// for it: the request already has `have` tokens in this step, and gets drafts after them as long as
// there is room.
#include "ngram.cuh"

struct HybridMtpNgram {
    static INLINE bool reserves(const Params& p, u32 index) { return p.decoder[index] > 0; }

    struct BudgetDemand {
        i32 have;
        i32 decoded;

        INLINE BudgetDemand(const Params& p, u32 index)
            : have(p.this_time[index]), decoded(p.decoder[index]) {}

        // The largest number of tokens that the request may add to the budget: the tokens that it
        // has or may get, and 1 if it decodes. Another block may already have written the request's
        // drafts, which changes `have` but not this number, so every block computes the same sum.
        INLINE u32 max_added(const Params& p) const {
            const i64 all = max(static_cast<i64>(have), static_cast<i64>(p.max_draft_tokens) + 1);
            return (have > 0 ? clamped(all, SUM_LIMIT) : 0) + (decoded > 0);
        }
    };

    static INLINE Request request(const Params& p, u32 index) {
        // All loads come first, so that none waits for another.
        const i32 have = p.this_time[index];
        const i32 decoded = p.decoder[index];
        Request r = cut_lengths(p, index, 0);
        const i64 own = static_cast<i64>(p.max_draft_tokens) - have + 1;
        r.limit = draft_limit(p, index, own, r.step);
        r.slot = static_cast<u32>(max(have, 0));
        r.base = have;
        r.used = static_cast<u32>(max(have, 0));
        r.reserves = decoded > 0;
        r.releases = have > 0 && r.limit > 0;
        if (have <= 0) {
            // No length of the request is used, so none of them is bad.
            r.limit = 0;
            r.bits = 0;
        }
        if ((have | decoded) < 0) r.bits |= BAD_LENGTHS;
        return r;
    }
};

#define DRAFTER(dtype, T)                                                       \
    SPEC_KERNEL_BLOCKS(hybrid_mtp_ngram_##dtype, (draft<T, HybridMtpNgram>), Params, THREADS, \
                       RESIDENT)

DRAFTER(i32, i32)
DRAFTER(i64, i64)
