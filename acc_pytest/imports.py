"""NumPy and torch, imported without what comes with them: threads, and a search for garbage."""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module

from .garbage import leave_what_came, without_collector

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@functools.cache
def go_without_blas() -> None:
    """Have `import_numpy` import it without threads. For processes that run nothing but generated tests."""


def import_numpy() -> None:
    """Import NumPy without the threads of its BLAS, if nobody wants these (`go_without_blas`).

    OpenBLAS starts one for each core, which looks for work for a tenth of a second before it sleeps: with 16
    cores a second and a half of each process. Nothing of ours calls it. A variable that is set is respected.
    """
    if "numpy" in sys.modules or not go_without_blas.cache_info().currsize or _BLAS_THREADS in os.environ:
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_BLAS_THREADS]  # torch, and programs that are started, may read it too


@functools.cache
def import_torch() -> None:
    """Import torch without looking for garbage among the half million objects that it is made of."""
    if "torch" in sys.modules:
        return
    import_numpy()  # torch does
    with without_collector():
        import_module("torch")
    leave_what_came()
