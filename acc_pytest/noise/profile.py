"""`Profile`: what noise runs are off by in every tensor of a golden dump, kept beside it.

Tensors are known by their files below the directory of the dump, so that a dump may be moved with its
profile. A fingerprint of golden's values tells a profile that was made of another golden.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..tensors.ref import TensorRef
from ..tensors.stores.place import is_directory
from ..vocabulary import NOISE_PROFILE
from .errors import NoiseErrors


@dataclass(frozen=True, slots=True)
class ProfiledRun:
    """One noise run that a profile was made of: its float type, and how it was made, in words."""

    dtype: str
    how: str = ""

    def __str__(self) -> str:
        return f"{self.dtype} ({self.how})" if self.how else self.dtype


@dataclass(frozen=True, slots=True)
class ProfiledTensor:
    """One tensor of golden: a fingerprint of its values, and the largest errors of the noise runs."""

    fingerprint: str
    errors: NoiseErrors


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile in the file `path`; `tensors` are named by `key_of`."""

    path: str
    runs: tuple[ProfiledRun, ...]
    tensors: Mapping[str, ProfiledTensor]

    @property
    def summary(self) -> str:
        """`214 tensors, bfloat16 (sdpa), bfloat16 (eager)`."""
        return f"{len(self.tensors)} tensors, {', '.join(map(str, self.runs))}"

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The types of the noise runs, each once."""
        return tuple(dict.fromkeys(run.dtype for run in self.runs))


def profile_path(root: str) -> str:
    """The path of the profile of the dump `root`, if it has one: in its directory, or that of its one
    file."""
    return os.path.join(root if is_directory(root) else os.path.dirname(root), NOISE_PROFILE)


def key_of(ref: TensorRef, home: str) -> str:
    """The key of a tensor in the profile of the directory `home`."""
    path = os.path.relpath(ref.path, home).replace(os.sep, "/")
    return f"{path}:{ref.member}" if ref.member else path
