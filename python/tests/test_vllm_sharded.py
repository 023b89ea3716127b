"""`spec_ops.vllm_sharded` with vLLM's own head and `LogitsProcessor`, on two ranks.

A process for each rank, by Gloo. The whole rows are those that vLLM gathers. `test_vllm_live.py` has
whole engines of two ranks. Needs vLLM, as said there.
"""

import os
from types import SimpleNamespace

from conftest import need, on_ranks

need("vllm", whole_file=True)
torch = need("torch", whole_file=True)

import spec_ops  # noqa: E402

ROWS, HIDDEN, RANKS = 24, 32, 2


class Model:
    """A head of vLLM, whose weights are the same whatever the number of ranks."""

    def __init__(self, vocab):
        from vllm.model_executor.layers.logits_processor import LogitsProcessor
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

        self.lm_head = ParallelLMHead(vocab, HIDDEN, params_dtype=torch.float32)
        weights = torch.randn(vocab, HIDDEN, generator=torch.Generator().manual_seed(5))
        self.lm_head.weight_loader(self.lm_head.weight, weights)
        self.lm_head.quant_method.process_weights_after_loading(self.lm_head)
        self.logits_processor = LogitsProcessor(vocab, scale=0.5, soft_cap=6.0)

    def compute_logits(self, hidden_states):
        logits = self.logits_processor(self.lm_head, hidden_states)
        return logits


class Outer:
    """A model that contains the language model, as those of images do."""

    def __init__(self, model):
        self.language_model = model

    def compute_logits(self, hidden_states, **kwargs):
        return self.language_model.compute_logits(hidden_states)


class Biased(Model):
    """A model that changes logits by the numbers of tokens, so that it needs whole rows."""

    def compute_logits(self, hidden_states):
        logits = self.logits_processor(self.lm_head, hidden_states)
        logits[:, 5] = 9.0
        return logits


class Local(Biased):
    """As :class:`Biased`, and knows its own columns."""

    def compute_logits_local(self, hidden_states):
        return self.logits_processor(self.lm_head, hidden_states, skip_gather=True)


def run(rank, port, failures):
    """What a rank does: two ways, for a vocabulary that fills all columns and one that does not."""
    from spec_ops import vllm_sharded
    from spec_ops.vllm_runner import _MIN_P, _TOP_K, _TOP_P, Sampler
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state

    torch.set_num_threads(1)
    # What vLLM's executor sets: a name for the memory that ranks of one host share.
    os.environ["VLLM_DIST_IDENT"] = str(port)
    address = f"tcp://127.0.0.1:{port}"
    with set_current_vllm_config(VllmConfig()):
        parallel_state.init_distributed_environment(RANKS, rank, address, rank, "gloo")
        parallel_state.initialize_model_parallel(RANKS)
        hidden = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(6))
        numbers = torch.arange(ROWS)
        slots = numbers.flip(0).to(torch.int32)
        batch = SimpleNamespace(idx_mapping_np=slots.numpy(), expanded_idx_mapping=slots)
        positions = torch.arange(ROWS + 3) * 11
        for vocab in (128, 77, 65):
            model = Model(vocab)
            of_slots = {
                "temperature": torch.where(numbers % 5 == 0, 0.0, 0.7),
                "seeds": numbers * 1_000_003,
                "top_k": torch.where(numbers % 5 == 0, vocab, 1 + numbers % 64).to(torch.int32),
                "top_p": torch.full((ROWS,), 0.9),
                "min_p": torch.full((ROWS,), 0.02),
            }
            states = {name: SimpleNamespace(gpu=tensor) for name, tensor in of_slots.items()}
            sampler = Sampler.__new__(Sampler)
            sampler.sampling_states = SimpleNamespace(**states)
            whole = model.compute_logits(hidden)
            runner = SimpleNamespace(
                model=Outer(model), vocab_size=vocab, sampler=sampler, rejection_sampler=None,
                lora_config=None,
            )  # fmt: skip
            shards = vllm_sharded.Shards(runner)
            for way, asked in (("winners", _MIN_P), ("winners", 0), ("candidates", _TOP_K | _TOP_P)):
                sampler.asked_by = lambda _, asked=asked: asked
                given = sampler.drawn_from(whole, batch.expanded_idx_mapping, positions[:ROWS], asked)
                names = ("requests", "top_k", "top_p", "min_p")
                options = dict(zip(names, given[4:], strict=True))
                right = spec_ops.sample_logits(*given[:4], **options).tokens
                tokens = shards.draw(shards.local(hidden), way, sampler, batch, positions)
                if shards.never or not torch.equal(tokens, right):
                    failures.put((rank, vocab, way, shards.never, tokens.tolist(), right.tolist()))
        for kind, is_local in ((Biased, False), (Local, True)):
            found = vllm_sharded.local_logits(Outer(kind(128)))
            if (found is not None) != is_local:
                failures.put((rank, kind.__name__))
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()


def test_ranks_draw_the_token_of_the_rows_that_vllm_gathers():
    on_ranks(run, RANKS)
