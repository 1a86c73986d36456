"""Dumps of TorchAir without an NPU: `make_torchair_demo(directory, TorchairSpec(...))`.

FX in float32, the golden, is dumped by our own backend; GE in float16, mine, is what the graph that TorchAir
would write computes operator by operator, with one pair fused, in records as the device writes them; and GE
once more without fusion.
"""

from __future__ import annotations

from .make import GeFault, TorchairPaths, TorchairSpec, make_torchair_demo

__all__ = ["GeFault", "TorchairPaths", "TorchairSpec", "make_torchair_demo"]
