"""A small Llama run as llama.cpp runs one: the nodes of its graph in order, with its names and orders.

Rows of query and key are permuted for a rotation of neighbours, and the last layer goes on with the last row
alone behind its attention. `write_files` and `write_log` write them as its users do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from acc_pytest import DumpConfig, register_hook

Nodes = list[tuple[str, torch.Tensor]]
IDS = torch.randint(1, 128, (1, 9), generator=torch.Generator().manual_seed(3))
SIZE = 16
FUNCTION = "common_debug_cb_eval"


def small_llama() -> Any:
    """Three layers of four heads, two of them for keys, with seeded weights."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=SIZE, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn_like(parameter)
            parameter.copy_(drawn * parameter.shape[1] ** -0.5 if parameter.dim() > 1 else 1 + 0.2 * drawn)
    return model


def dump_golden(model: Any, home: Path) -> Path:
    """A dump of `register_hook` of one forward."""
    with torch.no_grad(), register_hook(model, DumpConfig(str(home))):
        model(input_ids=IDS, use_cache=False)
    return home


def nodes(model: Any, neighbours: bool = True) -> Nodes:
    """The nodes of a forward; the rotation may turn halves, for which the weights are not made."""
    inputs: dict[str, torch.Tensor] = {}
    outputs: dict[str, torch.Tensor] = {}

    def save(name: str, args: Any, result: Any) -> None:
        if args and isinstance(args[0], torch.Tensor):
            inputs[name] = args[0][0].float()
        outputs[name] = (result[0] if isinstance(result, tuple) else result)[0].float()

    hooks = [
        m.register_forward_hook(lambda _, a, r, n=n: save(n, a, r)) for n, m in model.named_modules() if n
    ]
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False)
        cos, sin = model.model.rotary_emb(torch.zeros(1), torch.arange(IDS.shape[1])[None])
    for hook in hooks:
        hook.remove()
    graph: Nodes = [("embd", outputs["model.embed_tokens"])]
    count = model.config.num_hidden_layers
    for layer in range(count):
        path, rows = f"model.layers.{layer}", slice(-1, None) if layer == count - 1 else slice(None)
        attention, mlp, norm = f"{path}.self_attn", f"{path}.mlp", f"{path}.post_attention_layernorm"
        graph.append((f"attn_norm-{layer}", outputs[f"{path}.input_layernorm"]))
        for name in ("q", "k"):
            heads = outputs[f"{attention}.{name}_proj"].unflatten(-1, (-1, SIZE))
            heads = heads.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)
            graph.append((f"{name.upper()}cur-{layer}", heads.flatten(1)))
            graph.append((f"{name.upper()}cur-{layer}", turned(heads, cos[0], sin[0], neighbours)))
        graph += [
            (f"Vcur-{layer}", outputs[f"{attention}.v_proj"]),
            (f"kqv_out-{layer}", inputs[f"{attention}.o_proj"]),
            (f"attn_out-{layer}", outputs[f"{attention}.o_proj"]),
            (f"ffn_inp-{layer}", inputs[norm][rows]),
            (f"ffn_norm-{layer}", outputs[norm][rows]),
            (f"ffn_gate-{layer}", outputs[f"{mlp}.gate_proj"][rows]),
            (f"ffn_up-{layer}", outputs[f"{mlp}.up_proj"][rows]),
            (f"ffn_swiglu-{layer}", inputs[f"{mlp}.down_proj"][rows]),
            (f"ffn_out-{layer}", outputs[f"{mlp}.down_proj"][rows]),
            (f"l_out-{layer}", outputs[path][rows]),
        ]
    last = outputs["model.norm"][-1:], outputs["lm_head"][-1:]
    return [*graph, ("result_norm", last[0]), ("result_output", last[1])]


def turned(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, neighbours: bool) -> torch.Tensor:
    """Heads `[tokens, heads, size]` after the rotation, by neighbours or by halves."""
    half = SIZE // 2
    if neighbours:
        first, second = heads[..., 0::2], heads[..., 1::2]
    else:
        first, second = heads[..., :half], heads[..., half:]
    c, s = cos[:, None, :half], sin[:, None, :half]
    pair = first * c - second * s, second * c + first * s
    return torch.stack(pair, -1).flatten(-2) if neighbours else torch.cat(pair, -1)


def write_files(graph: Nodes, home: Path) -> Path:
    """A file of each node: `{number}_{name}.npy` in the folder of the step."""
    (home / "0").mkdir(parents=True)
    for number, (name, tensor) in enumerate(graph):
        np.save(home / "0" / f"{number:05}_{name}.npy", tensor.numpy())
    return home


def write_log(steps: Sequence[Nodes], file: Path, before: str = "") -> Path:
    """A log of the eval callback, behind other lines that the program prints."""
    blocks = [f"{before}build: 1 (abc)\n"]
    for graph in steps:
        for name, tensor in graph:
            full = tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape))
            sizes = ", ".join(map(str, reversed(full.shape)))
            blocks.append(
                f"{FUNCTION}: {name:>24} = (f32) {'MUL_MAT':>10}(w{{1, 1, 1, 1}}, }}) = {{{sizes}}}\n"
            )
            blocks += [f"    {line}\n" for line in _lines(full[0], 0)]
            blocks.append(f"    sum = {full.float().sum().item():f}\n")
    file.write_text("".join(blocks))
    return file


def _lines(tensor: torch.Tensor, depth: int) -> Iterator[str]:
    """The lines of a tensor: the first three and the last three of more than six places."""
    indent, count = 4 * depth * " ", len(tensor)
    if tensor.dim() == 1:
        cells = [f"{value:12.4f}" for value in tensor.tolist()]
        cells = [*cells[:3], "   ...", *cells[-3:]] if count > 6 else cells
        yield f"{indent}[{', '.join(cells)}  ],"
        return
    yield f"{indent}["
    for place, inner in enumerate(tensor):
        if count > 6 and place == 3:
            yield f"{indent}    ..., "
        if count <= 6 or place < 3 or place >= count - 3:
            yield from _lines(inner, depth + 1)
    yield f"{indent}],"
