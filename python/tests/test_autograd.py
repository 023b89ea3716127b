"""torch's autograd learns of what calls write: stale gradients are errors, as for torch's own."""

import numpy as np
import pytest
from conftest import need, need_cuda

torch = need("torch", whole_file=True)

import spec_ops  # noqa: E402
import spec_ops.torch  # noqa: E402


@pytest.fixture(params=["cpu", "cuda"], autouse=True)
def device(request):
    if request.param == "cuda":
        need_cuda(torch)
    with torch.device(request.param):
        yield request.param


def text():
    """A text of the tokens 0 to 2, all of them generated: tokens, prompt's length, length."""
    return torch.tensor([[0, 1, 2]]), torch.tensor([0]), torch.tensor([3])


def by_function(logits):
    spec_ops.adjust_logits(logits, *text(), presence=1.0)


def by_plan(logits):
    like = torch.zeros(logits.shape)
    one = torch.ones(1)
    spec_ops.AdjustLogits().plan(like, *text(), presence=one)(logits, *text(), presence=one)


def by_torch(logits):
    torch.ops.spec_ops.adjust_logits(logits, *text(), presence=torch.ones(1))


WAYS = [by_function, by_plan, by_torch]


@pytest.mark.parametrize("way", WAYS)
def test_a_result_that_backward_needs_was_changed(way):
    """The gradient of e^x is its result, which is another after the call: 1.718 for 2.718."""
    x = torch.ones(1, 3, requires_grad=True)
    y = x.exp()
    way(y)
    torch.testing.assert_close(y, torch.full((1, 3), np.e - 1, dtype=torch.float32))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_a_leaf_that_requires_grad_is_refused(way):
    leaf = torch.ones(1, 3, requires_grad=True)
    parameter = torch.nn.Parameter(torch.ones(1, 3))
    for written in (leaf, leaf[:], leaf.view(1, 3), parameter):
        with pytest.raises(spec_ops.ArgumentError, match="adjust_logits: `logits` is a leaf"):
            way(written)
        assert written.tolist() == [[1.0, 1.0, 1.0]]
    # As torch's own functions in place: where no gradient is kept, it may be changed.
    for context in (torch.no_grad, torch.inference_mode):
        before = leaf._version
        with context():
            way(leaf)
        assert leaf._version > before
    assert leaf.tolist() == [[-1.0, -1.0, -1.0]]
    way(torch.ones(1, 3))


def test_outputs_that_are_given_are_marked():
    logits, position, one = torch.zeros(2, 9), torch.tensor([3, 4]), torch.ones(2)
    seeds, flags = torch.tensor([5, 6]), torch.zeros(1, dtype=torch.int32)
    tokens, probs = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 9)
    read = (logits, position, one, seeds)
    out = (tokens, probs) if list_of_outputs()[1] == "probs" else (tokens,)
    versions = [tensor._version for tensor in (*out, flags, *read)]
    spec_ops.sample_logits(*read, flags=flags, out=out)
    after = [tensor._version for tensor in (*out, flags, *read)]
    written = len(out) + 1
    assert all(new > old for new, old in zip(after[:written], versions[:written]))
    assert after[written:] == versions[written:]
    probs = torch.zeros(2, 9, requires_grad=True)
    with pytest.raises(spec_ops.ArgumentError, match="sample_logits: `probs` is a leaf"):
        spec_ops.sample_logits(*read, out=(None, probs))


def list_of_outputs():
    from spec_ops._contract import OPERATORS

    return [output.name for output in OPERATORS["sample_logits"].outputs]


def test_tensors_of_inference_mode_may_be_written():
    with torch.inference_mode():
        logits = torch.ones(1, 3)
        by_function(logits)
    by_function(logits)
    assert logits.tolist() == [[-1.0, -1.0, -1.0]]


def test_an_in_place_call_on_a_view_marks_its_base():
    base = torch.ones(2, 3)
    before = base._version
    by_function(base[1:])
    assert base._version > before and base[0].tolist() == [1.0, 1.0, 1.0]
