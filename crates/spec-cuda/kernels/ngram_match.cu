// ngram_match: drafts tokens by copying what followed an earlier occurrence of
// the last ones. ngram.cuh has the search and the budget; here is what a request
// asks for and how the budget counts it: an encoding request keeps its tokens,
// an idle one has none, a decoding one has one and its drafts.
#include "ngram.cuh"

struct NgramMatch {
    static INLINE bool waits(const Params& p, u32 index) {
        return p.encoder[index] > 0 || p.decoder[index] > 0;
    }

    struct Ask {
        i32 encoded;
        i32 decoded;
        i32 now;
        i32 drafts;

        INLINE Ask(const Params& p, u32 index)
            : encoded(p.encoder[index]), decoded(p.decoder[index]), now(p.this_time[index]),
              drafts(p.draft_token_num[index]) {}

        // The most that the request may add to the budget. A prefilling request adds its own
        // `seq_lens_this_time` and 1, since the turn that it is counted for never comes; a decoding
        // request adds one token and its drafts.
        INLINE u32 most(const Params&) const {
            const u32 tokens = clamped(encoded > 0 ? now : drafts, TOO_MANY);
            return encoded > 0 || decoded > 0 ? tokens + 1 : 0;
        }
    };

    static INLINE Request request(const Params& p, u32 index) {
        // All loads first, so that none waits for another.
        const i32 encoded = p.encoder[index];
        const i32 decoded = p.decoder[index];
        const i32 now = p.this_time[index];
        Request r = cut_lengths(p, index, p.starts[index]);
        r.limit = draft_limit(p, index, p.draft_token_num[index], r.step);
        r.slot = 1;
        const bool encodes = encoded > 0;
        const bool decodes = !encodes && decoded > 0;
        r.base = encodes ? now : decodes;
        r.used = static_cast<u32>(max(r.base, 0));
        r.waits = encodes || decodes;
        r.leaves = decodes;
        if (!decodes) {
            r.limit = 0;
            r.bits = (encodes ? now : decoded) < 0 ? BAD_LENGTHS : 0;
        }
        return r;
    }
};

#define MATCHER(dtype, T)                                                       \
    SPEC_KERNEL_BLOCKS(ngram_match_##dtype, (draft<T, NgramMatch>), Params, THREADS, \
                       RESIDENT)

MATCHER(i32, i32)
MATCHER(i64, i64)
