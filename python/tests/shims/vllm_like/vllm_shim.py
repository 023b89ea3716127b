"""A plugin of pytest that lets single files of vLLM be imported without the rest of it.

The files that are named here come from the folder `SPEC_VLLM_DIR`; whatever else they import of
vLLM is a stand-in. In the place of vLLM's kernels stand this library's functions.
"""

import os
from types import SimpleNamespace
from unittest.mock import MagicMock

import stable_topk  # noqa: F401
import stand_ins
import torch

import spec_ops.vllm
import spec_ops.vllm_v2

MOE = "vllm.model_executor.layers.fused_moe"
V2 = "vllm.v1.worker.gpu"

REAL = {
    "tests.v1.sample.utils",
    "vllm.utils.math_utils",
    "vllm.v1.sample.logits_processor.builtin",
    "vllm.v1.sample.metadata",
    "vllm.v1.sample.ops.topk_topp_sampler",
    "vllm.v1.sample.rejection_sampler",
    "vllm.v1.sample.sampler",
    "vllm.v1.spec_decode.metadata",
    "vllm.v1.spec_decode.ngram_proposer",
    "vllm.v1.spec_decode.ngram_proposer_gpu",
    f"{MOE}.moe_align_block_size",
    f"{MOE}.router.fused_topk_bias_router",
    f"{MOE}.router.fused_topk_router",
    f"{MOE}.router.grouped_topk_router",
}


class _Processors:
    argmax_invariant = non_argmax_invariant = ()


def pad(rows, pad, dtype, device=None, pin_memory=False, **_):
    """As vLLM's `make_tensor_with_pad`."""
    made = torch.full((len(rows), max(map(len, rows))), pad, dtype=dtype)
    for row, padded in zip(rows, made):
        padded[: len(row)] = torch.tensor(row, dtype=dtype)
    return made.to(device)


class Fields:
    """A config: whatever it was made of."""

    def __init__(self, **fields):
        self.max_num_batched_tokens = 16
        vars(self).update(fields)

    @classmethod
    def default_factory(cls, **fields):
        return cls(**fields)

    def get_vocab_size(self):
        return 100


def identity(*_, **__):
    return lambda function: function


# Files of kernels are imported for what stands beside the kernels.
triton = SimpleNamespace(
    jit=identity(), cdiv=lambda a, b: -(-a // b), next_power_of_2=lambda n: 1 << (n - 1).bit_length()
)
triton.jit = lambda function=None, **_: function if function else lambda made: made
always = lambda *_: True
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OURS = {name: getattr(spec_ops.vllm, name) for name in spec_ops.vllm.__all__}
KNOWN = {
    "tests.utils": {"large_gpu_mark": identity},
    "vllm._aiter_ops": {
        "rocm_aiter_ops": SimpleNamespace(is_fused_moe_enabled=bool, is_enabled=bool)
    },
    "vllm._custom_ops": OURS,
    "vllm.config": {
        name: type(name, (Fields,), {})
        for name in ("ModelConfig", "SchedulerConfig", "SpeculativeConfig", "VllmConfig")
    },
    "vllm.envs": {},
    "vllm.forward_context": {
        "is_forward_context_available": bool, "get_forward_context": MagicMock()
    },
    "vllm.model_executor.layers.utils": OURS,
    "vllm.model_executor.utils": {"maybe_disable_graph_partition": lambda _: {}},
    "vllm.platforms": {
        "current_platform": SimpleNamespace(
            device_type=DEVICE,
            device_count=lambda: 1,
            is_cpu=bool,
            is_cuda=always,
            is_cuda_alike=always,
            is_rocm=bool,
            is_xpu=bool,
            simple_compile_backend="eager",
            get_device_capability=lambda: None,
        )
    },
    "vllm.triton_utils": {"triton": triton, "tl": SimpleNamespace(constexpr=int), "HAS_TRITON": False},
    "vllm.utils.platform_utils": {"is_pin_memory_available": bool},
    "vllm.utils.torch_utils": {
        "PIN_MEMORY": False,
        "make_tensor_with_pad": pad,
        "set_random_seed": torch.manual_seed,
        "async_tensor_h2d": lambda data, device=None, dtype=None, **_: torch.tensor(
            data, dtype=dtype, device=device
        ),
    },
    "vllm.v1.sample.logits_processor": {"LogitsProcessors": _Processors},
    "vllm.v1.sample.ops.bad_words": OURS,
    "vllm.v1.sample.ops.penalties": OURS,
    f"{V2}.sample.gumbel": {"gumbel_sample": spec_ops.vllm_v2.gumbel_sample},
    f"{V2}.spec_decode.rejection_sampler_utils": {
        "rejection_sample": spec_ops.vllm_v2.rejection_sample
    },
}


stand_ins.install({"vllm", "tests"}, os.environ["SPEC_VLLM_DIR"], REAL, KNOWN)


def expand_batch_to_tokens(x, cu_num_tokens, num_tokens, replace_from=0, replace_to=0):
    """In the place of vLLM's Triton kernel of that name, which needs a GPU."""
    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1))
    x = torch.where(x == replace_from, replace_to, x) if replace_from != replace_to else x
    return x.repeat_interleave(counts.long(), output_size=num_tokens)


def install():
    from vllm.v1.sample import rejection_sampler

    from vllm.v1.sample.ops import topk_topp_sampler

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    rejection_sampler.rejection_sample = spec_ops.vllm.rejection_sample
    global apply_top_k_top_p_pytorch
    apply_top_k_top_p_pytorch = topk_topp_sampler.apply_top_k_top_p_pytorch
    topk_topp_sampler.apply_top_k_top_p_pytorch = spec_ops.vllm.apply_top_k_top_p


install()
