"""Which kernel measures: what is there, and what `ACC_KERNEL` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.metrics.native import library as module
from acc_pytest.metrics.native.library import ISAS, chosen, described, library


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No choice, and a library that is looked for again."""
    monkeypatch.delenv("ACC_KERNEL", raising=False)
    library.cache_clear()
    yield
    library.cache_clear()


def test_without_a_library_python_measures_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "LIBRARY", tmp_path / "none.so")
    assert chosen() is None
    assert described().startswith("python (it was not built: ")
    monkeypatch.setenv("ACC_KERNEL", "native")
    with pytest.raises(SettingsError, match="ACC_KERNEL=native, but there is no native kernel: it was not"):
        chosen()
    assert described().startswith("none (ACC_KERNEL=")


def test_what_is_no_library_is_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "libacc_kernel.so"
    file.write_bytes(b"\x7fELF" + bytes(100))
    monkeypatch.setattr(module, "LIBRARY", file)
    assert chosen() is None
    assert f"{file} does not load" in described()


def test_a_library_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if not library().kernels:
        pytest.skip(library().reason)
    monkeypatch.setattr(module, "digest", lambda: "other")
    library.cache_clear()
    assert chosen() is None
    assert "was built from other sources" in described()


def test_the_widest_instructions_are_chosen() -> None:
    if not library().kernels:
        pytest.skip(library().reason)
    assert chosen() is library().kernels[max(library().kernels, key=ISAS.index)]
    assert described() == f"native ({max(library().kernels, key=ISAS.index)})"


def test_the_environment_may_ask_for_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACC_KERNEL", "python")
    assert chosen() is None
    assert described() == "python (ACC_KERNEL=python)"


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACC_KERNEL", "cuda")
    with pytest.raises(SettingsError, match="ACC_KERNEL=cuda: it must be one of auto, native, python"):
        chosen()
    assert described().startswith("none (ACC_KERNEL=")
