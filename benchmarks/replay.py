"""What replay and causes cost: CPU seconds of whole runs over those of the plain comparison, case by case.

    python benchmarks/replay.py [--quick] [--only atb int8 torch msprobe] [--home DIR]

    atb      the demo against its golden in torch, of so many layers and steps
    int8     the same quantised, with `--acc-config w8a8`
    torch    a Llama of 152,000 tokens in bfloat16 against float32, the tokens after the prompt sampled
    msprobe  records of functions and modules with their tensors

Each case is run three times, one process after the other: green with `--acc-replay=off`, which is the plain
comparison, green by default, and red by default, where an operator of an early layer is off. Either of the
last two takes at most 3 times the first, and the green one of 1,000 pairs and more at most 1.6 times. Two
more run under cProfile and tell where the rest of the dearer of the two goes: what it takes more than the
plain comparison, by rooms of acc_pytest (time in other packages is that of the room that called them).
`--quick` takes the small sizes alone. The exit status is 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import os
import pstats
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from acc_pytest import DumpConfig, register_hook
from acc_pytest.lab.atb import Fault
from acc_pytest.lab.demo import DemoSpec, make_demo
from tests.dumps.msprobe_writer import RankWriter

MOST, OF_MANY, MANY = 3.0, 1.6, 1000
"""The most that runs take of the plain comparison, green ones of many pairs, and how many these are."""
PACKAGE = f"{os.sep}acc_pytest{os.sep}"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
OFF = "--acc-replay=off"
VOCABULARY = 152_000
ROW = "{:<24} {:>6} {:>8} {:>8} {:>6} {:>8} {:>6}  {:<6}  {}"


@dataclass(frozen=True, slots=True)
class Case:
    """Dumps to compare: `write(directory, wrong)` makes golden and mine below it. `small` ones are quick."""

    kind: str
    name: str
    write: Callable[[Path, bool], None]
    options: tuple[str, ...] = ()
    small: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0 where the bars hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="the small sizes alone")
    parser.add_argument("--only", nargs="+", choices=sorted({case.kind for case in cases()}), metavar="KIND")
    parser.add_argument("--home", type=Path, metavar="DIR", help="where dumps are written and kept")
    given = parser.parse_args(arguments)
    good = True
    print(f"CPU seconds of whole runs, at most {MOST:g} times those of the plain comparison ({OFF}),")
    print(f"{OF_MANY:g} times where nothing is wrong in {MANY} pairs and more")
    print(
        ROW.format("case", "pairs", "off", "default", "ratio", "red", "ratio", "bars", "where the rest goes")
    )
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        for case in cases():
            if (case.small or not given.quick) and case.kind in (given.only or case.kind):
                good = measured(case, (given.home or Path(directory)).resolve()) and good
    return 0 if good else 1


def measured(case: Case, home: Path) -> bool:
    """Print the row of a case; whether its bars hold."""
    green, red = (home / f"{case.name}, {word}".replace(" ", "_") for word in ("green", "red"))
    for place, wrong in ((green, False), (red, True)):
        if not place.exists():
            case.write(place, wrong)
    # Rounding alone may take a deep int8 network beyond its bounds.
    right = (0, 1) if case.kind == "int8" else (0,)
    plain, pairs = cpu_of(green, right, *case.options, OFF)
    default, red_default = cpu_of(green, right, *case.options)[0], cpu_of(red, (1,), *case.options)[0]
    more = rooms(green if default > red_default else red, *case.options)
    more.subtract(rooms(green, *case.options, OFF))
    rest = sum((+more).values())
    words = ", ".join(f"{room} {100 * share / rest:.0f} %" for room, share in more.most_common(4))
    ratios = default / plain, red_default / plain
    figures = f"{plain:.1f}", f"{default:.1f}", f"{ratios[0]:.2f}", f"{red_default:.1f}", f"{ratios[1]:.2f}"
    met = max(ratios) <= MOST and (pairs < MANY or ratios[0] <= OF_MANY)
    print(ROW.format(case.name, pairs, *figures, "met" if met else "MISSED", words), flush=True)
    return met


def cases() -> Iterator[Case]:
    """Each comparison."""
    for layers, steps in ((8, 1), (8, 8), (32, 1), (32, 8)):
        name = f"ATB, {layers} layers x {steps}"
        yield Case("atb", name, demo("llama", layers, steps), small=(layers, steps) == (8, 8))
    for layers, steps in ((8, 6), (32, 4)):
        name = f"int8 ATB, {layers} layers x {steps}"
        options = ("--acc-config=w8a8",)
        yield Case("int8", name, demo("llama-int8", layers, steps), options, small=layers == 8)
    for layers, steps in ((3, 3), (8, 8)):
        name = f"torch, {layers} layers x {steps}"
        yield Case("torch", name, sampled(layers, steps), small=layers == 3)
    for records in (500, 5000):
        yield Case("msprobe", f"msprobe, {records} records", recorded(records), small=records == 500)


def demo(family: str, layers: int, steps: int) -> Callable[[Path, bool], None]:
    """An ATB dump beside its golden and a noise profile."""

    def write(place: Path, wrong: bool) -> None:
        fault = Fault("scale", 1, "LinearOperation", size=1.5) if wrong else None
        spec = DemoSpec(family, layers, decode_steps=steps - 1, profile=True, fault=fault)
        make_demo(place, spec)

    return write


def sampled(
    layers: int, steps: int, *, hidden: int = 64, vocabulary: int = VOCABULARY, tokens: int = 12
) -> Callable[[Path, bool], None]:
    """A Llama of transformers; the tokens that follow its prompt are not those with the largest logits."""

    def write(place: Path, wrong: bool) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=vocabulary,
        )  # fmt: skip
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(config)
        model.eval()
        sequence = torch.randint(vocabulary, (tokens + steps - 1,))
        for side, dtype in (("golden", torch.float32), ("mine", torch.bfloat16)):
            model = model.to(torch.bfloat16).to(dtype)  # the weights of both are the same
            if wrong and side == "mine":
                model.model.layers[1].mlp.register_forward_hook(lambda _, given, made: made * 1.5)
            with torch.no_grad(), register_hook(model, DumpConfig(place / side, range(steps))):
                cache = None
                for ids in sequence.split([tokens, *[1] * (steps - 1)]):
                    cache = model(ids[None], past_key_values=cache, use_cache=True).past_key_values

    return write


def recorded(records: int) -> Callable[[Path, bool], None]:
    """Residual blocks of a linear layer and an activation, each call a record, as msprobe writes them."""

    def write(place: Path, wrong: bool) -> None:
        for side, dtype in (("golden", torch.float32), ("mine", torch.bfloat16)):
            generator = torch.Generator().manual_seed(0)
            writer = RankWriter(place / side / "step0" / "rank0")
            x = torch.randn(4, 32, generator=generator).to(torch.bfloat16).to(dtype)
            for number in range(records // 3):
                weight = (torch.randn(32, 32, generator=generator) / 6).to(torch.bfloat16).to(dtype)
                linear = torch.nn.functional.linear(x, weight)
                linear = linear * 1.5 if wrong and side == "mine" and number == 1 else linear
                active = torch.nn.functional.silu(linear)
                for name, given, made in (
                    ("Functional.linear", (x, weight), linear),
                    ("Functional.silu", (linear,), active),
                    ("Tensor.add", (x, active), x + active),
                ):
                    call = f"{name}.{number}.forward"
                    writer.began(call)
                    writer.ended(call, {"input_args": given, "input_kwargs": {}, "output": (made,)})
                x = torch.nn.functional.rms_norm(x + active, (32,))
            writer.write()

    return write


def command(place: Path, *options: str) -> list[str]:
    return [*PYTEST, f"--acc-golden={place / 'golden'}", f"--acc-mine={place / 'mine'}", *options]


def cpu_of(place: Path, codes: tuple[int, ...], *options: str) -> tuple[float, int]:
    """CPU seconds of a run, which ends with one of `codes`, and how many tests it has."""
    with tempfile.TemporaryFile("w+") as output:
        call = [sys.executable, *command(place, *options)]
        # Compiled modules are kept: compiling them anew would be most of what starts.
        kept = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        run = subprocess.Popen(call, stdout=output, stderr=subprocess.STDOUT, cwd=place, env=kept)
        _, status, usage = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if run.returncode not in codes:
        raise SystemExit(f"{place}: exit code {run.returncode} where {codes} is due\n{text[-3000:]}")
    counts = [int(word) for word in text.splitlines()[-1].split() if word.isdecimal()]
    return usage.ru_utime + usage.ru_stime, sum(counts)


def rooms(place: Path, *options: str) -> Counter[str]:
    """Seconds of a run by the rooms of acc_pytest, as cProfile has them."""
    with tempfile.TemporaryDirectory(prefix="acc-") as directory:
        file = f"{directory}/profile"
        call = [sys.executable, "-m", "cProfile", "-o", file, *command(place, *options)]
        # Its exit code is not that of pytest.
        subprocess.run(call, capture_output=True, check=True, cwd=place)
        stats: dict[Any, Any] = pstats.Stats(file).stats  # type: ignore[attr-defined]
    seconds: Counter[str] = Counter()
    for function, (_, _, own, _, callers) in stats.items():
        if is_of_room(function[0]) or not callers:
            seconds[room_of(function[0])] += own
            continue
        for caller, (_, _, share, _) in callers.items():
            seconds[room_of(caller[0] if is_of_room(caller[0]) else function[0])] += share
    return seconds


def is_of_room(file: str) -> bool:
    return PACKAGE in file


def room_of(file: str) -> str:
    """The room of acc_pytest that a file belongs to, or another package."""
    for home, shown in ((PACKAGE, "{}"), (f"{os.sep}site-packages{os.sep}", "({})")):
        _, found, inside = file.rpartition(home)
        if found:
            return shown.format(inside.split(os.sep)[0].removesuffix(".py"))
    return "(Python, its imports)"


if __name__ == "__main__":
    sys.exit(main())
