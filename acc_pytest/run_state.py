"""The state of a run before anything of ours is imported: whether it has any options of ours."""

from __future__ import annotations

import pytest

REPORTS = "acc_reports"
"""The plugin that takes rows. A run that asks for nothing has it from the first of our fixtures on."""
AUTO = pytest.StashKey[bool]()
"""In `config.stash` where the number of xdist's workers was left open: `-n auto`, `-n logical`."""


def is_open(config: pytest.Config) -> bool:
    """Whether the run has something of ours."""
    return config.pluginmanager.hasplugin(REPORTS)
