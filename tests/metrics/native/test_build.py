"""Building the native kernel: what fails is one sentence, and leaves what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

from acc_pytest.metrics.native import build as module
from acc_pytest.metrics.native.build import BuildError, build, main


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the library is put instead: a file is there already."""
    file = tmp_path / "libacc_kernel.so.1"
    file.write_bytes(b"before")
    monkeypatch.setattr(module, "LIBRARY", file)
    return file


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("no-such-compiler -O2", "no C\\+\\+ compiler: no-such-compiler -O2 is not in PATH"),
        ("false", "the C\\+\\+ compiler failed"),
    ],
)
def test_a_compiler_that_fails_leaves_what_was_there(
    compiler: str, said: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(BuildError, match=said):
        build()
    assert main() == 1
    assert [file.name for file in library.parent.iterdir()] == [library.name]
    assert library.read_bytes() == b"before"


def test_other_sources_have_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(module.SOURCES) == {file.name for file in module.FOLDER.glob("*.[hc]*")}
    for name in module.SOURCES:
        (tmp_path / name).write_bytes((module.FOLDER / name).read_bytes())
    before = module.digest()
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    assert module.digest() == before
    for name in module.SOURCES:
        (tmp_path / name).write_text("int x;")
        assert module.digest() not in ("", before)
        before = module.digest()
    (tmp_path / "block.h").unlink()
    assert module.digest() == ""
