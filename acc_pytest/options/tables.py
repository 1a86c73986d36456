"""The options, a table for each topic. Where nothing else is said, they are fields of `Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..base.vocabulary import (
    BACKENDS,
    BASELINE_UPDATES,
    COMPARISON_STANDARDS,
    ENGINES,
    INHERITED_OUTCOMES,
    JUNIT_PROPERTIES,
    LEVELS,
    NO_NOISE,
    OPCHECK_METRICS,
    PRECISION_MODES,
    PRECISIONS,
    REPLAYED,
    SETTINGS,
    SOCS,
    STANDARDS,
    TOKEN_POLICIES,
    UNMAPPED_OUTCOMES,
)


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `name` is its name after `--acc-`.

    `kind` says how the value is written: one `text`, one `number`, a `list` (repeat the option; in an ini
    file one per line), or a `flag`. `is_path`: the value is a path, of which `is_name` says that a bare word
    may be a name instead, and `word` the one word that is none; `is_sided`: it follows the name of a side and
    `=`. `const` is the value of an option that is given without one. `plural` is the name of its field where
    that is not the option's. One of `vocabulary.SETTINGS` is an ini value alone: `-o acc_name=value` on a
    command line.
    """

    name: str
    help: str
    kind: Literal["text", "number", "list", "flag"] = "text"
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_path: bool = False
    is_name: bool = False
    is_sided: bool = False
    word: str = ""
    const: str = ""
    plural: str = ""

    @property
    def setting(self) -> bool:
        """Whether it is an ini value alone."""
        return self.name in SETTINGS

    @property
    def flag(self) -> str:
        """The word before `=value` on a command line."""
        return f"-o{self.dest}" if self.setting else f"--acc-{self.name}"

    @property
    def field(self) -> str:
        """Its name in `Settings` (or `OpcheckSettings`)."""
        return self.plural or self.name.replace("-", "_")

    @property
    def dest(self) -> str:
        """Attribute of the parsed options and name of the ini value."""
        return "acc_" + self.name.replace("-", "_")


COMPARISON = (
    Option(
        "golden",
        "the trusted dump: a directory, a tensor file, s3://... or a list of roots. Repeatable",
        kind="list",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "mine",
        "the dump under test; given several times, with * or as a list: roots of one dump",
        kind="list",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "from-rows",
        "judge the rows of an earlier run (--acc-rows) again, without its dumps. Repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "token-policy",
        "how token directories of an ATB dump become steps (default: auto, which says what it decided)",
        choices=TOKEN_POLICIES,
    ),
    Option(
        "mine-dtype",
        "the precision in which mine was computed, where its files say another (default: what they say)",
        choices=tuple(PRECISIONS),
    ),
    Option("level", "compare this level of the model only (default: all)", choices=("all", *LEVELS)),
    Option("rank", "compare this rank only (default: all that both dumps have)", metavar="N"),
    Option(
        "op-mapping-file",
        "your op_mapping_file.json or its directory, beside the automatic mapping",
        metavar="PATH",
        is_path=True,
    ),
    Option(
        "weights",
        "compare weights first: golden's or mine's checkpoint, a directory or a file. Once for each side",
        kind="list",
        metavar="SIDE=PATH",
        is_path=True,
        is_sided=True,
    ),
    Option(
        "config",
        "mapping and threshold rules: a TOML file, or a name of golden_configs. Repeatable, the last wins",
        kind="list",
        metavar="NAME_OR_FILE",
        is_path=True,
        is_name=True,
    ),
    Option("explain-mapping", "print which rule matched what, and why the rest was not matched", kind="flag"),
)
"""Options of the two dumps and their mapping."""

STORES = (
    Option(
        "cache-dir",
        "where bytes of s3://... and other stores are kept (default: ~/.cache/acc_pytest)",
        metavar="DIR",
        is_path=True,
    ),
    Option("cache-size", "how much is kept there, as in 500M or 2T (default: 10G)", metavar="SIZE"),
)
"""Dumps in object stores."""

THRESHOLDS = (
    Option(
        "standard",
        "where the bounds come from (default: dtype and depth; three-way where the noise of golden is known)",
        choices=COMPARISON_STANDARDS,
    ),
    Option(
        "noise",
        "a noise run of golden, whose error sets the bounds (default: golden's noise profile; none: neither)",
        metavar="PATH",
        is_path=True,
        word=NO_NOISE,
    ),
)
"""Where the thresholds of a comparison come from."""

REPLAY = (
    Option(
        "replay",
        "compute operators of mine again, up to so many elements; auto (default): cheap ones; off: none",
        metavar="ELEMENTS",
        const=str(REPLAYED),
    ),
    Option(
        "model",
        "golden's model, to compute modules of mine again: a checkpoint, or a function that returns it",
        metavar="DIR|FILE.py:FUNCTION",
        is_path=True,
    ),
)
"""Operators held against themselves, computed again."""

REPORTS = (
    Option(
        "metric",
        "your own metric, (golden, mine) -> (number, message). Repeatable",
        kind="list",
        metavar="FILE.py:FUNCTION",
        is_path=True,
        plural="metrics",
    ),
    Option("output", "directory of the CSV report (default: .)", metavar="DIR", is_path=True),
    Option(
        "csv",
        "the CSV report, below --acc-output (default: acc_report.csv); TIMESTAMP in it becomes the time",
        metavar="FILE",
    ),
    Option(
        "rows",
        "write every comparison as a line of JSON, for --acc-from-rows and acc report",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "html",
        "write the run as one HTML page: roots, charts, every comparison",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "history",
        "add this run to the runs kept there, for acc history and the page: errors over time",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "json",
        "write the run as one JSON file for programs: verdict, caveats, roots, their evidence and commands",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "junit-properties",
        "whether test cases in --junitxml have the numbers as properties (default: all)",
        choices=JUNIT_PROPERTIES,
    ),
    Option(
        "repro",
        "write a folder for each root, or failing operator, with a test that fails on its own",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "summary",
        "write the summary as Markdown (default on GitHub Actions: the summary of the step)",
        metavar="FILE",
        is_path=True,
    ),
)
"""Metrics and reports, of comparisons and of single-operator checks alike."""

GATE = (
    Option(
        "min-coverage",
        "fail the run when a smaller share of the nodes is mapped (0 to 1, default: 0.5)",
        kind="number",
        metavar="SHARE",
    ),
    Option(
        "inherited",
        "make inherited failures expected failures (default), failures, or passing tests with a warning",
        choices=INHERITED_OUTCOMES,
    ),
    Option(
        "unmapped",
        "make nodes without a partner skipped tests (default), failing tests, or no tests",
        choices=UNMAPPED_OUTCOMES,
    ),
)
"""Options that make a comparison fail, apart from its thresholds."""

GATES = (
    Option(
        "baseline",
        "fail each pair worse than its error in this file, and loosened thresholds. Repeatable, for shards",
        kind="list",
        metavar="FILE",
        is_path=True,
    ),
    Option(
        "update-baseline",
        "write errors and thresholds into the baseline at the end: of new pairs (default), or all",
        choices=BASELINE_UPDATES,
        const="new",
    ),
)
"""Options that single-operator checks and people's own comparisons have too."""

SHARING = (
    Option(
        "shard",
        "run share I of N of the tests, balanced by file size; acc report merge joins the rows",
        metavar="I/N",
    ),
    Option(
        "threads",
        "threads that measure one large tensor: a number, or auto (cores / workers, the default)",
        metavar="N",
    ),
)
"""How a run is shared between machines and cores, whatever it compares or checks."""

ENGINE = (
    Option(
        "engine",
        "where pairs are measured: by pytest itself (local, the default), or on the nodes of a Ray cluster",
        choices=ENGINES,
    ),
    Option(
        "ray-address",
        "that cluster: HOST:PORT, ray://HOST:PORT, auto or local (default: RAY_ADDRESS, else local)",
        metavar="ADDRESS",
    ),
    Option(
        "engine-patience",
        "seconds without an answer after which pairs are measured on another node (default: 300)",
        metavar="SECONDS",
    ),
)
"""Where the tensors of a comparison are read."""

DEBUGGING = (
    Option("debug", "print the traceback of an unexpected error, not only its message", kind="flag"),
)
"""Options on our own mistakes. No fields of `Settings`: they change nothing of a run."""


# The options of checks of single operators, a table for each topic.


OPCHECK = (
    Option(
        "opcheck",
        "check single operators: an operation CSV, or a dump with op_param.json files. Repeatable",
        kind="list",
        metavar="CSV_OR_DIR",
        is_path=True,
    ),
    Option(
        "opcheck-input",
        "where the tensors of the CSV are now: tensors/DEVICE_PID/N or above",
        metavar="DIR",
        is_path=True,
    ),
    Option("opcheck-ids", "check only these ids and what lies below them: 24_1,2_3_5", metavar="IDS"),
    Option(
        "opcheck-opname",
        "check only operators whose name contains one of these: self,linear",
        metavar="NAMES",
    ),
    Option(
        "opcheck-standard",
        "the rules that an output must pass (default: ascend, the bounds of ATB)",
        choices=STANDARDS,
    ),
    Option(
        "opcheck-other",
        "the same dump of a second device, for the standards three-way and two-golden",
        metavar="DIR",
        is_path=True,
    ),
    Option(
        "opcheck-soc",
        "the chip that wrote the dump (default: what the CSV says, else Ascend910B)",
        choices=SOCS,
    ),
    Option(
        "opcheck-backend",
        "what is judged: the outputs in the dump (default), or those of an NPU that computes again",
        choices=BACKENDS,
    ),
    Option("device-id", "the NPU of acc_opcheck_backend (default: 0)", metavar="N"),
    Option(
        "opcheck-optimization",
        "on the NPU, run attention again with each optimisation parameter switched off in turn",
        kind="flag",
    ),
    Option(
        "precision-mode",
        "convert all float tensors of single operators to one dtype (default: keep)",
        choices=PRECISION_MODES,
    ),
    Option(
        "opcheck-metric",
        "metrics that the CSV has beside the relative error. Repeatable (default: all)",
        kind="list",
        choices=OPCHECK_METRICS,
    ),
)
"""Single-operator checks: fields of `OpcheckSettings`."""

FUZZ = (
    Option(
        "opcheck-fuzz",
        "check this ATB operator of the device of acc_opcheck_backend on drawn cases. Repeatable",
        kind="list",
        metavar="OPERATOR",
    ),
    Option(
        "fuzz-examples",
        "how many cases --acc-opcheck-fuzz draws for each operator (default: 100)",
        metavar="N",
    ),
)
"""Fuzzing of operators."""
