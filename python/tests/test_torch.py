"""`spec_ops.torch`: checks by torch itself, compilation, and CUDA graphs."""

import pytest
from conftest import Torch, golden, need
from test_golden import CLASSES, OPERATORS, extents_of, inputs_of, options_of
from test_refusals import python

torch = need("torch", whole_file=True)

import spec_ops
import spec_ops.torch

DEVICES = ["cpu", "cuda"]


@pytest.fixture(params=DEVICES)
def library(request):
    return Torch(request.param)


def a_call(operator, library, which=0):
    """A golden case as a call of the function: arguments by name."""
    case = golden(operator)[which]
    values = options_of(operator, case["params"]) | extents_of(operator, case)
    return inputs_of(operator, case, library) | values


def split(operator, call):
    """What torch passes by position, and what by name."""
    required = [argument.name for argument in OPERATORS[operator].required]
    args = tuple(call[name] for name in required)
    return args, {name: value for name, value in call.items() if name not in required}


@pytest.mark.parametrize("operator", OPERATORS)
def test_opcheck(operator, library):
    """Schema, what is mutated, shapes while tracing: by torch's own checks."""
    if operator == "unique":
        # What lies behind the count is unspecified, and opcheck compares it: all distinct.
        args = (torch.arange(9, 0, -1, device=library.device),)
        kwargs = {"counts": True, "inverse": True}
    else:
        args, kwargs = split(operator, a_call(operator, library))
    done = torch.library.opcheck(getattr(torch.ops.spec_ops, operator).default, args, kwargs)
    assert set(done.values()) == {"SUCCESS"}


@pytest.mark.parametrize("operator", OPERATORS)
def test_compiles_whole(operator, library):
    """Under `torch.compile(fullgraph=True)` results are the same bits."""
    torch._dynamo.reset()  # what is compiled here by itself is inside of a function elsewhere
    function = getattr(spec_ops.torch, operator)
    eager, compiled = a_call(operator, library), a_call(operator, library)
    if operator == "unique":
        eager = compiled = {"keys": torch.arange(9, 0, -1, device=library.device)}
    expected = function(**eager)
    # The whole compiler where it needs none of its own and no long time; else all but the last step.
    whole = library.device == "cuda" and operator in ("topk_router", "ngram_match")
    backend = "inductor" if whole else "aot_eager"
    results = torch.compile(function, fullgraph=True, backend=backend)(**compiled)
    for name, tensor in eager.items():  # in place
        if isinstance(tensor, torch.Tensor):
            assert torch.equal(tensor, compiled[name]), name
    for one, other in zip(flat(expected), flat(results), strict=True):
        assert torch.equal(one, other)


def flat(results):
    results = results if isinstance(results, tuple) else (results,)
    return [one for one in results if one is not None]


def test_compiles_for_any_number_of_tokens(library):
    """One compiled function for batches of any size."""
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounter()

    def route(logits):
        weights, indices, _ = spec_ops.torch.topk_router(logits * 2, topk=2)
        return weights + 1, indices

    compiled = torch.compile(route, fullgraph=True, dynamic=True, backend=graphs)
    for tokens in (3, 5, 17):
        logits = torch.randn(tokens, 16, device=library.device)
        for one, other in zip(route(logits), compiled(logits), strict=True):
            assert torch.equal(one, other)
    assert graphs.frame_count == 1


@pytest.mark.parametrize("operator", OPERATORS)
def test_captured_on_a_side_stream(operator):
    """A plan is captured into a CUDA graph on a side stream; replays see new inputs."""
    library = Torch("cuda")
    case = golden(operator)[0]
    inputs = inputs_of(operator, case, library)
    options = options_of(operator, case["params"]) | extents_of(operator, case)
    plan = CLASSES[operator](**options).plan(**inputs)
    kept = copied(inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        plan(**kept)  # the workspace of this stream
        stream.synchronize()
        restore(kept, inputs)
        with torch.cuda.graph(graph, stream=stream):
            captured = flat(plan(**kept))
    torch.cuda.synchronize()
    for _ in range(3):
        restore(kept, inputs)
        for tensor in captured:
            tensor.fill_(7)
        graph.replay()
        torch.cuda.synchronize()
        fresh = copied(inputs)
        expected = flat(plan(**fresh))
        torch.cuda.synchronize()
        if operator == "unique":
            count = int(expected[1])
            expected, seen = [expected[0][:count], expected[1]], [captured[0][:count], captured[1]]
        else:
            seen = captured
        for one, other in zip(expected, seen, strict=True):
            assert torch.equal(one, other)
        for name, one in fresh.items():
            assert one is kept[name] is None or torch.equal(one, kept[name])


def copied(inputs):
    return {name: None if one is None else one.clone() for name, one in inputs.items()}


def restore(tensors, values):
    for name, tensor in tensors.items():
        if tensor is not None:
            tensor.copy_(values[name])


def test_functions_are_captured_too():
    """A function allocates from the graph's own memory."""
    library = Torch("cuda")
    logits = torch.randn(64, 256, device=library.device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        captured = spec_ops.topk_router(logits, topk=8)
        distinct = spec_ops.deduplicate_topk(captured.indices)
    for seed in range(3):
        logits.copy_(torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        expected = spec_ops.topk_router(logits.cpu(), topk=8)
        assert torch.equal(captured.indices.cpu(), expected.indices)
        assert torch.equal(distinct.unique.cpu(), expected.indices.sort().values)


def test_work_goes_to_the_current_stream():
    """Results are ordered by the stream that is current, without any wait."""
    library = Torch("cuda")
    # What is loaded at a first call may wait for what runs.
    spec_ops.topk_router(torch.zeros(4, 16, device=library.device), topk=1)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        logits = torch.zeros(4, 16, device=library.device)
        logits[:, 5] = 1.0  # after the sleep
        indices = spec_ops.topk_router(logits, topk=1).indices
    assert not stream.query(), "the call waited"
    stream.synchronize()
    assert indices.tolist() == [[5]] * 4


def test_streams_have_workspaces_of_their_own():
    """One plan on two streams at once gives on each what it gives alone."""
    library = Torch("cuda")
    keys = [torch.randint(0, 1000, (200_000,), device=library.device) for _ in range(2)]
    plan = spec_ops.Unique().plan(keys[0])
    expected = [torch.unique(each) for each in keys]
    torch.cuda.synchronize()
    streams, results = [torch.cuda.Stream(), torch.cuda.Stream()], [None, None]
    for _ in range(20):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i] = plan(keys[i])
    torch.cuda.synchronize()
    for result, right in zip(results, expected):
        assert torch.equal(result.unique[: int(result.count)], right)


def test_a_tensor_on_another_device_is_refused():
    library = Torch("cuda")
    logits = torch.zeros(4, 16, device=library.device)
    with pytest.raises(spec_ops.ArgumentError, match=r"`bias` is host memory, expected memory on"):
        spec_ops.topk_router(logits, bias=torch.zeros(16), topk=1)
    plan = spec_ops.TopkRouter(topk=1).plan(logits)
    with pytest.raises(spec_ops.ArgumentError, match="as planned"):
        plan(logits.cpu())


def test_an_older_torch():
    """Without DLPack's table of functions tensors are read by capsules."""
    done = python(
        """
        import torch, spec_ops
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            del torch.Tensor.__dlpack_c_exchange_api__
        for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
            logits = torch.eye(4, 16, device=device)
            stream = torch.cuda.Stream() if device == "cuda" else None
            with torch.cuda.stream(stream):
                for kind in (torch.float32, torch.float16, torch.bfloat16):
                    indices = spec_ops.topk_router(logits.to(kind), topk=1).indices
                    assert indices.tolist() == [[0], [1], [2], [3]] and indices.device == logits.device
                assert spec_ops.unique(torch.tensor([3, 1], device=device)).unique.tolist() == [1, 3]
        """
    )
    assert done.returncode == 0, done.stderr


def test_storage_that_was_freed_is_refused(library):
    """A tensor whose memory went away has a null pointer."""
    logits = torch.zeros(4, 16, device=library.device)
    logits.untyped_storage().resize_(0)
    with pytest.raises(spec_ops.ArgumentError, match=r"status 4"):
        spec_ops.topk_router(logits, topk=1)


def test_unsigned_numbers_in_signed_tensors(library):
    """Seeds and flags may be signed: the same bits."""
    logits = torch.zeros(1, 50, device=library.device)
    one = torch.ones(1, device=library.device)
    position = torch.tensor([3], device=library.device)
    for seed in (7, -7):
        signed = torch.tensor([seed], device=library.device)
        a = spec_ops.sample_logits(logits, position, one, signed)
        b = spec_ops.sample_logits(logits, position, one, signed.view(torch.uint64))
        assert torch.equal(a.tokens, b.tokens)
    flags = torch.zeros(1, dtype=torch.int32, device=library.device)
    spec_ops.sample_logits(logits * float("nan"), position, one, signed, flags=flags)
    assert flags.item() == 1
