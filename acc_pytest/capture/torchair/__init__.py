"""Configurations of TorchAir that dump: GE graphs and their tensors, and the FX graph to compare them with.

    config = get_ge_dump_config("dump")                 # or get_fx_dump_config("dump")
    model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))

`config.py` sets TorchAir's options, `arguments.py` checks what is asked for, `fusion.py` writes the file that
switches fusion off. Only these functions need TorchAir; without an NPU use `capture.fx_backend`. See
docs/torchair.md.
"""

from __future__ import annotations

from .config import get_fx_dump_config, get_ge_dump_config, write_fusion_switch

__all__ = ["get_fx_dump_config", "get_ge_dump_config", "write_fusion_switch"]
