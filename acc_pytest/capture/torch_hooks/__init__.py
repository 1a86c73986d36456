"""Dumps of a torch model: `register_hook(model, DumpConfig(...))` saves what goes in and out of its modules.

    with register_hook(model, DumpConfig("dumps", token_range=range(3))):
        model.generate(**prompt, max_new_tokens=3)

`config.py` is what may be asked for, `register.py` puts hooks on a model, `recorder.py` is what they do,
`values.py` finds the tensors in arguments and results, `api_mode.py` sees the functions called in between.
See docs/dump-torch.md.
"""

from __future__ import annotations

from .config import DumpConfig, seed_all
from .register import DumpHandle, register_hook

__all__ = ["DumpConfig", "DumpHandle", "register_hook", "seed_all"]
