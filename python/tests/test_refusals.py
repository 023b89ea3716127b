"""What is refused, with which exception and sentence."""

import inspect
import os
import pickle
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import need

import spec_ops
from spec_ops._contract import OPERATORS

LOGITS = np.zeros((4, 16), np.float32)


def test_types():
    for logits in (LOGITS.astype(np.float64), LOGITS.astype(np.int32), LOGITS.astype(complex)):
        with pytest.raises(spec_ops.DtypeError, match=r"`x` is .*expected f32 or f16 or bf16"):
            spec_ops.topk_router(logits, topk=1)
    assert issubclass(spec_ops.DtypeError, TypeError)


def test_what_is_no_array():
    for logits in ([[0.0]], "logits", 3.0, object()):
        with pytest.raises(spec_ops.DtypeError, match="expected an array"):
            spec_ops.topk_router(logits, topk=1)
    with pytest.raises(spec_ops.ArgumentError, match=r"`x` is absent.*status 4"):
        spec_ops.topk_router(None, topk=1)


def test_shapes():
    with pytest.raises(spec_ops.ShapeError, match=r"`bias` is \[15\].*\[16\]"):
        spec_ops.topk_router(LOGITS, bias=np.zeros(15, np.float32), topk=1)
    with pytest.raises(spec_ops.ShapeError, match="of 5 dimensions"):
        spec_ops.topk_router(np.zeros((1,) * 5, np.float32), topk=1)
    with pytest.raises(spec_ops.ShapeError):
        spec_ops.topk_router(np.zeros((), np.float32), topk=1)
    out = np.empty((4, 2), np.float32), np.empty((4, 1), np.int32)
    with pytest.raises(spec_ops.ShapeError, match="`weights`"):
        spec_ops.topk_router(LOGITS, topk=1, out=out)


def test_out_is_a_tuple():
    weights, indices = np.empty((4, 1), np.float32), np.empty((4, 1), np.int32)
    assert spec_ops.topk_router(LOGITS, topk=1, out=[weights, None]).weights is weights
    for out in (3, weights, "out"):
        with pytest.raises(TypeError, match="expected a tuple"):
            spec_ops.topk_router(LOGITS, topk=1, out=out)
    with pytest.raises(TypeError, match="more arrays than there are outputs"):
        spec_ops.topk_router(LOGITS, topk=1, out=(weights, indices, None, weights))
    assert spec_ops.indexer_topk(LOGITS, k=1, out=(indices,)).indices is indices


def test_strides():
    """Rows may lie apart; elements of a row may not, since that would need a copy."""
    wide = np.random.default_rng(0).standard_normal((4, 64), np.float32)
    weights, indices, _ = spec_ops.topk_router(wide[:, :16], topk=2)
    packed = spec_ops.topk_router(wide[:, :16].copy(), topk=2)
    assert np.array_equal(indices, packed.indices) and np.array_equal(weights, packed.weights)
    for strided in (wide[:, ::4], wide.T[:16], wide[:, ::-1], wide[::-1]):
        with pytest.raises(spec_ops.StridesError, match="strided"):
            spec_ops.topk_router(strided, topk=2)


def test_options():
    for options in ({"topk": 0}, {"topk": 17}, {"topk": -1}, {"topk": 2**70}, {"topk": "two"}):
        with pytest.raises(spec_ops.ArgumentError, match="`topk`"):
            spec_ops.topk_router(LOGITS, **options)
    with pytest.raises(spec_ops.ArgumentError, match="sigmoid, softmax or sqrt_softplus"):
        spec_ops.topk_router(LOGITS, topk=1, scoring="relu")
    with pytest.raises(spec_ops.ArgumentError, match="`scale`"):
        spec_ops.topk_router(LOGITS, topk=1, scale=float("nan"))
    with pytest.raises(TypeError):
        spec_ops.topk_router(LOGITS, topk=1, tokens=3)
    with pytest.raises(TypeError):
        spec_ops.TopkRouter(topk=1, tokens=3)
    with pytest.raises(TypeError):
        spec_ops.TopkRouter()
    assert issubclass(spec_ops.ArgumentError, ValueError)


def test_errors_have_a_status_and_survive_pickling():
    with pytest.raises(spec_ops.SpecError) as caught:
        spec_ops.topk_router(LOGITS, topk=0)
    assert caught.value.status == 3
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.status) == (str(caught.value), 3)


def test_what_must_not_be_written():
    tokens = np.zeros((1, 8), np.int64)
    drafts, this_time = np.zeros((1, 4), np.int64), np.ones(1, np.int32)
    drafts.flags.writeable = False
    one64, one32 = np.ones(1, np.int64), np.ones(1, np.int32)
    with pytest.raises(spec_ops.ArgumentError, match="`draft_tokens` is read-only"):
        spec_ops.ngram_match(
            tokens, one64, tokens, one64, one64, one32, drafts, this_time, one32, one32, one64
        )
    # What is only read may be.
    logits = LOGITS.copy()
    logits.flags.writeable = False
    assert spec_ops.topk_router(logits, topk=1).indices.tolist() == [[0]] * 4


def test_outputs_over_inputs():
    keys = np.array([3, 1, 3])
    with pytest.raises(spec_ops.ArgumentError, match="memory of its own"):
        spec_ops.unique(keys, out=(keys, None))
    both = np.empty((4, 2), np.float32)
    with pytest.raises(spec_ops.ArgumentError, match="`weights` is in the memory of `indices`"):
        spec_ops.topk_router(LOGITS, topk=2, out=(both, both.view(np.int32)))


def test_a_capsule_is_no_array_twice():
    """Objects that only pretend, and capsules that were used."""

    class Pretends:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    fresh = Pretends(LOGITS.__dlpack__())
    assert spec_ops.topk_router(fresh, topk=1).indices.shape == (4, 1)
    used = LOGITS.__dlpack__()
    np.from_dlpack(Pretends(used))
    for capsule in (used, None, "capsule"):
        with pytest.raises((spec_ops.ArgumentError, TypeError)):
            spec_ops.topk_router(Pretends(capsule), topk=1)

    class Elsewhere(Pretends):
        def __dlpack_device__(self):
            return (7, 0)

    with pytest.raises(spec_ops.ArgumentError, match="host memory or memory of a CUDA device"):
        spec_ops.topk_router(Elsewhere(LOGITS.__dlpack__()), topk=1)


def test_by_pointer_alone():
    """A tensor that knows its `data_ptr` and nothing of DLPack; outputs are brought."""

    class Tensor:
        def __init__(self, array):
            self.array, self.shape, self.dtype, self.device = array, array.shape, array.dtype, "cpu"
            self.strides = [step // array.itemsize for step in array.strides]

        def data_ptr(self):
            return self.array.ctypes.data

    out = np.empty((4, 1), np.float32), np.empty((4, 1), np.int32)
    logits = LOGITS.copy()
    logits[:, 3] = 1
    spec_ops.topk_router(Tensor(logits), topk=1, out=tuple(map(Tensor, out)))
    assert out[1].tolist() == [[3]] * 4
    with pytest.raises(TypeError, match="pass `out`"):
        spec_ops.topk_router(Tensor(logits), topk=1)


def test_jax_arrays_are_values():
    """They are read, results are such arrays, and nothing is written into one."""
    jax = need("jax")
    logits = jax.numpy.asarray(np.eye(4, 16, dtype=np.float32))
    result = spec_ops.topk_router(logits, topk=1)
    assert isinstance(result.indices, jax.Array) and isinstance(result.weights, jax.Array)
    assert result.indices.tolist() == [[0], [1], [2], [3]]
    half = spec_ops.topk_router(logits.astype(jax.numpy.bfloat16), topk=1)
    assert half.indices.tolist() == result.indices.tolist()
    with pytest.raises(spec_ops.ArgumentError, match="`weights` is read-only"):
        spec_ops.topk_router(logits, topk=1, out=(result.weights, None))


def test_plans_refuse_what_they_were_not_made_for():
    plan = spec_ops.TopkRouter(topk=1).plan(LOGITS)
    assert plan.device == "cpu" and "topk_router" in repr(plan)
    with pytest.raises(spec_ops.ShapeError, match=r"`x` is f32 \[3, 16\].*as planned"):
        plan(LOGITS[:3])
    with pytest.raises(spec_ops.DtypeError, match=r"`x` is f16 \[4, 16\].*as planned"):
        plan(LOGITS.astype(np.float16))
    wide = np.zeros((4, 32), np.float32)[:, :16]
    with pytest.raises(spec_ops.StridesError, match=r"strides \[32, 1\].*strides \[16, 1\]"):
        plan(wide)
    with pytest.raises(spec_ops.ArgumentError, match=r"`x` is absent, .*as planned"):
        plan()
    with pytest.raises(spec_ops.ShapeError, match=r"`bias` .*absent, as planned"):
        plan(LOGITS, bias=np.zeros(16, np.float32))
    with pytest.raises(TypeError):
        plan(*[LOGITS] * 20)
    with pytest.raises(TypeError, match="`nothing` is unknown, expected one of x, bias"):
        spec_ops.TopkRouter(topk=1).plan(LOGITS, nothing=LOGITS)


def test_nothing_at_all():
    """No tokens, no keys: results of that size."""
    assert spec_ops.topk_router(LOGITS[:0], topk=2).indices.shape == (0, 2)
    assert spec_ops.unique(np.zeros(0, np.int64)).count.tolist() == [0]


def test_many_threads_share_a_plan():
    """Calls let go of Python; each has a workspace of its own."""
    keys = [np.random.default_rng(i).integers(0, 5000, 100_000) for i in range(8)]
    plan = spec_ops.Unique().plan(keys[0])

    def work(each):
        for _ in range(5):
            made = plan(each)
            assert np.array_equal(made.unique[: int(made.count[0])], np.unique(each))

    with ThreadPoolExecutor(len(keys)) as threads:
        # What a thread raises is raised here.
        list(threads.map(work, keys))


def python(program, **environment):
    """Runs a program in another Python, where these are set."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_forked_processes_compute():
    """Threads do not survive a fork; a child, and a child's child, have their own."""
    done = python(
        """
        import os, numpy as np, spec_ops
        keys = np.random.default_rng(0).integers(0, 9999, 300_000)
        def check():
            distinct, count, *_ = spec_ops.unique(keys)
            assert np.array_equal(distinct[:int(count[0])], np.unique(keys))
        check()
        for _ in range(2):
            child = os.fork()
            if child:
                os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            check()
        check()
        """
    )
    assert done.returncode == 0, done.stderr


def test_import_without_anything():
    """Neither torch nor numpy nor a driver is asked for by importing."""
    done = python(
        """
        import sys
        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("torch", "numpy", "cupy", "jax"):
                    raise ImportError(name)
        sys.meta_path.insert(0, Absent())
        def has_driver():
            with open("/proc/self/maps") as maps:
                return "libcuda" in maps.read()
        # Some machines load it into every process.
        before = has_driver()
        import spec_ops
        assert has_driver() == before
        print(spec_ops.devices()["cpu"][0]["device"])
        """
    )
    assert (done.stdout, done.returncode) == ("cpu\n", 0), done.stderr


def test_without_a_driver_and_with_a_broken_one(tmp_path):
    """A reason, not a crash; the CPU works as before."""
    program = """
        import numpy as np, spec_ops
        said = spec_ops.devices()["cuda"]
        assert isinstance(said, str) and "status" in said, said
        assert spec_ops.unique(np.array([2, 1])).unique.tolist() == [1, 2]
        print(said)
        """
    (tmp_path / "libcuda.so.1").write_text("no library")
    (tmp_path / "libcuda.so").write_text("no library")
    done = python(program, LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    stub = tmp_path / "stub"
    stub.mkdir()
    built = subprocess.run(
        ["cc", "-shared", "-o", stub / "libcuda.so.1", "-x", "c", "/dev/null"], check=False
    )
    if built.returncode:
        pytest.skip("no C compiler for a library that has nothing in it")
    (stub / "libcuda.so").symlink_to("libcuda.so.1")
    done = python(program, LD_LIBRARY_PATH=str(stub))
    assert done.returncode == 0, done.stderr


def test_all_that_the_contract_has_is_there():
    """Each function takes what is required by position or name, everything else by name, and each
    name is the contract's."""
    for name, contract in OPERATORS.items():
        known = inspect.signature(getattr(spec_ops, name)).parameters
        by_position = [one.name for one in known.values() if one.kind is not one.KEYWORD_ONLY]
        assert by_position == [argument.name for argument in contract.required], name
        options = [option.name for option in contract.options]
        others = [*options, *contract.extents, *(one.name for one in contract.optional)]
        assert list(known) == [*by_position, *others, *["out"] * bool(contract.outputs)], name
        for option in contract.options:
            missing = known[option.name].default is inspect.Parameter.empty
            assert missing == option.required and (missing or known[option.name].default == option.default)


def test_defaults_are_the_contract_s():
    """Of the library: a call with each default said is the call without."""
    assert spec_ops.TopkRouter(topk=1).options["scoring"] == "softmax"
    assert spec_ops.MoeAlign(experts=6, block_size=4).options["local_experts"] == 6
    assert spec_ops.MoeAlign(experts=6, block_size=4, local_experts=2).options["local_experts"] == 2
    with pytest.raises(TypeError, match="max_spec_len"):
        spec_ops.RejectionSample()
    for scoring in ("sigmoid", "softmax"):
        weights = spec_ops.topk_router(LOGITS, topk=1, renormalize=False, scoring=scoring).weights
        assert weights[0, 0] == (0.5 if scoring == "sigmoid" else 1 / 16)
    assert spec_ops.topk_router(LOGITS, topk=1, renormalize=False).weights[0, 0] == 1 / 16


def test_unknown_names_are_answered_by_the_known():
    """In functions, classes, plans, and their calls."""
    options = "topk, scoring, select, groups"
    for call, names in (
        (lambda: spec_ops.topk_router(LOGITS, topk=1, scorign="softmax"), f"x, {options}"),
        (lambda: spec_ops.TopkRouter(topk=1, scorign="softmax"), options),
        (lambda: spec_ops.TopkRouter(topk=1).plan(LOGITS, scorign=LOGITS), "x, bias, num_tokens"),
        (lambda: spec_ops.TopkRouter(topk=1).plan(LOGITS)(LOGITS, scorign=LOGITS), "x, bias"),
    ):
        with pytest.raises(spec_ops.SignatureError, match=f"topk_router: `scorign` .*one of {names}"):
            call()
    with pytest.raises(spec_ops.SignatureError, match="`x` was passed twice"):
        spec_ops.TopkRouter(topk=1).plan(LOGITS, x=LOGITS)


def test_wrong_values_are_answered_by_the_known():
    """Of every kind of option."""
    wrong = {
        "topk": ("1", "a whole number that is not negative"),
        "scoring": ("softmox", "sigmoid, softmax or sqrt_softplus"),
        "renormalize": (1, "true or false"),
        "scale": ("one", "a number"),
        "physical_experts": (-1, "a whole number that is not negative, or none"),
    }
    for name, (value, expected) in wrong.items():
        said = f"topk_router: `{name}` is {value}, expected {expected}"
        for call in (spec_ops.TopkRouter, lambda **options: spec_ops.topk_router(LOGITS, **options)):
            with pytest.raises(spec_ops.ArgumentError, match=said):
                call(**{"topk": 1, name: value})
    with pytest.raises(spec_ops.ArgumentError, match="`token_threshold` .*of 32 bits"):
        spec_ops.NgramMatch(token_threshold=2**31)


def test_outputs_that_are_asked_for():
    """By a bool of their name, beside `out` too; None in the result where they are not."""
    rows = np.array([[7, 3]], np.int32)
    assert spec_ops.deduplicate_topk(rows).counts is None
    assert spec_ops.deduplicate_topk(rows, counts=True).counts.tolist() == [2]
    mine = np.empty((1, 2), np.int32)
    for out in ((mine,), (mine, None), [mine]):
        made = spec_ops.deduplicate_topk(rows, counts=True, out=out)
        assert made.unique is mine and made.counts.tolist() == [2]
        assert spec_ops.deduplicate_topk(rows, out=out).counts is None
    assert spec_ops.deduplicate_topk(rows, inverse=True).inverse.tolist() == [[1, 0]]
    counts = np.empty(1, np.int32)
    made = spec_ops.deduplicate_topk(rows, counts=True, out=(None, counts))
    assert made.counts is counts and made.unique.tolist() == [[3, 7]]
    plan = spec_ops.DeduplicateTopk().plan(rows, counts=True)
    assert plan(rows).counts.tolist() == [2]
    assert spec_ops.DeduplicateTopk().plan(rows)(rows).counts is None
    with pytest.raises(TypeError, match="expected a tuple"):
        spec_ops.deduplicate_topk(rows, counts=True, out=mine)
