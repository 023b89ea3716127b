"""vLLM's penalties on texts in which some ids are no tokens of the vocabulary."""

import pytest
from conftest import need

torch = need("torch", whole_file=True)

from plain_engines import device  # noqa: E402, F401

from spec_ops import vllm  # noqa: E402

VOCAB = 10


def penalised(prompt, output):
    """A row of logits of 1 and -1 after all penalties: each id counts where it stands."""
    row = torch.where(torch.arange(VOCAB) % 2 == 0, 1.0, -1.0)
    for token in range(VOCAB):
        count = output.count(token)
        if token in prompt or count:
            row[token] *= 0.5 if row[token] > 0 else 2.0
        row[token] -= 0.25 * count + 0.125 * (count > 0)
    return row


@pytest.mark.parametrize(
    "prompt",
    [[5, VOCAB, 7], [VOCAB + 3, 1, 2], [VOCAB, VOCAB, 3], [1, 2, VOCAB], [2**31 - 1, 9, 2**31]],
)
@pytest.mark.parametrize("output", [[], [4, VOCAB + 1, 4, 6], [VOCAB, 8, 8], [-1, 3, -1, 5]])
def test_an_id_outside_the_vocabulary_is_passed_over(prompt, output):
    """Placeholders of images stand inside of prompts, those of drafts inside of outputs."""
    logits = torch.where(torch.arange(VOCAB) % 2 == 0, 1.0, -1.0).unsqueeze(0)
    penalties = (torch.tensor([0.125]), torch.tensor([0.25]), torch.tensor([2.0]))
    right = penalised(prompt, output).unsqueeze(0)
    prompts = torch.tensor([prompt])
    made = vllm.apply_all_penalties(logits.clone(), prompts, *penalties, [output])
    assert torch.equal(made, right)
    padded = torch.tensor([[VOCAB if token < 0 else token for token in output] + [VOCAB] * 2])
    own = logits.clone()
    assert vllm.apply_penalties(own, prompts, padded, *penalties) is own
    assert torch.equal(own, right)
