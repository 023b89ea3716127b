"""Several operators by one call."""

import copy
import pickle
import threading

import numpy as np
import pytest
import spec_ops
from conftest import need, need_cuda
from spec_ops import Pipeline, SampleLogits, TopkRouter, TreeVerify

RNG = np.random.default_rng(5)
DRAWN_FROM = ("logits", "positions", "temperature", "seeds")


def verify(**results):
    """Draws a token in each row, and follows the drafts."""
    following = {"draft_tokens": "drafts", "target_tokens": "target", "row_offsets": "offsets"}
    return Pipeline(
        (*DRAWN_FROM, "requests", "drafts", "offsets", "flags"),
        [(SampleLogits(), {"tokens": "target"}), (TreeVerify(max_depth=3), following)],
        results={"tokens": "i64", "num_tokens": None, **results},
        first={"positions": "logits", "drafts": "logits"},
    )


def a_step(requests=3, drafts=3, vocab=4, more=0):
    """The arrays of a step: rows of `drafts` + 1 for each request. Few tokens, so that drafts are
    accepted."""
    rows = requests * (drafts + 1)
    return {
        "logits": RNG.standard_normal((rows, vocab), np.float32),
        "positions": np.arange(rows + more),
        "temperature": np.ones(requests, np.float32),
        "seeds": np.arange(requests, dtype=np.int64) + 7,
        "requests": np.repeat(np.arange(requests, dtype=np.int32), drafts + 1),
        "drafts": RNG.integers(0, vocab, rows + more, dtype=np.int32),
        "offsets": np.arange(0, rows + 1, drafts + 1, dtype=np.int32),
    }


def apart(step):
    """The tokens, and the result of the second operator, by two functions."""
    rows = len(step["logits"])
    drawn_from = [step["logits"], step["positions"][:rows], step["temperature"], step["seeds"]]
    target = spec_ops.sample_logits(*drawn_from, requests=step["requests"]).tokens
    followed = spec_ops.tree_verify(
        step["drafts"][:rows], target, row_offsets=step["offsets"], max_depth=3
    )
    return target, followed


@pytest.mark.parametrize("library", ["numpy", "torch", "cuda"])
def test_a_step_is_that_of_two_functions(library):
    """For changing shapes, with more positions and drafts than rows, by position and by name."""
    if library == "cuda":
        need_cuda(need("torch"))
    place = lambda array: array
    if library != "numpy":
        torch = need("torch")
        device = "cuda" if library == "cuda" else "cpu"
        place = lambda array: torch.from_numpy(array).to(device)
    pipeline, accepted = verify(), 0
    for requests in (3, 1, 40, 3):
        step = a_step(requests, more=requests)
        target, followed = apart(step)
        placed = {name: place(array) for name, array in step.items()}
        for tokens, counts in (pipeline(*placed.values()), pipeline(**placed)):
            assert str(tokens.dtype).endswith("int64") and str(counts.dtype).endswith("int32")
            assert tokens.tolist() == followed.tokens.tolist()
            assert counts.tolist() == followed.num_tokens.tolist()
        accepted += int((followed.num_tokens > 1).sum())
    assert accepted, "no draft was accepted"


def test_arrays_between_stages_are_results_if_asked_for():
    """Or go where the call says."""
    step = a_step()
    target, followed = apart(step)
    tokens, counts, between = verify(target=None)(**step)
    assert between.dtype == np.int32 and np.array_equal(between, target)
    assert np.array_equal(tokens, followed.tokens) and np.array_equal(counts, followed.num_tokens)
    names = (*DRAWN_FROM, "tokens")
    given = Pipeline(names, [SampleLogits()])
    plain = {name: step[name] for name in DRAWN_FROM}
    plain["temperature"], plain["seeds"] = np.ones(12, np.float32), np.arange(12)
    out = np.full(12, -5)
    assert given(**plain, tokens=out) is None
    assert np.array_equal(out, spec_ops.sample_logits(**plain).tokens)
    assert given(**plain) is None  # nobody asks for what is drawn


def test_one_result_is_no_tuple_and_flags_are_shared():
    step = a_step()
    step["temperature"][1] = -1
    step["offsets"][-1] = 99
    pipeline, flags = verify(), np.zeros(1, np.uint32)
    pipeline(**step, flags=flags)
    assert flags[0] == 4
    one = Pipeline(DRAWN_FROM, [SampleLogits()], results={"tokens": None})
    made = one(step["logits"][:3], step["positions"][:3], step["temperature"], step["seeds"])
    assert isinstance(made, np.ndarray) and made.dtype == np.int32


def test_absent_arrays():
    """None, or fewer by position: as the function without them."""
    names = (*DRAWN_FROM, "top_k", "probs")
    pipeline = Pipeline(names, [SampleLogits()], results={"tokens": None})
    step = a_step()
    arrays = [step["logits"][:3], step["positions"][:3], step["temperature"], step["seeds"]]
    right = spec_ops.sample_logits(*arrays).tokens
    assert np.array_equal(pipeline(*arrays), right) and np.array_equal(pipeline(*arrays, None), right)
    top_k, probs = np.ones(3, np.int32), np.empty((3, 4), np.float32)
    chosen = pipeline(*arrays, top_k, probs)
    assert np.array_equal(chosen, arrays[0].argmax(1)) and np.array_equal(probs.argmax(1), chosen)


def test_outputs_that_nobody_reads_or_passes():
    """A required output is kept; of a router only one is a result."""
    logits = RNG.standard_normal((5, 8), np.float32)
    pipeline = Pipeline(["x"], [TopkRouter(topk=2)], results={"indices": None})
    assert np.array_equal(pipeline(logits), spec_ops.topk_router(logits, topk=2).indices)


MADE_WRONG = {
    r"no stage uses `more`": lambda: Pipeline(["x", "more"], [TopkRouter(topk=2)]),
    r"no stage writes `more`": lambda: Pipeline(["x"], [TopkRouter(topk=2)], results={"more": None}),
    r"nobody passes topk_router its `x`": lambda: Pipeline([], [TopkRouter(topk=2)]),
    r"topk_router has no argument `y`": lambda: Pipeline(["x"], [(TopkRouter(topk=2), {"y": "x"})]),
    r"`x` is named twice": lambda: Pipeline(["x", "x"], [TopkRouter(topk=2)]),
    r"`indices` is of no type `i16`": lambda: Pipeline(
        ["x"], [TopkRouter(topk=2)], results={"indices": "i16"}
    ),
    r"no call passes `y`": lambda: Pipeline(["x"], [TopkRouter(topk=2)], first={"x": "y"}),
    r"topk_router reads `bias` before a stage writes it": lambda: Pipeline(
        ["x"], [TopkRouter(topk=2)], results={"bias": None}
    ),
    # An optional argument that a stage names is there.
    r"nobody passes topk_router its `biased`": lambda: Pipeline(
        ["x"], [(TopkRouter(topk=2), {"bias": "biased"})]
    ),
    r"nobody takes `picks` from topk_router": lambda: Pipeline(
        ["x"], [(TopkRouter(topk=2), {"logical": "picks"})]
    ),
    r"topk_router writes `indices`, as a stage before it does": lambda: Pipeline(
        ["x", "y"], [TopkRouter(topk=2), (TopkRouter(topk=2), {"x": "y", "weights": "more"})]
    ),
    r"a stage is x, expected an operator, or a pair": lambda: Pipeline(["x"], ["x"]),
    r"a stage is .*, 1\), expected an operator": lambda: Pipeline(["x"], [(TopkRouter(topk=2), {}, 1)]),
    r"a result is indices: 4, expected a name": lambda: Pipeline(
        ["x"], [TopkRouter(topk=2)], results={"indices": 4}
    ),
}
STEP = a_step()
CALLED_WRONG = {
    r"Pipeline: at most 8 arrays": (spec_ops.SignatureError, lambda: verify()(*range(9))),
    r"`nothing` is unknown, expected one of logits, ": (
        spec_ops.SignatureError,
        lambda: verify()(**STEP, nothing=1),
    ),
    r"`logits` was passed twice": (
        spec_ops.SignatureError,
        lambda: verify()(STEP["logits"], **STEP),
    ),
    r"no array was passed": (spec_ops.SignatureError, lambda: verify()()),
    r"sample_logits: `seeds` is absent": (
        spec_ops.ArgumentError,
        lambda: verify()(**STEP | {"seeds": None}),
    ),
    r"sample_logits: `temperature` is a <class 'float'>": (
        spec_ops.DtypeError,
        lambda: verify()(**STEP | {"temperature": 1.0}),
    ),
    r"sample_logits: `positions` is": (
        spec_ops.ShapeError,
        lambda: verify()(**STEP | {"positions": np.arange(3)}),
    ),
    r"tree_verify: `row_offsets` is .* expected i32 or i64": (
        spec_ops.DtypeError,
        lambda: verify()(**STEP | {"offsets": np.zeros(4, np.float32)}),
    ),
}


@pytest.mark.parametrize("words", MADE_WRONG)
def test_pipelines_that_are_refused(words):
    with pytest.raises(spec_ops.SignatureError, match=words):
        MADE_WRONG[words]()


@pytest.mark.parametrize("words", CALLED_WRONG)
def test_calls_that_are_refused(words):
    error, call = CALLED_WRONG[words]
    with pytest.raises(error, match=words):
        call()


def test_arrays_that_must_not_be_written():
    pipeline = Pipeline((*DRAWN_FROM, "tokens"), [SampleLogits()])
    step = a_step()
    out = np.zeros(3, np.int64)
    out.flags.writeable = False
    arrays = [step["logits"][:3], step["positions"][:3], step["temperature"], step["seeds"], out]
    with pytest.raises(spec_ops.ArgumentError, match="`tokens` is read-only"):
        pipeline(*arrays)
    torch = need("torch")
    arrays = [torch.from_numpy(array) for array in arrays[:4]]
    before, scores = torch.zeros(3, dtype=torch.int64), torch.zeros(3, requires_grad=True)
    pipeline(*arrays, before)
    assert before._version == 1
    scored = Pipeline((*DRAWN_FROM, "logprobs"), [SampleLogits()])
    with pytest.raises(spec_ops.ArgumentError, match="`logprobs` is a leaf that requires grad"):
        scored(*arrays, scores)


def test_pipelines_pickle_and_copy():
    pipeline, step = verify(), a_step()
    right = pipeline(**step)
    assert repr(pipeline) == "<pipeline of sample_logits, tree_verify>"
    for again in (pickle.loads(pickle.dumps(pipeline)), copy.copy(pipeline), copy.deepcopy(pipeline)):
        assert again is not pipeline and repr(again) == repr(pipeline)
        assert all(np.array_equal(*pair) for pair in zip(again(**step), right))


def test_threads_share_a_pipeline():
    """What lies between the stages is each call's own."""
    pipeline, steps, wrong = verify(), [a_step(requests) for requests in (5, 5, 5, 5)], []
    right = [[array.tolist() for array in pipeline(**step)] for step in steps]

    def work(step, right):
        for _ in range(300):
            if [array.tolist() for array in pipeline(**step)] != right:
                wrong.append(right)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(steps, right)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_graph_outlives_calls_of_other_shapes():
    """The memory that a graph was captured with stays where it is."""
    torch = need("torch")
    need_cuda(torch)
    pipeline, graph, stream = verify(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    place = lambda step: {name: torch.from_numpy(array).cuda() for name, array in step.items()}
    placed, new = place(a_step()), a_step()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        pipeline(**placed)
        with torch.cuda.graph(graph, stream=stream):
            tokens, counts = pipeline(**placed)
        for requests in (9, 300, 40):
            pipeline(**place(a_step(requests)))
        for name, array in placed.items():
            array.copy_(torch.from_numpy(new[name]))
        graph.replay()
        stream.synchronize()
    _, followed = apart(new)
    assert np.array_equal(tokens.cpu(), followed.tokens)
    assert np.array_equal(counts.cpu(), followed.num_tokens)
