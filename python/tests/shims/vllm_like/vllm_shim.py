"""A plugin of pytest that lets single files of vLLM be imported without the rest of it.

The files that are named here come from the folder `SPEC_VLLM_DIR`; whatever else they import of
vLLM is a stand-in. Then vLLM's rejection sampler is given this library's function.
"""

import importlib.abc
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import torch

REAL = {
    "vllm.v1.sample.metadata",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.spec_decode.metadata",
    "vllm.v1.spec_decode.ngram_proposer",
}


class _Anything(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock()


def _take_fields(self, *_, **fields):
    vars(self).update(fields)


class _StandIn(ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__") or f"{self.__name__}.{name}" in REAL:
            raise AttributeError(name)
        if name.isupper():
            made = ()
        elif name[0].isupper():
            made = _Anything(name, (), {"__init__": _take_fields})
        else:
            made = MagicMock()
        setattr(self, name, made)
        return made


class _Processors:
    argmax_invariant = non_argmax_invariant = ()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
KNOWN = {
    "vllm.platforms": {"current_platform": SimpleNamespace(device_type=DEVICE, is_cpu=bool)},
    "vllm.v1.sample.logits_processor": {"LogitsProcessors": _Processors},
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("vllm", "tests"):
            return None
        if name in REAL:
            file = Path(os.environ["SPEC_VLLM_DIR"], *name.split(".")).with_suffix(".py")
            return importlib.util.spec_from_file_location(name, file)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec):
        return _StandIn(spec.name)

    def exec_module(self, module):
        vars(module).update(KNOWN.get(module.__name__, {}))


sys.meta_path.insert(0, _Finder())


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    """In the place of vLLM's Triton kernel of that name, which needs a GPU."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    x = torch.where(x == replace_from, replace_to, x) if replace_from != replace_to else x
    return x.repeat_interleave(counts.long(), output_size=num_tokens)


def install():
    import spec_ops.vllm
    from vllm.v1.sample import rejection_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    spec_ops.vllm.install()
    assert rejection_sampler.rejection_sample is spec_ops.vllm.rejection_sample


install()
