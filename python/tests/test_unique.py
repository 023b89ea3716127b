"""`torch_unique` beside `torch.unique`, and the inverse of `unique`."""

import numpy as np
import pytest
import spec_ops
from conftest import need

torch = need("torch", whole_file=True)

SHAPES = [(0,), (1,), (7,), (5000,), (3, 4), (2, 3, 4), (2, 0, 3), ()]


def some(shape, dtype, layout):
    generator = torch.Generator().manual_seed(len(shape))
    keys = torch.randint(-9, 9, (*shape, 2), generator=generator, dtype=dtype)
    keys = keys * 2**20 + keys
    # Every second element, or whole memory.
    return keys[..., 0] if layout == "strided" else keys[..., 0].contiguous()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["packed", "strided"])
def test_results_are_those_of_torch_unique(shape, dtype, layout):
    """In type, shape, order and number, for each choice of results."""
    keys = some(shape, dtype, layout)
    for places in (False, True):
        for counts in (False, True):
            chosen = {"return_inverse": places, "return_counts": counts}
            made, right = spec_ops.torch_unique(keys, **chosen), torch.unique(keys, **chosen)
            assert isinstance(made, tuple) == isinstance(right, tuple) == (places or counts)
            made, right = (one if isinstance(one, tuple) else (one,) for one in (made, right))
            assert len(made) == len(right)
            for one, other in zip(made, right):
                assert one.dtype == other.dtype and one.shape == other.shape
                assert torch.equal(one, other)


def test_places_of_32_bits_are_the_callers():
    """The caller brings an array of i32, which fits places of as many keys."""
    keys = np.array([30, 10, 20, 10], np.uint64)
    places = np.full(4, -7, np.int32)
    made = spec_ops.unique(keys, out=(None, None, None, places))
    assert made.inverse is places and places.tolist() == [2, 0, 1, 0]
    with pytest.raises(spec_ops.DtypeError, match="`inverse` is u32, expected i64 or i32"):
        spec_ops.unique(keys, out=(None, None, None, places.view(np.uint32)))


@pytest.mark.parametrize("n", [16384, 16385, 100_000])
def test_numpy_agrees(n):
    """Around the number of keys from which lookups have tables."""
    keys = np.random.default_rng(n).integers(0, 2**64 - 1, n, dtype=np.uint64, endpoint=True)
    made = spec_ops.unique(keys, inverse=True)
    distinct, places = np.unique(keys, return_inverse=True)
    assert np.array_equal(made.unique[: int(made.count[0])], distinct)
    assert np.array_equal(made.inverse, places)


@pytest.mark.parametrize("keys", [[3, 1, 3], (3, 1), 3, "31", {3: 1}, np.int64(3)])
def test_what_is_no_array_is_refused(keys):
    """With the package's own exception, as by every function."""
    with pytest.raises(spec_ops.DtypeError, match="`keys` is a"):
        spec_ops.torch_unique(keys)
    with pytest.raises(spec_ops.ArgumentError, match="`keys` is absent"):
        spec_ops.torch_unique(None)


def test_other_exceptions_are_causes():
    """What an array's library raises is the cause of an exception of this package."""
    with pytest.raises(spec_ops.DtypeError, match="`keys` cannot be read") as raised:
        spec_ops.torch_unique(torch.eye(3, dtype=torch.int64).to_sparse())
    assert raised.value.__cause__ is not None
    with pytest.raises(spec_ops.DtypeError, match="`keys` is f32"):
        spec_ops.torch_unique(np.ones(3, np.float32))


def test_an_array_without_ravel():
    """Of a library that has DLPack and nothing else."""

    class Own:
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **how):
            return self.array.__dlpack__(**how)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    keys, counts = spec_ops.torch_unique(Own(np.array([3, 1, 3])), return_counts=True)
    assert keys.tolist() == [1, 3] and counts.tolist() == [1, 2]
