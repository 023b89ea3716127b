"""What the parts of vLLM's second model runner cost the host: `python bench/vllm_host.py [--device cuda]`.

Microseconds until a call returns, the best of samples, for steps that decode: a sampler's step without
drafts, a verification of drafts, and a drafter's step. A step of an engine with CUDA graphs waits for the
host, so these times are what a part adds to it. On the CPU they contain the operators' work, which a small
vocabulary keeps short and RAYON_NUM_THREADS=1 on one thread; with `--device cuda`, `--vocab 49152` has the work of a model, and vLLM's own
classes run beside ours.

Needs vLLM. Without a GPU, `python/tests/vllm_live` belongs into PYTHONPATH, and TRITON_INTERPRET=1.
"""

import argparse
import time
from types import SimpleNamespace

import numpy as np
import torch
from vllm import SamplingParams
from vllm.v1.worker.gpu.sample import sampler as vllm_sampler
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as vllm_rejection
from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator
from vllm.v1.worker.gpu.states import RequestState

from spec_ops import vllm_runner

LENGTH = 256


class Engine:
    """The states of an engine whose slots are all taken, and its parts."""

    def __init__(self, asked, kinds, slots, params):
        sampler, verifier, drafter = kinds
        self.device, self.slots, self.drafts, self.vocab = asked.device, slots, asked.drafts, asked.vocab
        self.states = RequestState(
            max_num_reqs=slots,
            max_model_len=2 * LENGTH,
            max_num_batched_tokens=4096,
            num_speculative_steps=asked.drafts,
            vocab_size=asked.vocab,
            device=torch.device(asked.device),
            use_dense_all_token_ids=True,
        )
        self.states.all_token_ids.gpu.random_(asked.vocab)
        self.states.total_len.gpu.fill_(LENGTH)
        speculative = SimpleNamespace(
            method="ngram_gpu",
            num_speculative_tokens=asked.drafts,
            prompt_lookup_min=2,
            prompt_lookup_max=5,
            enable_adaptive_verification=False,
            rejection_sample_method="standard",
            fly_entropy_threshold=0.3,
            fly_entropy_top_k=3,
        )
        config = SimpleNamespace(
            speculative_config=speculative,
            reasoning_config=None,
            scheduler_config=SimpleNamespace(max_num_seqs=slots),
            model_config=SimpleNamespace(max_model_len=2 * LENGTH),
        )
        where = torch.device(asked.device)
        self.sampler = sampler(config, slots, asked.vocab, where, self.states)
        self.verifier = verifier(self.sampler, speculative, where)
        self.drafter = drafter(config, where, self.states)
        for slot in range(slots):
            self.sampler.add_request(slot, params)
        if asked.device == "cuda":
            self.sampler.apply_staged_writes()

    def batch(self, drafts):
        """A step of all requests, each with so many drafts."""
        requests, columns = self.slots, drafts + 1
        rows = requests * columns
        options = {"dtype": torch.int32, "device": self.device}
        slots = torch.arange(requests, dtype=torch.int64, device=self.device)
        offsets = np.arange(0, rows + 1, columns, dtype=np.int32)
        tokens = torch.zeros(2 * rows, **options)
        return SimpleNamespace(
            num_reqs=requests,
            num_tokens=rows,
            has_prefill=False,
            idx_mapping=slots,
            idx_mapping_np=np.arange(requests, dtype=np.int32),
            expanded_idx_mapping=slots if columns == 1 else slots.repeat_interleave(columns).int(),
            expanded_local_pos=torch.arange(columns, **options).repeat(requests),
            cu_num_logits=torch.from_numpy(offsets).to(self.device),
            cu_num_logits_np=offsets,
            logits_indices=torch.arange(rows, device=self.device),
            # As long as the graph that the step replays.
            input_ids=tokens,
            positions=torch.arange(2 * rows, device=self.device),
            seq_lens=torch.full((requests,), LENGTH, **options),
            seq_lens_cpu_upper_bound=torch.full((requests,), LENGTH, dtype=torch.int32),
        )

    def parts(self):
        """By name: the calls of a step."""
        one, many = self.batch(0), self.batch(self.drafts)
        floats = {"device": self.device, "dtype": torch.bfloat16}
        few = torch.randn((self.slots, self.vocab), **floats)
        all_rows = torch.randn((self.slots * (self.drafts + 1), self.vocab), **floats)
        counts = torch.ones(self.slots, dtype=torch.int32, device=self.device)
        # Behind the batch: attention's metadata, slots, hidden states, and what was sampled.
        rest = (None, None, None, None, counts, counts, self.states.last_sampled_tokens, None, None, None)
        return {
            "sample": lambda: self.sampler(few, one),
            "verify": lambda: self.verifier(all_rows, many, None, None),
            "propose": lambda: self.drafter.propose(many, *rest),
        }


def measure(call, wait, calls, samples):
    """Microseconds until a call returns, the best of samples: whatever else a machine does only adds."""
    times = []
    for _ in range(samples):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return min(times)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=8)
    # Fewer than a stream's queue of launches holds: a full queue has the host wait for the GPU.
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--samples", type=int, default=41)
    asked = parser.parse_args()
    wait = torch.cuda.synchronize if asked.device == "cuda" else lambda: None
    ours = vllm_runner.Sampler, vllm_runner.RejectionSampler
    if asked.device == "cpu":
        import vllm.v1.worker.cpu.shm  # noqa: F401, has buffers that are pinned on a GPU lie in host memory
    rows = {"ours, lookup": (*ours, vllm_runner.Drafter), "ours, suffix": (*ours, vllm_runner.SuffixDrafter)}
    if asked.device == "cuda":
        rows["vLLM's"] = vllm_sampler.Sampler, vllm_rejection.RejectionSampler, NgramGPUSpeculator
    settings = {
        "greedy": SamplingParams(temperature=0.0),
        "0.8, 40, 0.9": SamplingParams(temperature=0.8, top_k=min(40, asked.vocab), top_p=0.9, seed=3),
    }
    for requests in asked.requests:
        for words, params in settings.items():
            for name, kinds in rows.items():
                parts = Engine(asked, kinds, requests, params).parts()
                found = {part: measure(call, wait, asked.calls, asked.samples) for part, call in parts.items()}
                spent = "  ".join(f"{part} {value:7.1f}" for part, value in found.items())
                print(f"{requests:4} requests, {words:13} {name:13} {spent}", flush=True)


if __name__ == "__main__":
    main()
