"""cpu_profiling: what setup and execution of a top-level operation took, as the probe's text lines."""

from __future__ import annotations

from collections.abc import Mapping


def line(name: str, values: Mapping[str, int]) -> str:
    """`[WordEmbedding_0]:totalTime:188, runnerCreateTime:3`, ended by a line feed."""
    return f"[{name}]:" + ", ".join(f"{key}:{value}" for key, value in values.items()) + "\n"
