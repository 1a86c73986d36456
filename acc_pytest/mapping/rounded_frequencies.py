"""Position tables of mine whose frequencies were rounded: `model.half()` does that to buffers, loading with a
type does not.

A table holds cos(p f) and sin(p f) of positions p and frequencies f. Where f is off by up to u, the roundoff
of its dtype, p f is off by up to p f u: in the root mean square over positions up to P, and over roundings
that are evenly spread, by P rms(f) u / 3. Rotated keys are off by that, relative to themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..dumps.calls import NodeSlot
from ..dumps.modules import ModuleDump
from ..errors import AccError
from ..tensors.dtypes import by_name
from .evidence import Evidence
from .module_flow import ModuleFlow

_NAMED = "freq"
"""What the names of such buffers hold: `inv_freq`, `original_inv_freq`, `freqs`."""


def explained_by_frequencies(
    golden: ModuleDump, mine: ModuleDump, evidence: Evidence, flow: ModuleFlow
) -> dict[NodeSlot, float]:
    """The relative error that rounded frequencies explain in tables and in caches of keys, of one step."""
    modules = _rounded(golden, mine)
    largest = _largest_position(evidence, flow, modules) if modules else 0
    if not largest:
        return {}
    most = max(modules.values())
    return {
        place: largest * modules.get(place.path, most) / 3
        for place in flow.order
        if (place in flow.caches and _holds_keys(place))
        or (place.path in modules and place.slot.kind == "output")
    }


def _holds_keys(place: NodeSlot) -> bool:
    """Whether a cache may hold keys: values are not rotated."""
    return not any("value" in str(part) for part in place.slot.index[1:])


def _rounded(golden: ModuleDump, mine: ModuleDump) -> dict[str, float]:
    """rms(f) u of the modules whose frequencies are golden's, rounded to a coarser dtype."""
    modules: dict[str, float] = {}
    exact = golden.weights(golden.ranks[0])
    for name, saved in mine.weights(mine.ranks[0]).items():
        module, _, last = name.rpartition(".")
        other = exact[name].digest if name in exact else None
        if saved.kind != "buffer" or _NAMED not in last or saved.digest is None or other is None:
            continue
        roundoffs = [by_name(digest.dtype).roundoff or 0.0 for digest in (other, saved.digest)]
        if roundoffs[1] > roundoffs[0] and other.same_values(saved.digest):
            rms = other.norm / math.sqrt(max(1, math.prod(other.shape)))
            modules[module] = max(modules.get(module, 0.0), rms * roundoffs[1])
    return modules


def _largest_position(evidence: Evidence, flow: ModuleFlow, modules: Iterable[str]) -> int:
    """The largest position that golden's modules, or its step, were given; 0 where none was dumped."""
    nodes = evidence.golden.tree.by_path
    places = [place for place, kind in flow.fed.items() if kind == "positions" and place.path in nodes]
    for path in (path for path in modules if path in nodes):
        places += [
            NodeSlot(path, slot) for slot in evidence.golden.slots(nodes[path]) if slot.kind == "input"
        ]
    largest = 0
    for place in places:
        ref = evidence.golden.slots(nodes[place.path]).get(place.slot)
        try:
            if ref is not None and ref.header().numel and ref.header().dtype.format is None:
                largest = max(largest, int(ref.open().max()))
        except AccError:
            continue  # its own pair says what is wrong with it
    return largest
