"""What the guides of the old tool name is found in docs/from-ait.md, and what that says works."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[1] / "docs" / "from-ait.md"
NAMES = (
    "parse_torchair_dump_data",
    "hook_type",
    "hook_name",
    "from llm import",
    "from ait_llm import",
    "torchair_dump",
    "{PID}_npu{dev}",
    "MlpGateLayerV2",
    "CoreAttention",
    "torchvision",
    "`-time`: the default was 1",
    "`--type`: the default was `tensor`",
    "`token` of 2024 is `logits`",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_the_guides_is_in_the_document(name: str) -> None:
    assert name in DOCUMENT.read_text("utf-8")


def test_every_import_of_the_document_works() -> None:
    found = re.findall(r"from (acc_pytest[\w.]*) import ([\w, ]+)", DOCUMENT.read_text("utf-8"))
    assert ("acc_pytest.tensors", "TensorRef") in found
    for module, names in found:
        for name in names.replace(" ", "").split(","):
            assert hasattr(import_module(module), name), f"{module}.{name}"
