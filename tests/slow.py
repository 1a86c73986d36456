"""Cases of a parametrised test that run with `-m slow` alone, beside quick ones that always do."""

from __future__ import annotations

from functools import partial

import pytest

slow = partial(pytest.param, marks=pytest.mark.slow)
"""`pytest.param` of a slow case: `CONTRIBUTING.md` says which."""
