"""The golden vectors, through plans and through functions, on every library of arrays."""

import numpy as np
import pytest
from conftest import bits, golden, numbers

import spec_ops
from spec_ops._contract import OPERATORS
from spec_ops._planned import CLASSES


def options_of(operator, params):
    """The options of a golden case, without those that JSON has as absent."""
    known = [option.name for option in OPERATORS[operator].options]
    return {name: params[name] for name in known if params.get(name) is not None}


def extents_of(operator, case):
    """The extents of outputs that a call says, by the shapes that a golden case has."""
    found = {}
    for argument in OPERATORS[operator].outputs:
        tensor = case["outputs"].get(argument.name, {"shape": ()})
        for shape in argument.shapes:
            if len(shape) == len(tensor["shape"]):
                found |= zip(shape, tensor["shape"])
    return {name: found[name] for name in OPERATORS[operator].extents if name in found}


def tensors_of(case):
    """The tensors of a golden case; flags may be a number."""
    both = [*case["inputs"].values(), *case["outputs"].values()]
    return [tensor for tensor in both if isinstance(tensor, dict)]


def cases_for(operator, library):
    """The golden cases whose types the library has."""
    cases = [
        case
        for case in golden(operator)
        if all(library.has(tensor["dtype"]) for tensor in tensors_of(case))
    ]
    assert len(cases) > len(golden(operator)) // 2
    return cases


def inputs_of(operator, case, library):
    """The arrays of a golden case by name, and flags of zeros."""
    arrays = {}
    for argument in OPERATORS[operator].inputs:
        tensor = case["inputs"].get(argument.name)
        if argument.name == "flags":
            array = library.array(np.zeros(1, np.uint32), "u32")
        elif argument.name == "load" and "load" in case["outputs"]:
            shape = case["outputs"]["load"]["shape"]
            array = library.array(np.zeros(shape, np.int32), "i32")
        elif tensor is None:
            array = None
        else:
            array = library.array(bits(tensor), tensor["dtype"])
        arrays[argument.name] = array
    return arrays


def outputs_of(operator, case, library):
    """Arrays for the outputs that a golden case has, filled with what must not stay."""
    outputs = []
    keys = case["inputs"].get("keys", {}).get("shape")
    for argument in OPERATORS[operator].outputs:
        tensor = case["outputs"].get(argument.name)
        if operator == "unique" and argument.name == "count":
            outputs.append(library.array(np.full(1, 7, np.uint64), "u64"))
            continue
        if tensor is None:
            outputs.append(None if argument.optional else True)
            continue
        shape = keys if operator == "unique" else tensor["shape"]
        like = bits(tensor)
        outputs.append(library.array(np.full(shape, 77, like.dtype), tensor["dtype"]))
    return tuple(outputs)


def usual_dtype(operator, argument, case):
    """The type of an output that the call makes."""
    like = argument.like
    return argument.dtypes[0] if like is None else case["inputs"][like]["dtype"]


def check(operator, case, library, inputs, outputs):
    """Compares results with a golden case's."""
    library.synchronize()
    results = dict(zip((a.name for a in OPERATORS[operator].outputs), outputs)) | inputs
    compared = 0
    for name, expected in case["outputs"].items():
        result = np.asarray(library.bits(results[name]))
        if name == "flags" and isinstance(expected, int):
            assert int(result.view(np.uint32)[0]) == expected, "flags"
            continue
        dtype = expected["dtype"]
        expected = bits(expected)
        if operator == "unique" and name != "inverse":  # what lies behind the count is unspecified
            count = int(np.asarray(library.bits(results["count"]))[0])
            assert count == len(expected)
            result = result[:count]
        assert result.shape == expected.shape, name
        tolerance = case.get("tolerance", {}).get(name)
        if tolerance is None:
            np.testing.assert_array_equal(result.view(expected.dtype), expected, err_msg=name)
        else:
            result, expected = numbers(result, dtype), numbers(expected, dtype)
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=1e-6, err_msg=name)
        compared += 1
    assert compared, "a case without results"


@pytest.mark.parametrize("operator", OPERATORS)
def test_plans(operator, library):
    """Every vector, outputs brought by the caller."""
    ran = 0
    for case in cases_for(operator, library):
        inputs = inputs_of(operator, case, library)
        outputs = outputs_of(operator, case, library)
        values = options_of(operator, case["params"]) | extents_of(operator, case)
        plan = CLASSES[operator](**values).plan(**inputs, out=outputs)
        made = plan(**inputs, out=outputs)
        if isinstance(made, tuple):
            outputs = made
        elif made is not None:
            outputs = (made,)
        try:
            check(operator, case, library, inputs, outputs)
        except AssertionError as wrong:
            raise AssertionError(f"{case['name']}: {wrong}") from wrong
        ran += 1
    assert ran == len(cases_for(operator, library))


@pytest.mark.parametrize("operator", OPERATORS)
def test_functions(operator, library):
    """Every vector whose outputs have their usual types, outputs made by the call."""
    function = getattr(spec_ops, operator)
    ran = 0
    for case in cases_for(operator, library):
        arguments = OPERATORS[operator].outputs
        usual = all(
            argument.name not in case["outputs"]
            or operator == "unique"
            or case["outputs"][argument.name]["dtype"] == usual_dtype(operator, argument, case)
            for argument in arguments
        )
        if not usual:
            continue
        inputs = inputs_of(operator, case, library)
        keywords = inputs | options_of(operator, case["params"]) | extents_of(operator, case)
        for argument in arguments:
            if argument.optional:
                keywords[argument.name] = argument.name in case["outputs"]
        made = function(**keywords)
        outputs = made if isinstance(made, tuple) else (made,)
        try:
            check(operator, case, library, inputs, outputs)
        except AssertionError as wrong:
            raise AssertionError(f"{case['name']}: {wrong}") from wrong
        ran += 1
    assert ran > 0
