"""RazorFusionAttentionOperation: attention of pictures and text behind them, with a band in every picture."""

from __future__ import annotations

import torch

from .param import integer, number
from .registry import As, OperatorCall, Outputs, Tensors, operator
from .scores import attend, heads_of, output_shape

BLOCK = 128
HIDDEN = -10000.0
_LENGTHS = ("razorLen", "preTokens", "nextTokens", "tileQ", "tileKv", "textQLen", "textKvLen")
RAZOR = {
    "headNum": integer(1),
    "kvHeadNum": integer(1),
    "qkScale": number(1.0),
    **{name: integer() for name in _LENGTHS},
}


@operator("RazorFusionAttentionOperation", RAZOR, ("query", "key", "value"), pairs=True)
def razor_fusion_attention(call: OperatorCall, t: Tensors) -> Outputs:
    """softmax(q k^T qkScale + mask) v of sequences that are all as long as the parameters say.

    A sequence is `tileQ` (keys: `tileKv`) pictures of `razorLen` tokens and then text of `textQLen`
    (`textKvLen`). Hidden scores get -10000 added, as in the kernel, so a row that sees nothing sees
    everything a little.
    """
    p = call.param
    rows = p["razorLen"] * p["tileQ"] + p["textQLen"]
    columns = p["razorLen"] * p["tileKv"] + p["textKvLen"]
    call.need(
        min(p[name] for name in _LENGTHS) >= 0 and rows > 0 and columns > 0,
        f"queries of {rows} and keys of {columns} tokens: a length is negative, or nothing is left",
    )
    call.need(
        p["preTokens"] % BLOCK == p["nextTokens"] % BLOCK == 0,
        f"preTokens {p['preTokens']} and nextTokens {p['nextTokens']} are not multiples of {BLOCK}",
    )
    query, key, value = t["query"], t["key"], t["value"]
    batch = len(query) // rows
    call.need(
        len(query) == batch * rows and len(key) == len(value) == batch * columns,
        f"query {list(query.shape)}, key {list(key.shape)} and value {list(value.shape)} are not "
        f"sequences of {rows} queries and {columns} keys",
    )
    q = heads_of(call, query, len(query), p["headNum"], "query")
    k, v = (
        heads_of(call, tensor, len(tensor), p["kvHeadNum"], name)
        for tensor, name in ((key, "key"), (value, "value"))
    )
    bias = call.wide(~_visible(call)) * HIDDEN
    results = [
        attend(call, *sequence, bias, scale=p["qkScale"])
        for sequence in zip(torch.split(q, rows), torch.split(k, columns), torch.split(v, columns))
    ]
    out = torch.cat(results) if results else q.new_zeros(0, p["headNum"], v.shape[-1])
    return [As(out.reshape(output_shape(query, p["headNum"], out.shape[-1])), query.dtype)]


def _visible(call: OperatorCall) -> torch.Tensor:
    """A mask `[rows, columns]` of the keys that a query sees: near blocks of 128 in any picture, and text."""
    p = call.param
    length, before, after = p["razorLen"], p["preTokens"] // BLOCK, p["nextTokens"] // BLOCK
    block = torch.arange(length) // BLOCK
    ahead = block - block[:, None]
    visible = ((ahead > -before) & (ahead < after)).repeat(p["tileQ"], p["tileKv"])
    return torch.nn.functional.pad(visible, (0, p["textKvLen"], 0, p["textQLen"]), value=True)
