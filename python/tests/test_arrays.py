"""Which arrays are taken as they are, which are converted, and which are refused because their
memory is not their value."""

import copy
import importlib
import pickle
import tracemalloc

import numpy as np
import pytest
from conftest import LIBRARIES, library, need  # noqa: F401

import spec_ops

LOGITS = np.random.default_rng(0).standard_normal((3, 50), np.float32)
POSITIONS = np.array([4, 9, 2])
SEEDS = np.array([7, 7, 7], np.uint64)
OPTIONS = {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.01}
TYPES = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float32, "min_p": np.float32}
VECTORS = {name: np.full(3, value, TYPES[name]) for name, value in OPTIONS.items()}


def sample(logits=LOGITS, positions=POSITIONS, seeds=SEEDS, **options):
    return spec_ops.sample_logits(logits, positions, seeds=seeds, probs=True, **VECTORS | options)


def same(results, others):
    return all(
        one is other is None or np.array_equal(np.asarray(one), np.asarray(other))
        for one, other in zip(results, others, strict=True)
    )


def test_lazily_negated_tensors_are_refused():
    """torch's `is_neg()`: memory has the other sign."""
    torch = need("torch")
    logits = torch.from_numpy(LOGITS)
    negated = torch._neg_view(logits)
    assert negated.is_neg() and negated.data_ptr() == logits.data_ptr()
    with pytest.raises(spec_ops.ArgumentError, match=r"`x` is negated.*resolve_neg\(\)"):
        spec_ops.topk_router(negated, topk=2)
    right = spec_ops.topk_router(-logits, topk=2)
    assert same(spec_ops.topk_router(negated.resolve_neg(), topk=2), right)
    plan = spec_ops.TopkRouter(topk=2).plan(logits)
    with pytest.raises(spec_ops.ArgumentError, match="negated"):
        plan(negated)
    weights, indices = torch.empty(3, 2), torch.empty(3, 2, dtype=torch.int32)
    with pytest.raises(spec_ops.ArgumentError, match="`weights` is negated"):
        spec_ops.topk_router(logits, topk=2, out=(torch._neg_view(weights), indices))
    # torch's dispatcher resolves what it passes to an operator.
    operators = importlib.import_module("spec_ops.torch")
    assert same(operators.topk_router(negated, topk=2), right)


def test_lazily_conjugated_tensors_are_refused():
    """Only complex numbers are conjugated; their parts are no packed rows."""
    torch = need("torch")
    conjugated = torch.randn(3, 50, dtype=torch.complex64).conj()
    assert conjugated.is_conj() and conjugated.imag.is_neg()
    with pytest.raises(spec_ops.DtypeError, match="complex64"):
        spec_ops.topk_router(conjugated, topk=2)
    with pytest.raises(spec_ops.StridesError):
        spec_ops.topk_router(conjugated.real, topk=2)
    with pytest.raises(spec_ops.ArgumentError, match="negated"):
        spec_ops.topk_router(conjugated.imag, topk=2)
    with pytest.raises(spec_ops.ArgumentError, match="negated"):
        spec_ops.unique(torch._neg_view(torch.tensor([3, 1])))


def test_masked_arrays_are_refused():
    masked = np.ma.masked_array(LOGITS, mask=LOGITS > 0)
    with pytest.raises(spec_ops.DtypeError, match=r"`x` is a masked array.*filled"):
        spec_ops.topk_router(masked, topk=2)
    assert spec_ops.topk_router(masked.filled(-9), topk=2).indices.shape == (3, 2)
    out = np.ma.empty((3, 2), np.float32), np.ma.empty((3, 2), np.int32)
    with pytest.raises(spec_ops.DtypeError, match="`weights` is a masked array"):
        spec_ops.topk_router(LOGITS, topk=2, out=out)


def test_tensors_without_memory_are_refused():
    """What torch's transformations pass has no memory to read."""
    torch = need("torch")
    logits = torch.from_numpy(LOGITS)
    route = lambda tensor: spec_ops.topk_router(tensor, topk=2).weights.sum()
    for attempt in (
        lambda: route(logits.to("meta")),
        lambda: route(logits.to_sparse()),
        lambda: torch.func.vmap(route)(torch.stack([logits, logits])),
        lambda: torch.func.grad(route)(logits),
        lambda: torch.func.functionalize(route)(logits),
    ):
        with pytest.raises(spec_ops.ArgumentError, match="`x`"):
            attempt()


def test_arrays_that_cannot_be_read():
    """The library's own exception is said, and is the cause."""
    for array in (np.array([["a"]]), LOGITS.astype(object), LOGITS.astype(">f4")):
        with pytest.raises(spec_ops.DtypeError, match="`x` cannot be read.*DLPack") as caught:
            spec_ops.topk_router(array, topk=2)
        assert isinstance(caught.value.__cause__, BufferError)


def test_errors_are_of_this_package():
    """Calls that are wrong in themselves, too; Python's own are those of signatures."""
    plan = spec_ops.TopkRouter(topk=2).plan(LOGITS)
    for attempt in (
        lambda: plan(*[LOGITS] * 20),
        lambda: plan(),
        lambda: spec_ops.TopkRouter(topk=2).plan(*[LOGITS] * 20),
        lambda: spec_ops.TopkRouter(topk=2).plan(LOGITS, nothing=LOGITS),
        lambda: spec_ops.topk_router(LOGITS, topk=[2]),
        lambda: spec_ops.topk_router(LOGITS, topk=2**64 - 1, shared_experts=2**63),
        lambda: spec_ops.tree_verify(*[np.zeros((1, 4), np.int64)] * 2, max_depth=2**63 - 1),
        lambda: spec_ops.moe_align(np.zeros((2, 2), np.int32), experts=2, block_size=0),
        lambda: spec_ops.rejection_sample(LOGITS, [1], POSITIONS, POSITIONS, max_spec_len=1),
        lambda: spec_ops.rejection_sample(LOGITS, 3, POSITIONS, POSITIONS, max_spec_len=1),
        lambda: spec_ops.topk_router(LOGITS, topk=2, out={}),
    ):
        with pytest.raises(spec_ops.SpecError):
            attempt()


def test_equal_options_of_other_types():
    """Whether 2.0 is taken does not depend on whether 2 was there before."""
    for _ in range(2):
        assert spec_ops.topk_router(LOGITS, topk=2).indices.shape == (3, 2)
        assert spec_ops.topk_router(LOGITS, topk=np.int64(2)).indices.shape == (3, 2)
        with pytest.raises(spec_ops.ArgumentError, match="`topk` is 2.0"):
            spec_ops.topk_router(LOGITS, topk=2.0)


@pytest.mark.parametrize("name", [*OPTIONS, "seeds"])
def test_a_number_for_all_requests(name):
    """One number is a vector full of it, in functions and in plans."""
    right = sample()
    value = 7 if name == "seeds" else OPTIONS[name]
    assert same(sample(**{name: value}), right)
    assert same(sample(**{name: np.asarray(value)[()]}), right)  # numpy's own kind of number
    operator = spec_ops.SampleLogits()
    named = VECTORS | {"seeds": SEEDS}
    plan = operator.plan(LOGITS, POSITIONS, **named | {name: value})
    for given in (named, named | {name: value}):
        assert np.array_equal(plan(LOGITS, POSITIONS, **given).tokens, right.tokens)


def test_numbers_alone():
    right = sample()
    tokens = spec_ops.sample_logits(LOGITS, POSITIONS, seeds=7, **OPTIONS).tokens
    assert np.array_equal(tokens, right.tokens)
    # As many as there are rows, unless an array says how many requests there are.
    requests = np.array([0, 1, 0])
    vectors = {name: vector[:2] for name, vector in VECTORS.items()}
    right = sample(requests=requests, seeds=SEEDS[:2], **vectors)
    some = {"temperature": 0.8, "top_p": 0.9}
    assert same(sample(requests=requests, seeds=SEEDS[:2], **vectors | some), right)
    with pytest.raises(spec_ops.ArgumentError, match="how many requests"):
        spec_ops.sample_logits(LOGITS, POSITIONS, seeds=7, requests=requests, **OPTIONS)


def test_a_seed_for_all_requests_of_a_rejection():
    target = np.random.default_rng(1).dirichlet(np.ones(9), 4).astype(np.float32)
    drafts, bonus, cu = np.array([1, 2, 3, 4]), np.array([5, 6]), np.array([0, 2, 4])
    positions = np.array([3, 8])
    call = lambda seeds: spec_ops.rejection_sample(
        target, drafts, bonus, cu, seeds=seeds, positions=positions, max_spec_len=2
    )
    assert same(call(7), call(np.array([7, 7], np.uint64)))
    assert same(call(np.array([7, 7], np.int32)), call(np.array([7, 7], np.uint64)))


def test_numbers_that_are_refused():
    for name, values in {
        "top_k": (2**31, -(2**31) - 1, 1.5, 2**70),
        "seeds": (2**64, -(2**63) - 1, 0.5),
    }.items():
        for value in values:
            with pytest.raises(spec_ops.ArgumentError, match=f"`{name}` is .*whole number of"):
                sample(**{name: value})
    for name in ("temperature", "top_k", "seeds"):
        for value in (True, "1", 1j, None if name != "top_k" else [1]):
            with pytest.raises(spec_ops.ArgumentError, match=f"`{name}`"):
                sample(**{name: value})
    # Other arguments are arrays.
    with pytest.raises(spec_ops.DtypeError, match="`positions` .*expected an array"):
        sample(positions=3)
    with pytest.raises(spec_ops.DtypeError, match="`logits` .*expected an array"):
        sample(logits=3.0)


def test_seeds_are_64_bits_signed_or_not():
    for seed in (2**64 - 1, 2**63, -1):
        right = sample(seeds=np.full(3, seed % 2**64, np.uint64))
        assert same(sample(seeds=seed), right)


def test_whole_numbers_of_another_width():
    """`top_k` of 64 bits, which saturates; seeds of 32 bits."""
    right = sample()
    assert same(sample(top_k=VECTORS["top_k"].astype(np.int64)), right)
    wide = sample(top_k=np.array([12, 2**40, -(2**40)]))
    assert same(wide, sample(top_k=np.array([12, 2**31 - 1, -(2**31)], np.int32)))
    assert not same(wide, right)
    for kind in (np.int32, np.uint32):
        assert same(sample(seeds=SEEDS.astype(kind)), right)
    negative = sample(seeds=np.full(3, -7, np.int32))
    assert same(negative, sample(seeds=np.full(3, 2**64 - 7, np.uint64)))
    # Not everything is converted.
    with pytest.raises(spec_ops.DtypeError, match="`temperature` is f64"):
        sample(temperature=np.ones(3))


def test_numbers_beside_tensors():
    torch = need("torch")
    logits, positions = torch.from_numpy(LOGITS), torch.from_numpy(POSITIONS)
    tokens = spec_ops.sample_logits(logits, positions, seeds=7, **OPTIONS).tokens
    assert isinstance(tokens, torch.Tensor) and tokens.tolist() == sample().tokens.tolist()
    wide = torch.full((3,), 12)
    assert wide.dtype == torch.int64
    tokens = spec_ops.sample_logits(logits, positions, seeds=2**64 - 1, **OPTIONS | {"top_k": wide})
    assert tokens.tokens.tolist() == sample(seeds=-1).tokens.tolist()


@pytest.mark.parametrize("wide", [False, True])
def test_jax_with_and_without_64_bits(wide):
    """Without `jax_enable_x64` jax has no seeds of 64 bits; its 32-bit ones are taken."""
    jax = need("jax")
    jax.config.update("jax_enable_x64", wide)
    try:
        of_jax = lambda array, kind=None: jax.numpy.asarray(array, kind)
        arrays = {name: of_jax(vector) for name, vector in VECTORS.items()}
        for seeds in (7, of_jax(SEEDS), of_jax([7, 7, 7], "int32"), of_jax([7, 7, 7], "uint32")):
            results = sample(of_jax(LOGITS), of_jax(POSITIONS), seeds, **arrays)
            assert isinstance(results.tokens, jax.Array) and same(results, sample())
        negative = of_jax([-1, -1, -1])  # of 32 bits or of 64: the same seed
        results = sample(of_jax(LOGITS), of_jax(POSITIONS), negative, **arrays)
        assert same(results, sample(seeds=-1))
        top_k = of_jax(VECTORS["top_k"].astype(np.int64))
        results = sample(of_jax(LOGITS), of_jax(POSITIONS), 7, **arrays | {"top_k": top_k})
        assert same(results, sample())
        keys, count, counts, _ = spec_ops.unique(of_jax([5, 3, 5]), counts=True)
        assert keys[: int(count[0])].tolist() == [3, 5] and counts[:2].tolist() == [1, 2]
    finally:
        jax.config.update("jax_enable_x64", False)


def test_plans_pickle_and_copy():
    """What comes back is made for the same arrays, and has workspaces of its own."""
    operator = spec_ops.SampleLogits(min_p_first=True)
    again = pickle.loads(pickle.dumps(operator))
    assert repr(again) == repr(operator) and again.options == operator.options
    named = VECTORS | {"seeds": SEEDS}
    wide = np.zeros((3, 64), np.float32)[:, :50]
    wide[:] = LOGITS
    out = (True, np.zeros((3, 50), np.float32), None)
    plan = operator.plan(wide, POSITIONS, **named, out=out)
    right = plan(wide, POSITIONS, **named, out=out)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(plan, protocol))
        assert repr(again) == repr(plan) and again.workspace_size == plan.workspace_size
        assert again.route == plan.route
        out = (True, np.zeros((3, 50), np.float32), None)
        assert same(again(wide, POSITIONS, **named, out=out), right)
        with pytest.raises(spec_ops.StridesError, match="as planned"):
            again(LOGITS, POSITIONS, **named, out=out)
    for copied in (copy.copy(plan), copy.deepcopy(plan)):
        assert copied is not plan and same(copied(wide, POSITIONS, **named, out=out), right)


def test_every_plan_pickles():
    """Of each operator, with what its first golden vector has."""
    from conftest import Numpy, golden
    from test_golden import CLASSES, OPERATORS, extents_of, inputs_of, options_of

    for name in OPERATORS:
        case = golden(name)[0]
        inputs = inputs_of(name, case, Numpy())
        values = options_of(name, case["params"]) | extents_of(name, case)
        plan = CLASSES[name](**values).plan(**inputs)
        again = pickle.loads(pickle.dumps(plan))
        assert again is not plan
        results, others = (
            plan(**{name: None if one is None else one.copy() for name, one in inputs.items()})
            for plan in (plan, again)
        )
        if name == "unique":  # what lies behind the count is unspecified
            count = int(results.count[0])
            results, others = ((each[0][:count], each[1]) for each in (results, others))
        if isinstance(results, np.ndarray):
            results, others = (results,), (others,)
        assert results is others is None or same(results, others)


def test_a_pickled_plan_of_another_version():
    plan = spec_ops.TopkRouter(topk=2).plan(LOGITS)
    restore, (operator, device, arrays) = plan.__reduce__()
    for broken in (
        (operator, device, arrays[:-1]),
        (operator, (7, 0), arrays),
        (operator, device, [("f99", [3, 50], [50, 1]), *arrays[1:]]),
        (operator, device, [("f32", [1] * 5, [1] * 5), *arrays[1:]]),
    ):
        with pytest.raises(spec_ops.SpecError):
            restore(*broken)


def test_paddle_results_are_paddles():
    """Read in place, written in place, results of its own type, numbers and other widths."""
    paddle = need("paddle")
    arrays = {name: paddle.to_tensor(vector) for name, vector in VECTORS.items()}
    logits, positions = paddle.to_tensor(LOGITS), paddle.to_tensor(POSITIONS)
    seeds = paddle.to_tensor(np.asarray(SEEDS).astype(np.int64))
    right = sample()
    for given in (seeds, 7):
        results = sample(logits, positions, given, **arrays)
        assert isinstance(results.tokens, paddle.Tensor)
        assert results.tokens.dtype == paddle.int32 and results.tokens.place == logits.place
    assert same(sample(logits, positions, seeds, **arrays), sample(LOGITS, POSITIONS, SEEDS))
    wide = arrays | {"top_k": paddle.to_tensor(VECTORS["top_k"].astype(np.int64))}
    assert same(sample(logits, positions, 7, **wide), right)
    keys, count, counts, _ = spec_ops.unique(paddle.to_tensor([5, 3, 5]), counts=True)
    assert counts.dtype == paddle.int64 and keys[: count.item()].tolist() == [3, 5]
    half = spec_ops.topk_router(logits.astype("bfloat16"), topk=2)
    assert isinstance(half.indices, paddle.Tensor)
    text, length = paddle.to_tensor([[5, 3, 8, 0, 0]]), paddle.to_tensor([3], dtype="int32")
    new, number = paddle.to_tensor([[9, 2]], dtype="int32"), paddle.to_tensor([2], dtype="int32")
    spec_ops.append_tokens(text, length, new, number)
    assert text.tolist() == [[5, 3, 8, 9, 2]] and length.tolist() == [5]


def test_paddle_in_fastdeploys_signatures():
    paddle = need("paddle")
    fastdeploy = importlib.import_module("spec_ops.fastdeploy")
    logits, bias = np.random.default_rng(0).standard_normal((2, 4, 64)).astype(np.float32)
    scores, weights, ids = fastdeploy.get_moe_scores(
        paddle.to_tensor(logits), 8, 4, 6, 2.5, paddle.to_tensor(bias[:1]), True
    )
    right = fastdeploy.get_moe_scores(logits, 8, 4, 6, 2.5, bias[:1], True)
    assert isinstance(scores, paddle.Tensor) and isinstance(ids, paddle.Tensor)
    assert np.array_equal(ids.numpy(), right[2]) and np.array_equal(weights.numpy(), right[1])
    ids, weights = fastdeploy.moe_topk_select(paddle.to_tensor(logits), None, 6, True)
    assert ids.dtype == paddle.int64 and isinstance(weights, paddle.Tensor)
    picks = paddle.to_tensor([[7, 6, 5, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 3, 2, 1]])
    sorted_ids, experts, padded = fastdeploy.tritonmoe_preprocess(picks, 8, 4)
    assert isinstance(sorted_ids, paddle.Tensor) and len(sorted_ids) == 16 + 9 * 3
    assert sorted_ids[:8].tolist() == [8, 12, 16, 16, 4, 9, 15, 16]
    assert experts[:8].tolist() == list(range(8)) and padded.item() == 32


def allocated(call):
    """The most bytes that a call which is refused for a shape has at a time."""
    tracemalloc.start()
    try:
        with pytest.raises(spec_ops.ShapeError):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_shapes_are_checked_before_numbers_become_vectors():
    """Not even one vector is made for a call that is refused."""
    many = 4_000_000
    logits, positions = np.zeros((2, 9), np.float32), np.zeros(2, np.int64)
    top_k = np.zeros(many, np.int32)
    numbers = {"temperature": 0.7, "seeds": 3, "top_p": 0.9}
    assert allocated(lambda: spec_ops.sample_logits(logits, positions, **numbers, top_k=top_k)) < many
    # A plan compares all that it is given before it makes anything.
    plan = spec_ops.SampleLogits().plan(logits, positions, **numbers)
    rows, places = np.zeros((many // 9, 9), np.float32), np.zeros(many // 9, np.int64)
    assert allocated(lambda: plan(rows, places, **numbers)) < many
    texts, lengths = np.zeros((many, 1), np.int32), np.ones(many, np.int32)
    penalties = {"repetition": 1.1, "presence": 0.1}
    assert (
        allocated(lambda: spec_ops.adjust_logits(logits, texts, lengths[:5], lengths, **penalties))
        < many
    )
    # Vectors are made, and are right, in a call that is not refused.
    tokens = spec_ops.sample_logits(logits + np.eye(2, 9, 4, np.float32), positions, 0.0, seeds=1).tokens
    assert tokens.tolist() == [4, 5]


def seeds_of(library, number, dtype):
    """What is drawn with a seed that an array of this type has."""
    logits = library.array(np.zeros((1, 4096), np.float32), "f32")
    positions = library.array(np.array([3], np.int64), "i64")
    temperature = library.array(np.ones(1, np.float32), "f32")
    kind = getattr(np, {"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
    seeds = library.array(np.array([number], kind), dtype)
    return library.bits(spec_ops.sample_logits(logits, positions, temperature, seeds).tokens).item()


@pytest.mark.parametrize(
    ("number", "dtypes"),
    [
        (-1, ["i32", "i64"]),
        (-(2**31), ["i32", "i64"]),
        (2**31 - 1, ["i32", "i64", "u32", "u64"]),
        (2**31, ["u32", "i64", "u64"]),
        (2**32 - 1, ["u32", "i64", "u64"]),
        (-(2**63), ["i64"]),
        (2**64 - 1, ["u64"]),
    ],
)
def test_a_seed_is_its_number_in_each_width(library, number, dtypes):
    """A seed is a number modulo 2^64, whatever the type that holds it: -1 is 2^64 - 1."""
    right = seeds_of(LIBRARIES["numpy"](), number % 2**64, "u64")
    for dtype in dtypes:
        assert seeds_of(library, number, dtype) == right, dtype
    logits, position = np.zeros((1, 4096), np.float32), np.array([3])
    assert spec_ops.sample_logits(logits, position, 1.0, number).tokens.item() == right
    for kind in (np.int32, np.uint32, np.int64):
        if np.iinfo(kind).min <= number <= np.iinfo(kind).max:
            assert spec_ops.sample_logits(logits, position, 1.0, kind(number)).tokens.item() == right


def test_seeds_of_other_bits_draw_otherwise(library):
    """-1 in 32 bits is the number of 64 bits, not 2^32 - 1."""
    assert seeds_of(library, -1, "i32") != seeds_of(library, 2**32 - 1, "u32")
