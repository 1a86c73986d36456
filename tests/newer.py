"""What only newer releases than the oldest allowed ones have: tests of it skip there and say why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from acc_pytest.tensors.dtypes import DType, by_name


def known(dtype: DType) -> bool:
    """Whether this torch has the type, `True` for types that every release since 2.1 has."""
    return not dtype.needs or hasattr(torch, dtype.name)


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of this name. The test that asks for it skips where torch is too old for it."""
    if not known(by_name(name)):
        pytest.skip(f"torch {torch.__version__} has no {name}; torch {by_name(name).needs} has")
    found: torch.dtype = getattr(torch, name)
    return found


def experts_are_one_module() -> bool:
    """Whether the experts of Mixtral are one module, as since transformers 5, and not each one of its own."""
    transformers = pytest.importorskip("transformers")
    return int(transformers.__version__.partition(".")[0]) >= 5


def torch_dtypes(*names: str) -> list[torch.dtype]:
    """Of these types those that this torch has."""
    return [getattr(torch, name) for name in names if known(by_name(name))]


def in_this_torch(content: bytes) -> bytes:
    """A file of the real probe as we can write it: torch before 2.3 has no uint32, and lengths stay int32."""
    if known(by_name("uint32")):
        return content
    return content.replace(b"\ndtype=8\n", b"\ndtype=3\n").replace(b"uint32", b"int32")


def computes_half() -> None:
    """Skip the test where torch computes no float16 on the CPU."""
    try:
        torch.nn.functional.layer_norm(torch.ones(2, 2).half(), (2,))
    except RuntimeError:
        pytest.skip(f"torch {torch.__version__} has no layer norm of float16 on the CPU; torch 2.2 has")


def rope_base(config: Any, layer_type: str = "") -> float:
    """The base of rotary positions in layers of this type. transformers before 5 have a name for each."""
    known = getattr(config, "rope_parameters", None)
    if known is not None:
        return float(known.get(layer_type, known)["rope_theta"])
    local = getattr(config, "rope_local_base_freq", config.rope_theta)
    return float(local if layer_type == "sliding_attention" else config.rope_theta)


def gloo_sums_bfloat16() -> None:
    """Skip where a sum over processes on the CPU has no bfloat16."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 2):
        pytest.skip(f"gloo of torch {torch.__version__} has no bfloat16; that of torch 2.2 has")


def scaled_attention() -> None:
    """Skip the test where transformers refuse to use the attention of torch."""
    if torch.__version__.startswith("2.1.0"):
        pytest.skip("transformers want torch 2.1.1 for their attention sdpa")


def indexing_is_shown() -> None:
    """Skip the test where torch does not show a function mode that `x[i]` is called."""
    if torch.__version__.startswith(("2.1.", "2.2.", "2.3.")):
        pytest.skip(
            f"traces of torch {torch.__version__} do not see x[i] where i is no tuple; those of 2.4 do"
        )


def caches_have_layers() -> None:
    """Skip the test where transformers keeps keys and values of all layers in one list."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.DynamicCache(), "layers"):
        pytest.skip(f"caches of transformers {transformers.__version__} have no layers; those of 4.54 have")


def hybrid_caches_have_layers() -> None:
    """Skip the test where caches of transformers have no layers for the states of a recurrence."""
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers.cache_utils, "LinearAttentionLayer"):
        pytest.skip(f"caches of transformers {transformers.__version__} have no layers of recurrences")
