"""The families of operators: each is a module of shape rules here and one of oracles in `oracles`."""

from __future__ import annotations

FAMILIES = (
    "attention",
    "caches",
    "elementwise",
    "experts",
    "latent",
    "moving",
    "norms",
    "paged",
    "preprocess",
    "products",
    "routing",
    "sampling",
    "self_attention",
    "training",
)
