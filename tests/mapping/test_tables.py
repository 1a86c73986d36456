"""The built-in tables load, know the operators of the old tool, and can be extended from a config."""

from __future__ import annotations

from typing import Any

import pytest

from acc_pytest.errors import SettingsError
from acc_pytest.mapping.tables import load_tables

TABLES = load_tables()


@pytest.mark.parametrize(
    ("op_type", "param", "kind"),
    [
        ("LinearOperation", {}, "linear"),
        ("LinearQuantOperation", {}, "linear"),
        ("LlamaRMSNorm", {}, "norm"),
        ("RmsNormOperation", {}, "norm"),
        ("PagedAttentionOperation", {}, "attention"),
        ("LlamaRotaryEmbedding", {}, "rope"),
        ("Embedding", {}, "embedding"),
        ("ElewiseOperation", {"elewiseType": 8}, "add"),
        ("ElewiseOperation", {"elewiseType": 9}, "mul"),
        ("ElewiseOperation", {}, "elewise"),
        ("ElewiseOperation", {"elewiseType": 99}, "elewise"),
        ("SomethingNew", {}, "other"),
    ],
)
def test_the_kind_of_an_operator(op_type: str, param: dict[str, int], kind: str) -> None:
    assert TABLES.kind_of(op_type, param) == kind


def test_bloom_adds_the_residual_inside_and_interleaves() -> None:
    assert TABLES.adds_residual("BloomMLP")
    assert not TABLES.adds_residual("LlamaMLP")
    assert TABLES.interleaves("BloomAttention")
    assert not TABLES.interleaves("GLMBlock")


def test_a_config_extends_lists_and_replaces_entries() -> None:
    tables = load_tables(
        {
            "kinds": {"linear": ["MyMatmul"]},
            "types_in": {"MyNorm": "TheirNorm"},
            "residual_inside": {"types": ["MyMLP"]},
            "torch": {"layer": [{"path": "^odd$", "output": "down"}]},
        }
    )
    assert tables.kind_of("MyMatmul") == "linear"
    assert tables.types_in["MyNorm"] == ("TheirNorm",)
    assert tables.types_in["RmsNormOperation"] == ("RMSNorm",)
    assert tables.adds_residual("MyMLP")
    assert tables.layer_roles[0].path.pattern == "^odd$"


@pytest.mark.parametrize(
    ("extra", "complaint"),
    [
        ({"kind": {}}, "not a mapping table"),
        ({"torch": {"layer": [{"path": "("}]}}, "tables"),
        ({"torch": {"layer": [{"path": "a", "outptu": "q"}]}}, "tables"),
        ({"elewise": {"x": "add"}}, "tables"),
    ],
)
def test_a_wrong_table_is_one_clear_error(
    extra: dict[str, dict[str, Any]] | dict[str, dict[str, list[dict[str, str]]]] | dict[str, dict[str, str]],
    complaint: str,
) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_tables(extra)


def test_every_shipped_config_has_valid_mapping_tables() -> None:

    from acc_pytest.settings import Settings

    names = ("llama", "chatglm2-6b", "bloom-7b", "qwen", "baichuan", "deepseek-moe")
    for name in names:
        tables = load_tables(Settings.from_values({"config": (name,)}).mapping)
        assert any(key.endswith("_outtensor0") for key in tables.types_in), name
