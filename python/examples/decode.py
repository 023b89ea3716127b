"""Decoding with n-gram drafts against a tiny model: `python examples/decode.py [--device cuda]`.

The model is a recurrent net of torch's, a few thousand numbers, trained here for some seconds
to continue one text, token by token a byte. Each step drafts what followed the last tokens
where they occurred before, runs the model once on the last token and the drafts, chooses a
token after each with `sample_logits`, and keeps what `tree_verify` follows: a chain is a tree
without siblings. Every token is the target's own choice at its position, so the text is the
same as without drafts, in fewer runs of the model.
"""

import argparse

import torch

import spec_ops

TEXT = (
    "fn area(width: f32, height: f32) -> f32 { width * height }\n"
    "fn area(width: f64, height: f64) -> f64 { width * height }\n"
    "fn area(width: u32, height: u32) -> u32 { width * height }\n"
)
MAX_DRAFTS = 8


class Model(torch.nn.Module):
    """What follows each of the tokens that it is given, after a state."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(128, 32)
        self.memory = torch.nn.GRU(32, 128, batch_first=True)
        self.logits = torch.nn.Linear(128, 128)

    def forward(self, tokens, state=None):
        states, _ = self.memory(self.embed(tokens), state)
        return self.logits(states), states


def train(device, steps=300):
    """A model that knows `TEXT`, and the loss that it ended with."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    tokens = torch.tensor([list(TEXT.encode())], device=device)
    for _ in range(steps):
        logits, _ = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits[0], tokens[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.requires_grad_(False), loss.item()


def decode(model, prompt, tokens, max_draft, temperature=0.0, seed=1):
    """The text with so many tokens more, and how often the model was run."""
    device = next(model.parameters()).device
    text = torch.zeros(1, len(prompt) + tokens + MAX_DRAFTS, dtype=torch.int32, device=device)
    text[0, : len(prompt)] = torch.tensor(list(prompt.encode()), device=device)
    length, end, runs = len(prompt), len(prompt) + tokens, 0
    request = {
        "temperature": torch.full((1,), temperature, device=device),
        "seeds": torch.full((1,), seed, dtype=torch.int64, device=device),
    }
    _, states = model(text[:, : length - 1].long())
    state = states[:, -1:].transpose(0, 1).contiguous()
    while length < end:
        lengths = torch.tensor([length], dtype=torch.int32, device=device)
        count = 0
        if max_draft:
            drafts, counts = spec_ops.prompt_lookup(
                text, lengths, min_ngram=2, max_ngram=5, max_draft=max_draft, occurrence="last"
            )
            count = int(counts)
            text[0, length : length + count] = drafts[0, :count]

        # One run: the last token and the drafts behind it.
        chain = text[:, length - 1 : length + count]
        logits, states = model(chain.long(), state)
        runs += 1
        nodes = torch.arange(count + 1, dtype=torch.int32, device=device)
        chosen = spec_ops.sample_logits(
            logits[0], nodes.long() + length, requests=torch.zeros_like(nodes), **request
        ).tokens
        path = spec_ops.tree_verify(chain, chosen[None], max_depth=count)
        kept = int(path.num_tokens)
        text[0, length : length + kept] = path.tokens[0, :kept]
        state = states[:, kept - 1 : kept].transpose(0, 1).contiguous()
        length += kept
    return bytes(text[0, :end].tolist()).decode(), runs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--tokens", type=int, default=160)
    arguments = parser.parse_args()
    model, loss = train(arguments.device)
    print(f"trained to a loss of {loss:.4f}")
    prompt = TEXT[:20]
    plain, runs = decode(model, prompt, arguments.tokens, 0, arguments.temperature)
    text, fewer = decode(model, prompt, arguments.tokens, MAX_DRAFTS, arguments.temperature)
    print(text)
    print(f"{arguments.tokens} tokens: {runs} runs of the model without drafts, {fewer} with")
    assert text == plain, "drafts changed the text"


if __name__ == "__main__":
    main()
