"""FX dumps without an NPU: a `torch.compile` backend that writes what TorchAir writes.

    model = torch.compile(model, backend=fx_dump_backend("dump"))
    model(tokens)

leaves `dump/worldsize1_global_rank0/graph_1/0/addmm-aten.addmm.default.INPUT.0.{time}.npy` and its like.

`backend.py` is the backend, `runs.py` runs a graph and writes its files. See docs/torchair.md.
"""

from __future__ import annotations

from .backend import FxDumpBackend, fx_dump_backend

__all__ = ["FxDumpBackend", "fx_dump_backend"]
