"""Stand-ins of SGLang's kernels for the CPU, which no package index has: those that serve a Llama and
that drafts of n-grams need, with torch, each with the arguments of SGLang's.

SGLang imports others by name; they refuse to run.
"""

import ctypes
import logging

import torch

__version__ = "0.4.10"

_OPERATORS = torch.library.Library("sgl_kernel", "DEF")
_OPERATORS.define(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) o, Tensor keys, Tensor values,"
    " float key_scale, float value_scale, Tensor table, Tensor requests, Tensor lengths,"
    " Tensor counts, Tensor starts, int longest, float scale, float cap, bool cross, int window,"
    " Tensor? encoder, Tensor? sinks, Tensor? tree, bool causal) -> ()"
)
_OPERATORS.define(
    "decode_attention_cpu(Tensor q, Tensor(a!) keys, Tensor(b!) values, float key_scale,"
    " float value_scale, Tensor(c!) o, Tensor? k, Tensor? v, Tensor places, Tensor(d!) logits,"
    " Tensor table, Tensor requests, Tensor lengths, float scale, float cap, bool cross, int window,"
    " Tensor? encoder, Tensor? sinks) -> ()"
)


def _attend(q, o, keys, values, places, scale, seen):
    """`q` of one request ``[rows, heads, size]`` over `places` of the cache; `seen` ``[rows, places]``."""
    heads = [x.movedim(0, 1)[None] for x in (q, keys[places], values[places])]
    found = torch.nn.functional.scaled_dot_product_attention(
        *heads, attn_mask=seen, scale=scale, enable_gqa=True
    )
    o.copy_(found[0].movedim(0, 1))


@torch.library.impl(_OPERATORS, "extend_attention_cpu", "CPU")
def _extend(q, k, v, o, keys, values, _ks, _vs, table, requests, lengths, counts, starts, _longest, scale,
            cap, cross, window, encoder, sinks, tree, causal):  # fmt: skip
    assert causal and not cross and not cap and window <= 0 and sinks is None
    for i, (request, length, count, start) in enumerate(
        zip(*(x.tolist() for x in (requests, lengths, counts, starts)))
    ):
        seen = torch.ones(count, length, dtype=torch.bool).tril(length - count)
        if tree is not None:
            seen[:, length - count :] = tree.view(-1, count, count)[i]
        rows = slice(start, start + count)
        _attend(q[rows], o[rows], keys, values, table[request, :length].long(), scale, seen)


@torch.library.impl(_OPERATORS, "decode_attention_cpu", "CPU")
def _decode(q, keys, values, _ks, _vs, o, k, v, places, logits, table, requests, lengths, scale,
            cap, cross, window, encoder, sinks):  # fmt: skip
    assert not cross and not cap and window <= 0 and sinks is None
    if k is not None:
        keys[places], values[places] = k.view(-1, *keys.shape[1:]), v.view(-1, *values.shape[1:])
    for i, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist())):
        seen = torch.ones(1, length, dtype=torch.bool)
        rows = slice(i, i + 1)
        _attend(q[rows], o[rows], keys, values, table[request, :length].long(), scale, seen)


def assign_extend_cache_locs_cpu(requests, table, starts, ends, out, _width):
    rows = zip(requests.tolist(), starts.tolist(), ends.tolist())
    found = torch.cat([table[request, start:end] for request, start, end in rows])
    out[: len(found)] = found


def assign_req_to_token_pool_cpu(requests, table, starts, ends, places, _width):
    at = 0
    for request, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist()):
        table[request, start:end] = places[at : at + end - start]
        at += end - start


def fill_accept_out_cache_loc_cpu(accepted, places, out):
    found = places[accepted[accepted >= 0].long()]
    out[: len(found)] = found


def copy_all_layer_kv_cache_cpu(pointers, strides, targets, sources):
    for start, size in zip(pointers.tolist(), strides.tolist()):
        rows = [ctypes.string_at(start + at * size, size) for at in sources.tolist()]
        for at, row in zip(targets.tolist(), rows):
            ctypes.memmove(start + at * size, row, size)


def verify_tree_greedy_cpu(
    predicts, accept_index, accept_token_num, candidates,
    retrive_index, retrive_next_token, retrive_next_sibling, target_predict,
):  # fmt: skip
    for b in range(len(candidates)):
        node, path = 0, [0]
        while True:
            token = target_predict[b, node]
            predicts[retrive_index[b, node]] = token
            node = int(retrive_next_token[b, node])
            while node >= 0 and candidates[b, node] != token:
                node = int(retrive_next_sibling[b, node])
            if node < 0:
                break
            path.append(node)
        accept_index[b, : len(path)] = retrive_index[b, path]
        accept_token_num[b] = len(path) - 1


def prepare():
    """A plugin of SGLang. The backend that SGLang takes without AMX knows no trees of drafts, and the
    hooks are applied before the log is set up."""
    from sglang.srt.layers.attention import attention_registry

    backends = attention_registry.ATTENTION_BACKENDS
    backends["torch_native"] = backends["intel_amx"]
    hooks = logging.getLogger("sglang.srt.plugins.hook_registry")
    hooks.setLevel(logging.INFO)
    hooks.addHandler(logging.StreamHandler())


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_, **__):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return absent
