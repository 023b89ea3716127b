"""Which tokens `sample_logits` draws from, beside transformers' logits warpers and vLLM's order."""

import numpy as np
import pytest
from conftest import need

import spec_ops

ROWS = 400
# What a cut may be away from, where f32 and f64 are to agree on it.
MARGIN = 1e-5


def reference(logits, temperature, top_k, top_p, min_p, min_p_first):
    """The tokens kept, in f64, and how near the nearest cut is to another answer."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits[order].astype(np.float64) - logits.max()) / temperature)
    likely = int((weights >= min_p).sum())
    kept = min(top_k or len(order), likely if min_p_first else len(order))
    before = (np.cumsum(weights[:kept]) - weights[:kept]) / weights[:kept].sum()
    near = [abs(before[1:] - top_p).min(initial=1), abs(weights / min_p - 1).min() if min_p else 1]
    kept = min(int((before < top_p).sum()), kept if min_p_first else likely)
    ends = {min(end, len(order) - 1) for end in (kept, top_k or kept, likely)}
    near.append(min(1 - weights[end] / weights[end - 1] for end in ends))
    return set(order[:kept].tolist()), min(near)


def draw_rows(vocab):
    """Logits and options of each row: all filters, some of them, or none."""
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((ROWS, vocab)) * 1.5).astype(np.float32)
    one_of = lambda *values: rng.choice(values, ROWS)
    options = {
        "temperature": one_of(0.7, 1.0, 1.6).astype(np.float32),
        "top_k": one_of(0, 3, 20, vocab // 2).astype(np.int32),
        "top_p": one_of(0.3, 0.8, 0.95, 1.0).astype(np.float32),
        "min_p": one_of(0.0, 0.01, 0.05, 0.2).astype(np.float32),
    }
    return logits, options


def kept_by(logits, options, min_p_first):
    """The tokens of each row that `sample_logits` may draw."""
    positions, seeds = np.arange(ROWS), np.zeros(ROWS, np.uint64)
    probs = spec_ops.sample_logits(
        logits, positions, seeds=seeds, probs=True, min_p_first=min_p_first, **options
    ).probs
    assert np.allclose(probs.sum(axis=1, dtype=np.float64), 1, atol=1e-5)
    return [set(np.flatnonzero(row).tolist()) for row in probs]


def expected(logits, options, min_p_first):
    """The reference's tokens of each row, None where a cut is too near to be told."""
    for row in range(ROWS):
        values = {name: float(vector[row]) for name, vector in options.items()}
        values["top_k"] = int(values["top_k"])
        kept, margin = reference(logits[row], **values, min_p_first=min_p_first)
        yield kept if margin > MARGIN else None


@pytest.mark.parametrize("vocab", [64, 4096])
def test_min_p_first_as_vllm(vocab):
    logits, options = draw_rows(vocab)
    firsts, lasts = (list(expected(logits, options, first)) for first in (True, False))
    compared = 0
    for kept, first in zip(kept_by(logits, options, True), firsts, strict=True):
        assert first is None or kept == first
        compared += first is not None
    assert compared > ROWS * 0.8
    differ = sum(None not in both and both[0] != both[1] for both in zip(firsts, lasts))
    assert differ > ROWS // 20, "the order of the filters changes too little to be seen"


@pytest.mark.parametrize("vocab", [64, 4096])
def test_as_transformers(vocab):
    torch = need("torch")
    warpers = need("transformers").generation.logits_process
    logits, options = draw_rows(vocab)
    ours = kept_by(logits, options, False)
    compared = 0
    for row, right in enumerate(expected(logits, options, False)):
        if right is None:
            continue
        temperature, top_k, top_p, min_p = (float(vector[row]) for vector in options.values())
        chain = [
            warpers.TemperatureLogitsWarper(temperature),
            warpers.TopKLogitsWarper(int(top_k)) if top_k else None,
            warpers.TopPLogitsWarper(top_p) if top_p < 1 else None,
            warpers.MinPLogitsWarper(min_p) if min_p else None,
        ]
        scores = torch.from_numpy(logits[row : row + 1])
        for warper in filter(None, chain):
            scores = warper(None, scores)
        theirs = set(torch.isfinite(scores[0]).nonzero().flatten().tolist())
        assert ours[row] == theirs == right, (row, temperature, top_k, top_p, min_p)
        compared += 1
    assert compared > ROWS * 0.8
