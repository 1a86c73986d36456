"""Mapping of TorchAir dumps: GE against FX, GE against GE, FX against FX.

step_pairs.py  which rank, graph and step meet  operators.py  which part of the graph an operator of GE is
graph.py   what a GE graph says of its tensors  fx_side.py    the calls of FX
with_fx.py, with_ge.py, calls.py  one outcome for every dumped tensor: a pair, or the reason for none
"""

from .plan import is_torchair, torchair_plan

__all__ = ["is_torchair", "torchair_plan"]
