"""Times engines with and without this library's drafts, in turns, and compares the texts.

    python examples/engines.py llama.cpp --model SmolLM2-135M-Instruct.Q4_1.gguf PROMPT.txt ..
    python examples/engines.py llama.cpp --model SmolLM2-135M-Instruct.Q4_1.gguf --rows --turns 9
    python examples/engines.py transformers --model SmolLM2-135M-Instruct.Q4_1.gguf PROMPT.txt ..

Each prompt is said in the model's chat template and answered greedily by the engine's own loop
and by `spec_ops.llama_cpp.Decoder` or `spec_ops.transformers.Decoder`, one after the other, as
often as `--turns` says. On a busy machine, `--threads 1` and the times by processor tell more
than those by the clock.
"""

import argparse
import statistics
import time
from pathlib import Path


def opened(given):
    """llama.cpp's model."""
    from llama_cpp import Llama

    threads = {"n_threads": given.threads, "n_threads_batch": given.threads}
    return Llama(given.model, n_ctx=2048, verbose=False, **threads)


def rows(given):
    """Prints what runs of several rows cost llama.cpp behind a text of five tokens."""
    from spec_ops.llama_cpp import Decoder

    decoder, first = Decoder(opened(given), "none"), None
    decoder._forward(list(range(100, 105)), 0, 1)
    for count in (1, 2, 3, 4, 5, 6, 8, 9, 12, 16):
        times = []
        for _ in range(given.turns):
            start = time.process_time()
            decoder._forward(list(range(200, 200 + count)), 5, count)
            times.append(time.process_time() - start)
        # The least: whatever else the machine does only adds.
        first = first or min(times)
        print(f"{count:>3} rows {min(times) * 1e3:7.1f} ms of processor, {min(times) / first:.2f}")


def llama_cpp(given):
    """Answers by llama.cpp: functions of a prompt's text that return tokens, by their names."""
    import spec_ops.llama_cpp

    llama = opened(given)

    def tokens(text):
        said = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return llama.tokenize(said.encode(), add_bos=False, special=True)

    def own(text):
        prompt, answer = tokens(text), []
        # Nothing of an earlier answer is found in the cache, here as below.
        llama.reset()
        for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
            answer.append(token)
            if token == llama.token_eos() or len(answer) == given.tokens:
                return answer, None

    clock = time.process_time if given.threads == 1 else time.perf_counter
    made = {
        name: spec_ops.llama_cpp.Decoder(llama, name, given.max_draft, clock)
        for name in ("none", *given.draft)
    }

    def spec(decoder):
        def answer(text):
            llama.reset()
            spec_ops.llama_cpp._CACHED.pop(llama, None)
            found = list(decoder.generate(tokens(text), given.tokens))
            return found, decoder.counted

        return answer

    return {"llama.cpp": own} | {f"spec_ops, {name}": spec(one) for name, one in made.items()}


def transformers(given):
    """Answers by transformers."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    import spec_ops.transformers

    torch.set_num_threads(given.threads)
    path = Path(given.model)
    where = {"pretrained_model_name_or_path": given.model}
    if path.is_file():
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(**where)

    def answers(decoder=None, **more):
        if decoder is not None:
            more["custom_generate"] = decoder

        def answer(text):
            said = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            ids = tokenizer(said, return_tensors="pt", add_special_tokens=False).input_ids
            asked = {"do_sample": False, "max_new_tokens": given.tokens, "repetition_penalty": 1.0}
            asked |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": 0}
            found = model.generate(ids, attention_mask=torch.ones_like(ids), **asked, **more)
            return found[0, ids.shape[1] :].tolist(), decoder and decoder.counted

        return answer

    clock = time.process_time if given.threads == 1 else time.perf_counter
    made = {
        f"spec_ops, {name}": answers(spec_ops.transformers.Decoder(name, given.max_draft, clock))
        for name in given.draft
    }
    own = {"transformers": answers()}
    own["prompt_lookup_num_tokens"] = answers(prompt_lookup_num_tokens=given.max_draft)
    return own | made


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", choices=["llama.cpp", "transformers"])
    parser.add_argument("prompts", nargs="*", type=Path, metavar="PROMPT")
    parser.add_argument("--rows", action="store_true", help="llama.cpp: times runs of rows alone")
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--max-draft", type=int, default=10)
    parser.add_argument("--draft", action="append", choices=["lookup", "suffix"], default=[])
    given = parser.parse_intermixed_args()
    if given.rows:
        return rows(given)
    given.draft = given.draft or ["suffix"]
    ways = (llama_cpp if given.engine == "llama.cpp" else transformers)(given)
    head = f"{'tokens':>6} {'a run':>6} {'accepted':>9} {'tokens/s':>9} {'faster':>7} by processor"
    print(f"{'':<36} {head}")
    for path in given.prompts:
        text, times = path.read_text(), {name: [] for name in ways}
        found = {}
        for _ in range(given.turns):
            for name, answer in ways.items():
                start = time.perf_counter(), time.process_time()
                found[name] = answer(text)
                end = time.perf_counter(), time.process_time()
                times[name].append([b - a for a, b in zip(start, end)])
        first = next(iter(ways))
        for name, (tokens, counted) in found.items():
            seconds = statistics.median(clock for clock, _ in times[name])
            # The ratio of each turn, since what else the machine does changes from turn to turn.
            faster, cheaper = (
                statistics.median(a[by] / b[by] for a, b in zip(times[first], times[name]))
                for by in (0, 1)
            )
            same = "" if tokens == found[first][0] else "  another text"
            took = f"{'':>6} {'':>9}"
            if counted:
                stood = f"{counted.accepted:>4}/{counted.drafted:<4}"
                took = f"{counted.tokens / counted.runs:6.2f} {stood}"
            print(
                f"{path.stem:<9} {name:<26} {len(tokens):>6} {took} {len(tokens) / seconds:9.1f}"
                f" {faster:7.2f} {cheaper:7.2f}{same}",
                flush=True,
            )


if __name__ == "__main__":
    main()
