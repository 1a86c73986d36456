"""Single operators checked: an operation CSV or a dump in, one row an output out.

    entries = listed(sources) -> Entry -> prepare(entry) -> Case -> run_case(case, standard) -> [Row]

Listing needs neither torch nor the tensors, so that ten thousand rows are listed in seconds; a case looks
for its files, computes and judges when its test runs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType


class OpcheckRoom(ModuleType):
    """This room, called by its name: the function of the Python API that has it too."""

    def __call__(self, source: object, **settings: object) -> object:
        return import_module("acc_pytest.api").opcheck(source, **settings)


sys.modules[__name__].__class__ = OpcheckRoom
