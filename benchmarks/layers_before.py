"""How far right runs are from what their own layers before show: the constant of `judging.derive`.

    python benchmarks/layers_before.py [--seed 1] [--count 30]

Golden are deep networks of transformers in float32 with weights of the styles of `real_networks.py`, mine the
same in float16 or bfloat16, with another way to compute attention where there is one. Two dumps are compared
without a profile and without replay. Of each tensor that has a level (`noise.along_depth`), the error of its
typical row, and of its last rows, is divided by that level; where it is beyond 4, by that of the same tensor
in the layers before, if that is more. Printed are quantiles over all tensors, and the networks that are red
by a bound of layers before and by no other. The exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from detecting.runs import judged
from rates import counted
from realistic.architectures import ARCHITECTURES
from realistic.networks import CASTINGS, Setting, Terms, dump, make, network
from realistic.ports import PORTS
from realistic.styles import STYLES

from acc_pytest.base.reason import contains
from acc_pytest.base.threads import one_thread
from acc_pytest.judging.threshold import LAYERS_BEFORE
from acc_pytest.reporting.row import Row

METRICS = {
    "typical_row_error": "level_typical_row",
    "last_row_error": "level_last_row",
    "relative_euclidean_distance": "level_last_row",
}
LAYERS, HIDDEN, TOKENS = (10, 12, 16, 20), (64, 64, 128), (8, 12, 16, 24, 33, 48)
QUANTILES = (0.5, 0.99, 0.999, 1.0)


def drawn(name: str, draw: random.Random) -> Setting:
    """A deep network of this architecture."""
    architecture = ARCHITECTURES[name]
    style = draw.choice([style for style in STYLES.values() if style.fits(architecture)])
    tokens = draw.choice([count for count in TOKENS if count >= style.least_tokens] or [TOKENS[-1]])
    first = draw.choice(architecture.implementations)
    second = draw.choice([each for each in architecture.implementations if each != first] or [first])
    dtype = draw.choice(("float16", "bfloat16"))
    terms = Terms(dtype, draw.choice(CASTINGS), second, draw.choice(list(PORTS)))
    sizes = draw.choice(LAYERS), draw.choice(HIDDEN), tokens
    return Setting(name, terms, style.name, first, *sizes, draw.randrange(1_000_000))


def compared(setting: Setting) -> list[Row]:
    """The rows of golden and a right port."""
    with tempfile.TemporaryDirectory() as home:
        golden = make(setting, Path(home) / "golden")
        dump(setting, network(setting, setting.mine), golden.fed, Path(home) / "mine")
        return judged({"golden": str(golden.path), "mine": f"{home}/mine", "noise": "none", "replay": "off"})[
            0
        ]


@one_thread()
def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=30, help="networks")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    names = [*ARCHITECTURES]
    draw.shuffle(names)
    shares: dict[str, list[float]] = {metric: [] for metric in METRICS}
    red = 0
    for number in range(arguments.count):
        setting = drawn(names[number % len(names)], draw)
        rows = compared(setting)
        beyond = [check for row in rows for check in row.checks if not check.passed]
        by_layers = [check for check in beyond if contains(check.reason, LAYERS_BEFORE)]
        for row in rows:
            for metric, field in METRICS.items():
                level, error = row.context.get(field), row.metrics.get(metric)
                if any(
                    contains(check.reason, LAYERS_BEFORE) for check in row.checks if check.metric == metric
                ):
                    shares[metric].append(float(error or 0.0) / float(level or 1.0))
        red += bool(by_layers) and len(by_layers) == len(beyond)
        if by_layers:
            print(f"{len(by_layers)} of {len(beyond)} by layers before: {setting}", flush=True)
    for metric, values in shares.items():
        if not values:
            continue
        values.sort()
        texts = [f"{q:.1%} {values[min(len(values) - 1, int(q * len(values)))]:.2f}" for q in QUANTILES]
        print(f"{metric:<27} of {len(values)} tensors, in levels: {', '.join(texts)}")
    print(f"networks red by layers before alone: {counted(red, arguments.count)}; seed {arguments.seed}")
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main())
