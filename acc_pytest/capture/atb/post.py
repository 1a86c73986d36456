"""What remains to be done when the program has ended: graphs as ONNX, profiling texts as CSV.

A file that cannot be converted costs itself only; the sentence about it goes to the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...errors import AccError
from .profiling import TEXT_NAME, profile_to_csv
from .written_files import WrittenFiles


def convert_profiles(written: WrittenFiles) -> list[str]:
    """Turn every profiling text of this run into a CSV file; returns what went wrong."""
    problems = []
    for path in written.files("cpu_profiling"):
        if TEXT_NAME.fullmatch(path.name):
            try:
                profile_to_csv(path)
            except AccError as error:
                problems.append(str(error))
    return problems


def convert_graphs(written: WrittenFiles, told: Path, output: Path) -> list[str]:
    """Write an ONNX file beside every topology file of this run; returns what went wrong.

    `told` is the list that the program's processes wrote; without one (msprobe's probe writes none) every
    topology file of the run counts. Paths in it are followed only below `output`.
    """
    paths, problems = _listed(told, output) if told.is_file() else (written.files("layer", "model"), [])
    if not paths:
        return problems
    from ...topology.onnx_export import atb_json_to_onnx

    cache: dict[str, object] = {}
    for path in paths:
        try:
            atb_json_to_onnx(path, cache_csv_file=cache)
        except (AccError, OSError) as error:
            problems.append(str(error))
    return problems


def _listed(told: Path, output: Path) -> tuple[Sequence[Path], list[str]]:
    """The existing files named in `told`, each once; and sentences about names that lead elsewhere."""
    inside: list[Path] = []
    outside: list[str] = []
    text = told.read_text(encoding="utf-8", errors="surrogateescape")
    for path in dict.fromkeys(Path(line.strip()) for line in text.splitlines() if line.strip()):
        if not path.is_file():
            continue
        if path.resolve().is_relative_to(output):
            inside.append(path)
        else:
            outside.append(f"{told}: {path} is not below {output} and was not converted")
    return inside, outside
