"""What the guides of the old tool name is found in docs/from-ait.md, and what that says works."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

import acc_pytest
from acc_pytest import options
from acc_pytest.base import threads
from acc_pytest.base.imports import PlainModules, find_first

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
    "logitscmp",
    "logitsdump",
    "errcheck",
    "bcanalyze",
    "compare_data",
    "l1_norm",
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


# The versions that `.ci/matrix` tests as the oldest are the lower bounds of pyproject.toml.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def release(version: str) -> tuple[int, ...]:
    """`2.1.0` and `2.1` are one."""
    return tuple(int(part) for part in f"{version}.0.0".split(".")[:3])


def test_every_lower_bound_is_what_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    assert len(bounds) == len(wanted)
    pinned = re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / ".ci" / "oldest.txt").read_text(), re.MULTILINE)
    assert {name: release(bound) for name, bound in bounds.items()} == {
        name: release(version) for name, version in pinned
    }


# What the forms of the repository ask for exists, and what cites it has its version.


def test_the_citation_is_of_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {acc_pytest.__version__}\n" in citation


@pytest.mark.parametrize(
    "form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda f: f.stem
)
def test_a_form_of_an_issue_asks_for_options_that_exist(form: Path) -> None:
    yaml = pytest.importorskip("yaml")
    text = form.read_text(encoding="utf-8")
    fields = [field for field in yaml.safe_load(text)["body"] if field["type"] != "markdown"]
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert set(re.findall(r"--acc-[a-z-]+[a-z]", text)) <= {option.flag for option in options.ALL} | {
        "--acc-debug"
    }


# Modules of the package and of torch are imported past pytest's search for asserts; those of users are not.


def test_python_imports_ours_and_pytest_the_tests() -> None:
    loaders = [
        module.__spec__ and type(module.__spec__.loader) for module in (threads, sys.modules[__name__])
    ]
    assert loaders[0] is SourceFileLoader
    assert loaders[1] is not SourceFileLoader


@pytest.mark.parametrize("name", ["acc_pytest", "acc_pytests.threads", "json", "threads"])
def test_others_are_left_to_their_finders(name: str) -> None:
    assert PlainModules().find_spec(name, acc_pytest.__path__) is None


def test_a_module_that_is_not_there_is_not_found() -> None:
    assert PlainModules().find_spec("acc_pytest.no_such_module", acc_pytest.__path__) is None


def test_it_is_asked_once() -> None:
    find_first()
    assert sum(isinstance(finder, PlainModules) for finder in sys.meta_path) == 1
