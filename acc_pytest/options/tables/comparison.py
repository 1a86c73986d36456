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
        "from-rows",
        "from_rows",
        "judge the rows of an earlier run (--acc-rows) again, without its dumps. Repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "token-policy",
        "token_policy",
        "how token directories of an ATB dump become steps (default: auto, which says what it decided)",
        choices=TOKEN_POLICIES,
    ),
    Option(
        "level",
        "level",
        "compare this level of the model only (default: all)",
        choices=("all", *LEVELS),
    ),
    Option(
        "rank",
        "rank",
        "compare this rank only (default: all that both dumps have)",
        metavar="N",
    ),
    Option(
        "op-mapping-file",
        "op_mapping_file",
        "your op_mapping_file.json or its directory, beside the automatic mapping",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "config",
        "config",
        "mapping and threshold rules: a TOML file, or a name of golden_configs. Repeatable, the last wins",
        kind="list",
        metavar="NAME_OR_FILE",
        is_path=True,
        is_name=True,
    ),
    Option(
        "explain-mapping",
        "explain_mapping",
        "print which rule matched what, and why the rest was not matched",
        kind="flag",
    ),
)
