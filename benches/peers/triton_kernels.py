"""The kernels of with_triton.py, which loads this where there is Triton."""

import triton
import triton.language as tl


@triton.autotune([triton.Config({}, num_warps=w) for w in (1, 2, 4)], key=["tokens"])
@triton.jit
def route(
    x_ptr,
    bias_ptr,
    weights_ptr,
    experts_ptr,
    tokens,
    scale,
    E: tl.constexpr,
    G: tl.constexpr,
    KEPT: tl.constexpr,
    K: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, E)
    score = tl.sigmoid(tl.load(x_ptr + token * E + expert).to(tl.float32))
    choice = tl.reshape(score + tl.load(bias_ptr + expert), (G, E // G))
    # A group's score is the sum of its two largest.
    column, group = tl.arange(0, E // G), tl.arange(0, G)
    first = tl.argmax(choice, 1)
    others = tl.where(column[None, :] == first[:, None], float("-inf"), choice)
    group_score = tl.max(choice, 1) + tl.max(others, 1)
    kept = group < 0
    for _ in tl.static_range(KEPT):
        best = group == tl.argmax(group_score, 0)
        kept = kept | best
        group_score = tl.where(best, float("-inf"), group_score)
    choice = tl.reshape(tl.where(kept[:, None], choice, 0.0), (E,))
    slot = tl.arange(0, K)
    weights = tl.zeros((K,), tl.float32)
    experts = tl.zeros((K,), tl.int32)
    for k in tl.static_range(K):
        best = tl.argmax(choice, 0)
        chosen = tl.sum(tl.where(expert == best, score, 0.0), 0)
        weights = tl.where(slot == k, chosen, weights)
        experts = tl.where(slot == k, best, experts)
        choice = tl.where(expert == best, float("-inf"), choice)
    weights = weights / (tl.sum(weights, 0) + 1e-20) * scale
    tl.store(weights_ptr + token * K + slot, weights)
    tl.store(experts_ptr + token * K + slot, experts)


@triton.jit
def accepted(target_ptr, draft_ptr, ids_ptr, uniform_ptr, request, vocab, D: tl.constexpr, P: tl.constexpr):
    """How many drafts of a request are accepted."""
    position = tl.arange(0, P)
    token = request * D + position
    there = position < D
    at = token * vocab + tl.load(ids_ptr + token, there, 0)
    p = tl.load(target_ptr + at, there, 0.0)
    q = tl.maximum(tl.load(draft_ptr + at, there, 0.0), 1e-10)
    u = tl.load(uniform_ptr + token, there, 0.0)
    rejected = ((p < q) & (u * q >= p)) & there
    return tl.min(tl.where(rejected, position, D), 0)


@triton.jit
def largest(
    target_ptr,
    draft_ptr,
    ids_ptr,
    uniform_ptr,
    value_ptr,
    index_ptr,
    vocab,
    seed,
    D: tl.constexpr,
    P: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    """The largest residual of a part of a request's rejected row."""
    request, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = accepted(target_ptr, draft_ptr, ids_ptr, uniform_ptr, request, vocab, D, P)
    row = (request * D + tl.minimum(count, D - 1)) * vocab
    best, index = -1.0, 0
    if count < D:
        for start in range(part * SPLIT, tl.minimum((part + 1) * SPLIT, vocab), BLOCK):
            v = start + tl.arange(0, BLOCK)
            there = v < vocab
            residual = tl.load(target_ptr + row + v, there, 0.0) - tl.load(draft_ptr + row + v, there, 0.0)
            if SAMPLE:
                # Exponential draws: the largest ratio is a sample.
                draw = -tl.log(tl.rand(seed, (request * vocab + v).to(tl.int32)) + 1e-10)
                residual = residual / draw
            residual = tl.where(there, residual, -1.0)
            value = tl.max(residual, 0)
            if value > best:
                best = value
                index = start + tl.argmax(residual, 0)
    slot = request * tl.num_programs(1) + part
    tl.store(value_ptr + slot, best)
    tl.store(index_ptr + slot, index)


@triton.jit
def emit(
    target_ptr,
    draft_ptr,
    ids_ptr,
    bonus_ptr,
    uniform_ptr,
    value_ptr,
    index_ptr,
    output_ptr,
    vocab,
    parts,
    D: tl.constexpr,
    P: tl.constexpr,
    PARTS: tl.constexpr,
):
    """A request's tokens: those accepted, then one recovered or the bonus."""
    request = tl.program_id(0).to(tl.int64)
    count = accepted(target_ptr, draft_ptr, ids_ptr, uniform_ptr, request, vocab, D, P)
    part = tl.arange(0, PARTS)
    value = tl.load(value_ptr + request * parts + part, part < parts, -2.0)
    last = tl.load(index_ptr + request * parts + tl.argmax(value, 0))
    if count == D:
        last = tl.load(bonus_ptr + request)
    position = tl.arange(0, P)
    drafts = tl.load(ids_ptr + request * D + position, position < D, -1)
    row = tl.where(position < count, drafts, -1)
    row = tl.where(position == count, last, row)
    tl.store(output_ptr + request * (D + 1) + position, row, position <= D)


@triton.jit
def count_picks(ids_ptr, counts_ptr, picks, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < picks
    expert = tl.load(ids_ptr + at, there, 0)
    tl.atomic_add(counts_ptr + expert, 1, there)


@triton.jit
def lay_runs(
    counts_ptr, cursors_ptr, padded_ptr, experts_ptr, blocks, E: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Where each expert's run starts, and the expert of each block."""
    expert = tl.arange(0, E)
    runs = (tl.load(counts_ptr + expert) + SIZE - 1) // SIZE * SIZE
    ends = tl.cumsum(runs, 0)
    if tl.program_id(0) == 0:
        tl.store(cursors_ptr + expert, ends - runs)
        tl.store(padded_ptr, tl.sum(runs, 0))
    block = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    before = tl.sum((ends[None, :] <= (block * SIZE)[:, None]).to(tl.int32), 1)
    tl.store(experts_ptr + block, before, block < blocks)


@triton.jit
def place_picks(ids_ptr, cursors_ptr, sorted_ptr, picks, BLOCK: tl.constexpr):
    """In any order within a run: whoever adds first."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < picks
    expert = tl.load(ids_ptr + at, there, 0)
    place = tl.atomic_add(cursors_ptr + expert, 1, there)
    tl.store(sorted_ptr + place, at, there)


@triton.jit
def ordered_key(x):
    """An unsigned integer that orders as the float does."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)


@triton.jit
def select_row(x_ptr, out_ptr, columns, k, BLOCK: tl.constexpr):
    """The positions of the k largest of a row, ascending: radix select by 8 bits, a
    program a row."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * columns
    out_ptr += row * k
    digit = tl.arange(0, 256)
    prefix = tl.zeros((), tl.uint32)
    need = k
    for step in tl.static_range(4):
        shift = 24 - 8 * step
        histogram = tl.zeros((256,), tl.int32)
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            there = at < columns
            key = ordered_key(tl.load(x_ptr + at, there, 0.0).to(tl.float32))
            inside = there
            if step > 0:
                inside = there & (key >> (shift + 8) == prefix)
            own = tl.where(inside, (key >> shift) & 255, 0).to(tl.int32)
            histogram += tl.histogram(own, 256)
            outside = BLOCK - tl.sum(inside.to(tl.int32), 0)
            histogram -= tl.where(digit == 0, outside, 0)
        # How many there are from each digit up.
        through = tl.sum(histogram, 0) - tl.cumsum(histogram, 0) + histogram
        found = tl.sum((through >= need).to(tl.int32), 0) - 1
        need -= tl.sum(tl.where(digit == found, through - histogram, 0), 0)
        prefix = prefix << 8 | found.to(tl.uint32)
    kept = tl.zeros((), tl.int32)
    ties = tl.zeros((), tl.int32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        there = at < columns
        key = ordered_key(tl.load(x_ptr + at, there, 0.0).to(tl.float32))
        tie = there & (key == prefix)
        rank = ties + tl.cumsum(tie.to(tl.int32), 0)
        keep = (there & (key > prefix)) | (tie & (rank <= need))
        place = kept + tl.cumsum(keep.to(tl.int32), 0) - 1
        tl.store(out_ptr + place, at, keep)
        kept += tl.sum(keep.to(tl.int32), 0)
        ties += tl.sum(tie.to(tl.int32), 0)
