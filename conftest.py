"""For this repository's own tests only: the plugin that drives pytest from inside pytest, and their order."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]

# Several workers share the cores, and their tests start processes of their own: threads of torch would only
# wait for each other. It has to be said before torch is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

LONGEST = ("test_torchair_document.py", "html/test_chromium.py", "test_real_torchair.py")
"""Files whose tests cannot be split: a worker that met them last would keep the others waiting."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first; the order of the others stays."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONGEST))
