"""Outputs that a call makes, by libraries that make something else than what was asked for.

Operators write as far as the plan says. So every output, whoever made it, is compared with the
plan before anything is enqueued.
"""

import dataclasses

import numpy as np
import pytest
from conftest import need, need_cuda

import spec_ops
from spec_ops import _arrays

LOGITS = np.random.default_rng(0).standard_normal((4, 4096), np.float32)

#: What a library makes in the place of an output, by what is wrong with it.
WRONG = {
    "one element": (lambda shape, dtype: np.empty(1, dtype), spec_ops.ShapeError, r"f32 \[1\]"),
    "fewer rows": (
        lambda shape, dtype: np.empty((shape[0] - 1, *shape[1:]), dtype),
        spec_ops.ShapeError,
        r"f32 \[3, 64\]",
    ),
    "another type": (
        lambda shape, dtype: np.empty(shape, np.uint8),
        spec_ops.DtypeError,
        r"u8 \[4, 64\]",
    ),
    "no memory between": (
        lambda shape, dtype: np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, (0, 0)),
        spec_ops.StridesError,
        r"strides \[0, 0\]",
    ),
    "columns first": (
        lambda shape, dtype: np.empty(shape[::-1], dtype).T,
        spec_ops.StridesError,
        r"strides \[1, 4\]",
    ),
}


def wrapper(module, empty):
    """A type of arrays whose library makes its arrays by `empty`."""

    class Array:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    Array.__module__ = module

    def library():
        def make(like, shape, dtype):
            return Array(empty(shape, np.dtype(_arrays._NUMPY_NAMES[dtype].rstrip("_"))))

        return _arrays.Library(module, None, _arrays._dlpack, lambda device: 0, make)

    return Array, library


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("planned", [False, True])
def test_another_array_than_was_asked_for(what, planned, monkeypatch):
    """Functions and plans name the output, what it is, and who made it."""
    empty, error, said = WRONG[what]
    Array, library = wrapper("clumsy", empty)
    monkeypatch.setitem(_arrays._KNOWN, "clumsy", library)
    logits = Array(LOGITS)
    call = lambda: spec_ops.topk_router(logits, topk=64)
    if planned:
        plan = spec_ops.TopkRouter(topk=64).plan(logits)
        call = lambda: plan(logits)
    said = f"topk_router: `weights` is .*{said}, as clumsy made it, expected f32 \\[4, 64\\]"
    with pytest.raises(error, match=said):
        call()


def test_a_library_that_makes_what_was_asked_for(monkeypatch):
    """The wrapper above is no reason to be refused."""
    Array, library = wrapper("careful", lambda shape, dtype: np.empty(shape, dtype))
    monkeypatch.setitem(_arrays._KNOWN, "careful", library)
    made = spec_ops.topk_router(Array(LOGITS), topk=64).indices
    assert np.array_equal(made.array, spec_ops.topk_router(LOGITS, topk=64).indices)


def test_flags_of_rows_and_padding():
    """Each row has its own bits, which the batch's word gathers; a request of -1 is padding."""
    logits = LOGITS.copy()
    logits[1, 3] = np.nan
    flags = np.array([8], np.uint32)
    sampled = spec_ops.sample_logits(
        logits,
        np.arange(4),
        np.array([1.0, -1.0], np.float32),
        np.array([7, 8], np.uint64),
        requests=np.array([0, 1, -1, 2], np.int32),
        logprobs=True,
        row_flags=True,
        flags=flags,
    )
    assert sampled.row_flags.dtype == np.uint32
    assert sampled.row_flags.tolist() == [0, 1 | 4, 0, 4] and flags.tolist() == [8 | 1 | 4]
    assert sampled.tokens[2] == -1 and sampled.logprobs[2] == -np.inf
    assert sampled.tokens[0] >= 0 and np.isfinite(sampled.logprobs[0])


def test_extents_that_a_call_says():
    """Several draws of a row, and its likeliest tokens: the call says how many."""
    arrays = LOGITS, np.arange(4), 1.0, 7
    words = {"logprobs": True, "top_tokens": True, "top_logprobs": True}
    one = spec_ops.sample_logits(*arrays)
    many = spec_ops.sample_logits(*arrays, n=3, top=5, **words)
    assert one.tokens.shape == (4,) and one.top_tokens is None
    assert many.tokens.shape == many.logprobs.shape == (4, 3)
    assert np.array_equal(many.tokens[:, 0], one.tokens)
    assert all(len(set(row)) == 3 for row in many.tokens.tolist())
    likeliest = np.argsort(-LOGITS, axis=1, kind="stable")[:, :5]
    assert np.array_equal(many.top_tokens, likeliest)
    assert many.top_logprobs.shape == (4, 5)
    plan = spec_ops.SampleLogits(n=3).plan(LOGITS, np.arange(4), np.ones(4, np.float32), np.full(4, 7, np.uint64))
    planned = plan(LOGITS, np.arange(4), np.ones(4, np.float32), np.full(4, 7, np.uint64))
    assert np.array_equal(planned.tokens, many.tokens)
    with pytest.raises(spec_ops.ShapeError, match="top_tokens"):
        spec_ops.sample_logits(*arrays, top_tokens=True)
    with pytest.raises(spec_ops.ArgumentError, match="`top_tokens` is absent, expected present, "):
        spec_ops.sample_logits(*arrays, top=5, top_logprobs=True)
    with pytest.raises(spec_ops.SignatureError, match="`draws` is unknown, expected one of .*n, top"):
        spec_ops.sample_logits(*arrays, draws=3)


@pytest.mark.parametrize("made", [None, "weights", [0.0], object()])
def test_no_array_at_all(made, monkeypatch):
    Array, library = wrapper("empty_handed", None)
    makes = lambda: dataclasses.replace(library(), empty=lambda like, shape, dtype: made)
    monkeypatch.setitem(_arrays._KNOWN, "empty_handed", makes)
    with pytest.raises(spec_ops.DtypeError, match="`weights` is .*expected an array"):
        spec_ops.topk_router(Array(LOGITS), topk=64)


@pytest.mark.parametrize(
    "raised, error",
    [
        (RuntimeError("no room\nframe #0"), spec_ops.DeviceError),
        (MemoryError("no room"), spec_ops.OutOfMemoryError),
        (type("OutOfMemoryError", (RuntimeError,), {})("no room"), spec_ops.OutOfMemoryError),
        (spec_ops.DeviceLostError("no room"), spec_ops.DeviceLostError),
        (KeyboardInterrupt("no room"), KeyboardInterrupt),
    ],
)
def test_a_library_that_fails(raised, error, monkeypatch):
    """What its own exception was is said, and kept as the cause."""

    def fail(shape, dtype):
        raise raised

    Array, library = wrapper("failing", fail)
    monkeypatch.setitem(_arrays._KNOWN, "failing", library)
    with pytest.raises(error, match="no room$") as caught:
        spec_ops.topk_router(Array(LOGITS), topk=64)
    if caught.value is not raised:
        assert caught.value.__cause__ is raised
        assert "topk_router: `weights` was not made" in str(caught.value)


def test_a_subclass_of_torch():
    """`new_empty` of a subclass of torch's tensors."""
    torch = need("torch")
    wrong = {
        "one": (lambda made: made.flatten()[:1], spec_ops.ShapeError),
        "half": (lambda made: made.half(), spec_ops.DtypeError),
        "expanded": (lambda made: made.flatten()[:1].expand(made.shape), spec_ops.StridesError),
        "turned": (lambda made: made.t().contiguous().t(), spec_ops.StridesError),
        "on meta": (lambda made: made.to("meta"), spec_ops.DtypeError),
        "none": (lambda made: None, spec_ops.DtypeError),
        "negated": (torch._neg_view, spec_ops.ArgumentError),
    }

    class Tensor(torch.Tensor):
        change = None

        def new_empty(self, *args, **kwargs):
            return type(self).change(super().new_empty(*args, **kwargs).as_subclass(torch.Tensor))

    logits = torch.from_numpy(LOGITS).as_subclass(Tensor)
    plan = spec_ops.TopkRouter(topk=64).plan(logits)
    for what, (change, error) in wrong.items():
        Tensor.change = staticmethod(change)
        for call in (lambda: spec_ops.topk_router(logits, topk=64), lambda: plan(logits)):
            with pytest.raises(error, match="`weights`"):
                call()
    Tensor.change = staticmethod(lambda made: made)
    assert torch.equal(
        spec_ops.topk_router(logits, topk=64).indices,
        spec_ops.topk_router(torch.from_numpy(LOGITS), topk=64).indices,
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_torchs_ready_way_makes_what_new_empty_makes(device):
    torch = need("torch")
    if device == "cuda":
        need_cuda(torch)
    library = _arrays.library(torch.Tensor)
    like = torch.zeros(2, device=device)
    for shape in ((), (0,), (3,), (2, 0, 4), (1, 5), (2, 3, 4)):
        for dtype in ("f32", "f16", "bf16", "i32", "i64", "u8", "u32", "u64", "bool", "count"):
            make, arguments = library.ready(like, shape, dtype)
            made, other = make(*arguments), library.empty(like, shape, dtype)
            assert type(made) is torch.Tensor and made.shape == other.shape
            assert (made.dtype, made.device) == (other.dtype, other.device)
            assert made.is_contiguous() and not made.requires_grad

    class Tensor(torch.Tensor):
        pass

    assert _arrays.library(Tensor).ready is None
    assert _arrays.library(torch.nn.Parameter).ready is not None
    logits = torch.nn.Parameter(torch.from_numpy(LOGITS).to(device))
    weights = spec_ops.topk_router(logits, topk=3).weights
    assert type(weights) is torch.Tensor and not weights.requires_grad
    with torch.inference_mode():
        assert spec_ops.topk_router(logits, topk=3).weights.is_inference()


def test_a_ready_way_that_makes_arrays_elsewhere(monkeypatch):
    """The ready way makes arrays on the current device, which may become another one: then the
    library is asked as if it had no ready way."""
    torch = need("torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no table of functions")
    made = []

    class Tensor(torch.Tensor):
        pass

    def on_meta(shape):
        made.append(shape)
        return torch.empty(shape, device="meta")

    ready = lambda like, shape, dtype: (on_meta, (shape,))
    library = dataclasses.replace(_arrays.library(torch.Tensor), ready=ready, plain=(Tensor,))
    monkeypatch.setitem(_arrays._KNOWN, "torch", lambda: library)
    logits = torch.from_numpy(LOGITS).as_subclass(Tensor)
    found = spec_ops.topk_router(logits, topk=5)
    right = spec_ops.topk_router(LOGITS, topk=5)
    assert made == [(4, 5), (4, 5)] and np.array_equal(found.indices.numpy(), right.indices)
