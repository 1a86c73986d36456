"""Single operators checked: an operation CSV or a dump in, one row an output out.

    entries = listed(sources) -> Entry -> prepare(entry) -> Case -> run_case(case, standard) -> [Row]

Listing needs neither torch nor the tensors, so that ten thousand rows are listed in seconds; a case looks
for its files, computes and judges when its test runs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class OpcheckRoom(ModuleType):
    """This room. It has the name of a function of the Python API, and is that function where it is called."""

    def __call__(self, source: Any, **settings: Any) -> Any:
        return import_module("acc_pytest.api").opcheck(source, **settings)


sys.modules[__name__].__class__ = OpcheckRoom
