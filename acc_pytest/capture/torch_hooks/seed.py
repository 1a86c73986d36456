"""`seed_all`: make a run repeatable, on this machine and on an accelerator."""

from __future__ import annotations

import os
import random

from ...errors import DumpConfigError

_ENVIRONMENT = {
    "LCCL_DETERMINISTIC": "1",
    "HCCL_DETERMINISTIC": "true",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Read by the libraries when they are first used; cuBLAS refuses to be deterministic without its line."""
_LARGEST = 2**32 - 1  # NumPy takes no more


def seed_all(seed: int = 2024) -> None:
    """Seed `random`, NumPy and torch on all devices, and ask for deterministic algorithms.

    `PYTHONHASHSEED` is set for child processes; this interpreter has read it already. Raises
    `DumpConfigError` for anything but a whole number from 0 to 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST:
        raise DumpConfigError(f"seed_all: seed must be a whole number from 0 to {_LARGEST}, got {seed!r}")
    import numpy as np
    import torch

    os.environ.update(_ENVIRONMENT, PYTHONHASHSEED=str(seed))
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of every device that torch knows, torch_npu's included
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
