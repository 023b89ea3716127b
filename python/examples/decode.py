"""Decoding with n-gram drafts against a tiny model: `python examples/decode.py [--device cuda]`.

The model is a recurrent net of torch's, a few thousand numbers, trained here for some seconds
to continue one text, token by token a byte. Each step drafts what followed the last tokens
where they occurred before, runs the model once on the last token and the drafts, chooses a
token after each with `sample_logits`, keeps what `tree_verify` follows, and appends it. Every
token is the target's own choice at its position, so the text is the same as without drafts, in
fewer runs of the model.

Shapes never change, and the host reads no token and no count before the end: behind the drafts
that there are, `prompt_lookup` writes -1, which the model never chooses, so that one chain of
`max_draft + 1` nodes serves any number of drafts. Only every few steps the host asks whether the
text is finished. `generate.py` captures such a step of a transformer in a CUDA graph.
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


def decode(model, prompt, tokens, max_draft, temperature=0.0, seed=1, look_every=8):
    """The text with so many tokens more, and how often the model was run for it."""
    device = next(model.parameters()).device
    text = torch.zeros(1, len(prompt) + tokens, dtype=torch.int32, device=device)
    text[0, : len(prompt)] = torch.tensor(list(prompt.encode()), device=device)
    lengths = torch.tensor([len(prompt)], dtype=torch.int32, device=device)
    finished, runs = torch.zeros_like(lengths), torch.zeros_like(lengths)
    # Node 0 of the chain is the text's last token, node i is draft i - 1.
    nodes = torch.arange(max_draft + 1, device=device)
    request = {
        "temperature": torch.full((1,), temperature, device=device),
        "seeds": torch.full((1,), seed, dtype=torch.int64, device=device),
        "requests": torch.zeros_like(nodes, dtype=torch.int32),
    }
    _, states = model(text[:, : len(prompt) - 1].long())
    state = states[:, -1:].transpose(0, 1).contiguous()
    last = text[:, len(prompt) - 1 : len(prompt)]

    for step in range(tokens):
        if step % look_every == 0 and finished.item():
            break
        runs += finished == 0
        chain = last
        if max_draft:
            drafts, _ = spec_ops.prompt_lookup(
                text, lengths, min_ngram=2, max_ngram=5, max_draft=max_draft, occurrence="last"
            )
            chain = torch.cat([last, drafts], dim=1)

        # One run, however many drafts there are. What follows a -1 is never looked at.
        logits, states = model(chain.clamp(min=0).long(), state)
        chosen = spec_ops.sample_logits(logits[0], nodes + lengths, **request).tokens
        path = spec_ops.tree_verify(chain, chosen[None], max_depth=max_draft)
        kept = (path.num_tokens - 1).long()
        state = states.index_select(1, kept).transpose(0, 1).contiguous()
        last = spec_ops.append_tokens(
            text, lengths, path.tokens, path.num_tokens, finished=finished, last_tokens=True
        ).last_tokens.unsqueeze(1)
    return bytes(text[0].tolist()).decode(), int(runs)


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
