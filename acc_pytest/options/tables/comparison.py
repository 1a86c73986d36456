"""What is compared with what, and how it is mapped: fields of `Settings`."""

from __future__ import annotations

from ...vocabulary import LEVELS, TOKEN_POLICIES
from ..option import Option

COMPARISON = (
    Option(
        "golden", "golden", "the trusted dump: a directory or one tensor file", metavar="PATH", is_path=True
    ),
    Option(
        "mine", "mine", "the dump under test: a directory or one tensor file", metavar="PATH", is_path=True
    ),
    Option(
        "token-policy",
        "token_policy",
        "how token directories of an ATB dump become steps; auto decides from evidence and prints it",
        choices=TOKEN_POLICIES,
    ),
    Option(
        "level",
        "level",
        "compare only pairs of this level of the model (default: all)",
        choices=("all", *LEVELS),
    ),
    Option(
        "rank",
        "rank",
        "compare only this rank of both dumps (default: all ranks that both have)",
        metavar="N",
    ),
    Option(
        "op-mapping-file",
        "op_mapping_file",
        "op_mapping_file.json, or the directory that holds it; adds to the automatic mapping",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "config",
        "config",
        "a name from golden_configs, or a TOML file of mapping and threshold rules; repeatable, last wins",
        kind="list",
        metavar="NAME_OR_FILE",
        is_path=True,
        is_name=True,
    ),
    Option(
        "explain-mapping",
        "explain_mapping",
        "print what was matched by which rule, and what was not matched and why",
        kind="flag",
    ),
)
