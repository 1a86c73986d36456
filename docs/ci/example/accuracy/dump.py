"""Run the reference and the port on one prompt and dump both: `python -m accuracy.dump GOLDEN MINE`.

Yours to change. Where the golden dump is made once and kept elsewhere, fetch it here; where the port needs an
accelerator, this runs on a machine that has one. docs: dump-torch.md, dump-atb.md, torchair.md.
"""

from __future__ import annotations

import shutil
import sys

import model
import port
import torch

from acc_pytest import DumpConfig, register_hook


def dump(network: torch.nn.Module, directory: str) -> None:
    """Two calls: the prompt, and the prompt with one more token, the same one for both networks."""
    shutil.rmtree(directory, ignore_errors=True)
    prompt = torch.arange(3, 15)[None]
    with torch.no_grad(), register_hook(network, DumpConfig(directory, range(2))):
        network(prompt)
        network(torch.cat([prompt, torch.tensor([[40]])], 1))


if __name__ == "__main__":
    torch.manual_seed(0)
    golden = model.Decoder()
    dump(golden, sys.argv[1])
    dump(port.ported(golden), sys.argv[2])
