// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.

// Bits of `flags`: the data has a NaN or an infinity where the operator needs a finite number.
const NON_FINITE = 1u;
// A token or an index is outside its range.
const OUT_OF_RANGE = 2u;
// An offset, a length or a step does not fit its tensor, and was cut.
const BAD_LENGTHS = 4u;
// The codes of float types.
const F32 = 0u;
const F16 = 1u;
const BF16 = 2u;
// `exp` returns 0 for arguments below this one.
const EXP_MIN = -87.0f;
// The number of tokens whose noise is drawn together.
const RACE_GROUP = 64u;
// Index of the first block of random numbers with the low bits of a group's least noise.
const GROUP_BLOCKS = 1073741824u;
// Index of the first block of random numbers with the differences between tokens' noise and the
// least noise.
const TOKEN_BLOCKS = 2147483648u;
// The kinds of decisions that random numbers make: which token is sampled, whether a draft is
// accepted, and which token replaces a rejected draft.
const PURPOSE_SAMPLE = 0u;
const PURPOSE_ACCEPT = 1u;
const PURPOSE_RECOVER = 2u;
