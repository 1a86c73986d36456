"""On what a run ran, for reports that are read elsewhere."""

from __future__ import annotations

import platform
from importlib import metadata

_PACKAGES = ("acc-pytest", "pytest", "torch", "numpy", "torch-npu")


def environment() -> dict[str, str]:
    """Python, platform, machine and the versions of the packages that matter; absent ones are left out."""
    versions = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
