"""Words that options, settings and rooms must agree on. Imports little, for options are read at start-up."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence

_BETWEEN_WORDS = {ord(sign): " " for sign in ",，、"}
TOKEN_POLICIES = ("auto", "raw", "no-warmup", "warmup", "torch-like")
"""Ways from token directories of an ATB dump to steps, as `docs/mapping.md` describes them."""

LEVELS = ("layer", "module", "op", "logits")
"""Levels of a pair: layers and what stands beside them, composites, operators, the last output."""
STANDARDS = ("ascend", "two-golden", "msit", "open", "three-way", "distribution")
"""Rules by which an output of a single operator passes."""
DEFAULT_STANDARD = "ascend"
"""The standard that judges by default."""
SECOND_DEVICE = ("three-way", "two-golden")
"""Standards that use the outputs of a second device."""
NO_NOISE = "none"
"""The value of `--acc-noise` that leaves the profile beside golden out."""
REPLAY_AUTO = "auto"
REPLAY_WORDS = (REPLAY_AUTO, "off")
OF_MODULES = frozenset({"torch", "msprobe", "sglang", "hf-debugger"})
"""Kinds of dumps that hold what the modules of a torch model were given: a golden model computes these."""
REPLAYED = 1 << 27
"""Elements up to which operators are computed again where replay is asked for without a number."""
"""Values of `--acc-replay` beside a number: by what golden's dump outlines, and not at all."""
CHOOSING = frozenset({"topk", "argmax", "max"})
"""Functions of torch that a dump of modules has too, for what they chose; `max` along a dimension."""
NOISE_PROFILE = "acc_noise_profile.json"
"""The file beside golden that says what its noise is."""
COMPARISON_STANDARDS = ("default", "ascend", "torch", "three-way")
"""Rules by which a pair of a comparison passes."""
OF_OTHERS = ("ascend", "torch")
"""Standards that somebody else has written, and that mean what they say elsewhere."""
OPCHECK_METRICS = ("abs", "cos_sim", "kl")
"""Metrics of the old single-operator report beside the relative error."""
OPCHECK = "opcheck"
"""The name that ids of tests of operators begin with, and what stands where comparisons name the rule that
mapped a pair."""
DUMPED = "dumped"
BACKENDS = (DUMPED, "torch_atb", "operation_torch")
"""Sources of a single operator's outputs: the dump, or a device that runs it again."""
PRECISION_MODES = ("keep", "fp16", "fp32")
"""Types as which the float tensors of a single operator are read."""
SOCS = ("Ascend910A", "Ascend910B", "Ascend310P", "Ascend310B", "Ascend950")
"""Chips whose operators differ."""
DEFAULT_SOC = "Ascend910B"
"""The chip whose rules apply to a dump that names none."""
GRADIENTS = ("backward", "parameters_grad")
"""The suffix of nodes of gradients, behind the name of the forward call."""
REPEATED = "weights: {}"
"""The template of a note of the plan that the summary repeats: it says what a run does not prove."""
EARLIER_CALLS = "earlier calls of {}, which the dump does not hold"
"""The template of what a module computed from, where a later call of another replaced its tensors."""
PRECISIONS: Mapping[str, str] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    **{
        name: f"quantised.{name}"
        for name in ("int8", "q8_0", "q6_k", "q5_0", "q5_1", "q5_k", "q4_0", "q4_1", "q4_k")
    },
}
"""Precisions of a computation as users state them, and the types whose rounding they have."""
SCALE_ENDINGS = ("_scale_inv", "_scale", "_scales")
"""What the name of what codes are multiplied by has more than theirs: DeepSeek's, vLLM's, and others'."""
OF_POSITIONS = frozenset({"position", "positions", "pos", "rotary", "rope", "freqs", "cos", "sin", "mask"})
"""Words in the names of arguments that follow from the places of tokens, not from what tokens are."""
ORDERS_OF_NAMES = ("layer order", "the order of saving", "the order of names")
"""Orders of tensors that have names alone: the second where their file keeps it, the third without layers."""
ENGINES = ("local", "ray")
"""Places where pairs are measured: the processes of pytest, or the nodes of a Ray cluster."""
JUNIT_PROPERTIES = ("all", "none")
"""The properties in a JUnit file."""
UNMAPPED_OUTCOMES = ("skip", "fail", "ignore")
"""The outcome of the tests of nodes without a partner."""
BASELINE_UPDATES = ("new", "all")
"""The rows of a run that are written to its baseline."""
INHERITED_OUTCOMES = ("xfail", "fail", "warn")
"""The outcome of the tests of pairs that fail because their inputs do."""


def words_of(*pieces: str) -> tuple[str, ...]:
    """The entries of a list as people type it: `2, 3_1`, or as a shell hands it over (`2,` and `3_1`).

    The commas of a Chinese keyboard are commas.
    """
    return tuple(" ".join(pieces).translate(_BETWEEN_WORDS).split())


SETTINGS = frozenset({
    "cache-dir", "cache-size", "device-id", "engine", "engine-patience", "fuzz-examples", "inherited",
    "junit-properties", "opcheck-backend", "opcheck-optimization", "opcheck-soc", "precision-mode",
    "ray-address", "threads", "unmapped",
})  # fmt: skip
"""Values that are set once for a machine or a project: ini values that have no option."""


def option_name(field: str) -> str:
    """An option as its user writes it: `--acc-level`, or the ini value `acc_threads`."""
    name = field.replace("_", "-")
    return f"acc_{field}" if name in SETTINGS else f"--acc-{name}"


INCOMPLETE = "incomplete"
"""Why a plan has something without a partner that a dump states and does not hold; the verdict of its row."""

LONGEST = 160
"""Characters of one part of a test id; a longer one is cut and gets a hash of the whole."""
NOT_SELECTABLE = re.compile(r"[^\w+\-.\[\]/]", re.ASCII)
"""Characters that `pytest -k` cannot spell; also `:`, since `::` separates the names in a node id."""


def selectable(name: str, unfit: re.Pattern[str] = NOT_SELECTABLE) -> str:
    """`name` as a part of a test id: `-k` can spell it, any encoding has it, and its length is bounded.

    Different names may become one, unless they are cut.
    """
    text = unfit.sub("_", name[: LONGEST + 1])
    if len(text) <= LONGEST:
        return text
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return f"{text[: LONGEST - 11]}.{digest}"


@functools.lru_cache(maxsize=1024)  # a bound stands in several reports
def number(value: bool | int | float | str | None) -> str:
    """A number for people: six digits, but `1 - 6.6e-13` where six digits would say 1."""
    if not isinstance(value, float):
        return str(value)
    short = f"{value:.6g}"
    return f"1 - {1 - value:.3g}" if short == "1" and value < 1 else short


def number_ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in words: `0-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
