// hybrid_mtp_ngram: extends the drafts of a multi-token-prediction head by
// n-gram matching. ngram.cuh has the search and the budget; here is what a
// request asks for and how the budget counts it: `have` tokens that are there
// already, and drafts behind them while there is room.
#include "ngram.cuh"

struct HybridMtpNgram {
    static INLINE bool waits(const Params& p, u32 index) { return p.decoder[index] > 0; }

    struct Ask {
        i32 have;
        i32 decoded;

        INLINE Ask(const Params& p, u32 index)
            : have(p.this_time[index]), decoded(p.decoder[index]) {}

        // The most that the request may add to the budget: the tokens that it has or may come to
        // have, a number that stays the same while drafts are added, and 1 where it decodes.
        INLINE u32 most(const Params& p) const {
            const i64 all = max(static_cast<i64>(have), static_cast<i64>(p.max_draft_tokens) + 1);
            return (have > 0 ? clamped(all, TOO_MANY) : 0) + (decoded > 0);
        }
    };

    static INLINE Request request(const Params& p, u32 index) {
        // All loads first, so that none waits for another.
        const i32 have = p.this_time[index];
        const i32 decoded = p.decoder[index];
        Request r = cut_lengths(p, index, 0);
        const i64 own = static_cast<i64>(p.max_draft_tokens) - have + 1;
        r.limit = draft_limit(p, index, own, r.step);
        r.slot = static_cast<u32>(max(have, 0));
        r.base = have;
        r.used = static_cast<u32>(max(have, 0));
        r.waits = decoded > 0;
        r.leaves = have > 0 && r.limit > 0;
        if (have <= 0) {
            r.limit = 0;
            r.bits = have < 0 ? BAD_LENGTHS : 0;
        }
        return r;
    }
};

#define DRAFTER(dtype, T)                                                       \
    SPEC_KERNEL_BLOCKS(hybrid_mtp_ngram_##dtype, (draft<T, HybridMtpNgram>), Params, THREADS, \
                       RESIDENT)

DRAFTER(i32, i32)
DRAFTER(i64, i64)
