"""Dumps opened and mapped, from settings alone. Done once a run, by the controller."""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest

from ..base.imports import import_numpy, import_torch, leave_what_stays, without_collector
from ..base.vocabulary import NO_NOISE, PRECISIONS
from ..errors import AccError, SettingsError, guarded
from ..reporting.texts import error_text, paragraph
from ..tensors.address import Cache, is_mirrored, text_of_places
from ..tensors.location import is_there

if TYPE_CHECKING:
    from ..dumps.base import Dump
    from ..mapping.pair import Plan
    from ..noise.counterparts import NoisePlan
    from ..settings import Settings


def make_plan(settings: Settings) -> Plan:
    """Open both dumps and map them. Raises `AccError`."""
    return open_and_plan(settings)[2]


def open_and_plan(settings: Settings) -> tuple[Dump, Dump, Plan]:
    """Both dumps, and how they are mapped. Raises `AccError`."""
    with without_collector():
        import_numpy()
        from ..mapping.planner import plan

        leave_what_stays()
        golden, mine = open_dumps(settings)
        _take_weights(settings, golden, mine)
        pairs = plan(
            golden,
            mine,
            level=settings.level,
            op_mapping_file=settings.op_mapping_file,
            tables=settings.mapping,
        )
    if mirrored := [root for root in (pairs.golden_root, pairs.mine_root) if is_mirrored(root)]:
        from ..remote.header_rows import keep_headers

        keep_headers(mirrored)
    return golden, mine, pairs


def open_dumps(settings: Settings) -> tuple[Dump, Dump]:
    """Golden and mine, mine read in the light of golden (for the `auto` token policy).

    A manual dump names the files of mine itself and may stand for both. Raises `AccError`.
    """
    from ..dumps import open_dump
    from ..dumps.base import keep_rank

    if settings.engine == "ray":
        from ..remote.engine.cluster_hosts import reach_nodes
        from ..remote.engine.ray_cluster import joined

        reach_nodes(lambda: joined(settings.ray_address))
    cache = Cache(settings.cache_dir, settings.cache_size)
    golden = open_dump(settings.golden, token_policy=settings.token_policy, cache=cache)
    if not settings.mine:
        if golden.kind != "manual":
            raise AccError(
                "--acc-golden needs --acc-mine too: only a dump written by dump_data names both sides, "
                f"and {text_of_places(settings.golden)} is not one"
            )
        mine = golden
    else:
        mine = open_dump(settings.mine, token_policy=settings.token_policy, golden=golden, cache=cache)
    mine.computed_in = PRECISIONS.get(settings.mine_dtype, "")
    if settings.rank is not None:
        keep_rank(golden, mine, settings.rank)
    return golden, mine


def _take_weights(settings: Settings, golden: Dump, mine: Dump) -> None:
    """Give the dumps the weights that the user named. Raises `AccError`."""
    for side, _, path in (text.partition("=") for text in settings.weights):
        import_torch()
        from ..dumps.weight_files import checkpoint_home

        dump = golden if side == "golden" else mine
        dump.checkpoint = checkpoint_home(path, Cache(settings.cache_dir))


def make_noise_plan(settings: Settings, plan: Plan) -> NoisePlan | None:
    """The noise of golden's tensors in `plan`: by the noise run that was given, else by the
    profile beside golden; `None` without either.

    Raises `SettingsError` where the standard needs one, and for a run or profile that is none of golden.
    """
    if not settings.noise or settings.noise == NO_NOISE:
        profiled = _profiled(plan) if not settings.noise else None
        if profiled is None and settings.standard == "three-way":
            raise SettingsError(
                "--acc-standard three-way needs --acc-noise DUMP, a second run of golden in lower precision "
                "or with another batch or device, or a profile of such runs (acc noise-profile makes one)"
            )
        return profiled
    from ..noise.run import noise_plan

    with without_collector():
        golden, noise = open_dumps(replace(settings, mine=settings.noise))
        return noise_plan(golden, noise, plan.pairs, tables=settings.mapping)


def _profiled(plan: Plan) -> NoisePlan | None:
    """The noise in the profile beside golden, if any. Raises `AccError` for one that is of no use."""
    from ..noise.profile import profile_path

    path = profile_path(plan.golden_root)
    if not is_there(path):
        return None
    from ..noise.counterparts import profile_plan
    from ..noise.profile import read_profile

    with without_collector():
        return profile_plan(read_profile(path), plan.pairs)


# The way from errors of ours, and from Ctrl-C, to pytest, at the start of a run and in its hooks.


@contextmanager
def door(doing: str, where: str = "") -> Iterator[None]:
    """Raise `pytest.UsageError` (exit code 4) for every error of what is done inside, foreseen or not.

    `doing` says in a sentence about the unforeseen what it was, `where` begins every sentence.
    """
    try:
        with guarded(doing, (pytest.UsageError,)):
            yield
    except AccError as error:
        raise pytest.UsageError(paragraph(error_text(error, where), "ERROR: ")) from None


@contextmanager
def noting_interrupts() -> Iterator[None]:
    """End in `KeyboardInterrupt` whatever became of the one that a Ctrl-C in here has raised.

    torch and numpy turn one that comes while they are imported into errors of their own, or swallow it: an
    interrupted import of numpy, met by another import that goes on without it, is an `ImportError` that
    nobody can make sense of. Does nothing outside of the main thread, or where others handle the signal.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    interrupted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    except Exception:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt


# Names that are not UTF-8 between the processes of pytest-xdist.
#
# xdist sends the arguments, the working directory and `sys.path` as text, and execnet refuses text that UTF-8
# cannot say, such as a directory named in GBK bytes. Where a run has such a name, both ends let it pass; any
# other run is left alone.


class AnyName:
    """Prepares both ends of each gateway."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_newgateway(self, gateway: Any) -> None:
        """Before anything is sent. Raises `pytest.UsageError` for an execnet that is built differently."""
        try:
            _surrogates_pass()
            gateway.remote_exec(f"{inspect.getsource(_surrogates_pass)}\n_surrogates_pass()").waitclose()
        except AttributeError:
            raise pytest.UsageError(
                "this execnet cannot send paths that are not UTF-8 to xdist's workers; run without -n"
            ) from None


def let_any_name_pass(config: pytest.Config) -> None:
    """Register what prepares the gateways, where a name of this run needs it."""
    places = (os.getcwd(), config.rootpath, config.option.basetemp)
    sent = "\n".join(map(str, (*config.invocation_params.args, *places, *sys.argv, *sys.path)))
    is_sendable = sent.isascii() or not any("\ud800" <= character <= "\udfff" for character in sent)
    if not hasattr(config, "workerinput") and not is_sendable:
        config.pluginmanager.register(AnyName(), "acc_any_name")


def _surrogates_pass() -> None:
    """Let execnet of this process write and read surrogates. (Workers get the source of this function.)"""

    from execnet import gateway_base

    def write(self: Any, text: str) -> None:
        self._write_byte_sequence(text.encode("utf-8", "surrogatepass"))

    def load(self: Any) -> None:
        self.stack.append(self._read_byte_string().decode("utf-8", "surrogatepass"))

    writer, reader, codes = gateway_base._Serializer, gateway_base.Unserializer, gateway_base.opcode
    _ = writer._write_unicode_string, writer._write_byte_sequence, reader._read_byte_string
    writer._write_unicode_string = write  # type: ignore[assignment, method-assign]
    reader.num2func.update({codes.PY3STRING: load, codes.UNICODE: load})
