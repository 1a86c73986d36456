"""`register_hook`: put hooks on a model, and the handle that takes them off again."""

from __future__ import annotations

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import MethodType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...base.imports import check_numpy
from ...errors import CaptureError
from ...tensors.address import is_address
from .config import DumpConfig, Selection
from .manifest import Manifest, claim, device_of, places_in_run
from .model import ROOT, WRAPPED, NamedModule, aliases, module_tree
from .recorder import ModuleRecorder
from .store import DumpReport, Hooked, Store

if TYPE_CHECKING:
    from ...remote.uploading import StagedDump

HOOK_TYPES = ("dump_data",)


def register_hook(
    model: nn.Module, config: DumpConfig, hook_type: str = "dump_data", *, hook_name: str = ""
) -> DumpHandle:
    """Dump what goes in and out of the modules of `model` at each call that `config.token_range` names.

    Returns a handle: `with register_hook(...)` or `handle.remove()` ends the dumping. Any number of models,
    and of configs on one model, may be hooked at a time; each has its own directory. `hook_name` is what a
    guide of the old tool calls `hook_type`.

    Raises `CaptureError` for a model or config that is none, an unknown `hook_type`, or a directory that
    cannot be made; `AccError` where torch is too old for the installed numpy.
    """
    check_numpy()
    for name, value in (("hook_type", hook_type), ("hook_name", hook_name or hook_type)):
        if value not in HOOK_TYPES:
            raise CaptureError(f"register_hook: {name} must be one of {', '.join(HOOK_TYPES)}, got {value!r}")
    if not isinstance(model, nn.Module):
        raise CaptureError(f"register_hook: the model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(model, torch.jit.ScriptModule):
        raise CaptureError(
            "register_hook: the model is scripted, and torch cannot hook scripted modules; hook the original"
        )
    if not isinstance(config, DumpConfig):
        raise CaptureError(f"register_hook: the config must be a DumpConfig, got {type(config).__name__}")
    return DumpHandle(model, config)


class DumpHandle:
    """Hooks on a model. Calls of the model are counted from 0; the count can be set (`token_id`) and reset.

    `dump_path` is the process folder of the dump; `active` is False on a device that `device_id` leaves out,
    and in a process that `ranks` leave out: nothing is hooked or written there.
    """

    def __init__(self, model: nn.Module, config: DumpConfig) -> None:
        self.config = config
        self._model = model
        self._removers: list[Any] = []
        self._compiled: list[tuple[nn.Module, Any]] = []
        device = device_of(model)
        self._left_out = _left_out(config, device)
        self.active = not self._left_out
        self._root = module_tree(model)
        self._names = aliases(self._root)
        self._recorder: ModuleRecorder | None = None
        self._staged: StagedDump | None = None
        if not self.active:
            return
        if is_address(str(config.dump_path)):
            from ...remote.uploading import StagedDump

            self._staged = StagedDump(str(config.dump_path))
        selection = Selection(config)
        if refusal := selection.empty(self._root):
            warnings.warn(f"nothing will be dumped: {refusal}", stacklevel=3)
        self._selection = selection
        self._device = device
        self._module_names = frozenset(name for names in self._names.values() for name in names)
        self._recorder = ModuleRecorder(
            *self._new_dump(), selection, self._module_names, compiled=self._is_compiled()
        )
        try:
            for module in self._model.modules():
                call = getattr(module, "_compiled_call_impl", None)
                if call is not None:
                    self._compiled.append((module, call))
                    module._compiled_call_impl = None
            recorder = self._recorder
            begin = _Hook(lambda *_: recorder.begin(sys._getframe(2)))
            self._removers.append(self._model.register_forward_pre_hook(begin))
            hooked: set[int] = set()
            for named in self._root.walk():
                if id(named.module) in hooked:
                    continue
                hooked.add(id(named.module))
                if isinstance(named.module, torch.jit.ScriptModule):
                    warnings.warn(
                        f"{named.name}: is scripted and not dumped; torch allows no hooks on it", stacklevel=3
                    )
                    continue
                self._hook(named, self._recorder)
            self._removers.append(self._model.register_forward_hook(_Hook(recorder.end), always_call=True))
            if not isinstance(self._model, torch.jit.ScriptModule):
                root = Hooked(self._names[id(self._root.module)], self._root.kind, is_root=True)
                self._removers.append(DirectCall(self._model, self._recorder, root))
        except BaseException:
            self.remove()
            raise

    @property
    def dump_path(self) -> Path:
        """The process folder, `{dump_path}/msit_dump_{time}/torch_tensors/{device}_{pid}`; of a dump that
        goes to a store, the one on the disk, which is empty when the dump is uploaded."""
        return self._recording.store.home

    @property
    def address(self) -> str:
        """The address of the dump in the store that `dump_path` of the config names; else empty."""
        return self._staged.shown(str(self.dump_path)) if self._staged is not None else ""

    @property
    def report(self) -> DumpReport:
        """The report on what was written since the dump was started."""
        return self._recording.store.report

    @property
    def token_id(self) -> int:
        """The id that the next call of the model gets."""
        return self._recorder.token if self._recorder else 0

    @token_id.setter
    def token_id(self, token: int) -> None:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise CaptureError(f"token_id must be a whole number >= 0, got {token!r}")
        if self._recorder is None:
            return
        if token in self._recorder.dumped:
            raise CaptureError(f"token_id={token} is already dumped; call reset() to start a new dump")
        self._recorder.token = token

    def reset(self) -> None:
        """Count from 0 again. If something was dumped already, the next step goes into a new dump
        directory.
        """
        if self._recorder is None:
            return
        self._recorder.close()
        if self._recorder.dumped:
            if self.config.run_name:
                raise CaptureError("reset: a dump with a fixed run_name holds one run only")
            self._recorder.start(*self._new_dump())
        self._recorder.token = 0

    def close(self) -> None:
        """Wait until everything is written, and uploaded. Raises `CaptureError` for what could not be."""
        if self._recorder is not None:
            self._recorder.close()
        if self._staged is not None:
            self._staged.send()

    def remove(self) -> None:
        """Take the hooks off and write what is left; may be called again. Raises as `close`."""
        removers, self._removers = self._removers, []
        for remover in removers:
            remover.remove()
        compiled, self._compiled = self._compiled, []
        for module, call in compiled:
            module._compiled_call_impl = call
        try:
            if self._recorder is not None:
                self._recorder.stop()
        finally:
            if self._staged is not None:
                self._staged.close()

    def __enter__(self) -> DumpHandle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(CaptureError) if error is not None else contextlib.nullcontext():
            self.remove()

    def __repr__(self) -> str:
        if self._recorder is None:
            return f"<DumpHandle: inactive, {self._left_out}>"
        return f"<DumpHandle {self.dump_path}: {self.report}>"

    @property
    def _recording(self) -> ModuleRecorder:
        if self._recorder is None:
            raise CaptureError(f"nothing is dumped here: {self._left_out}")
        return self._recorder

    def _new_dump(self) -> tuple[Store, Manifest]:
        """A dump in a directory of its own, with the weights in it where they are asked for."""
        place = self.config.dump_path if self._staged is None else self._staged.path
        store = Store(claim(replace(self.config, dump_path=place, seed=None), self._device), self.config)
        manifest = Manifest(store.home, self.config, self._root, tuple(self._names.values()))
        weights = store.weights(self._parameters()) if self.config.dump_weight else []
        store.writer.finish()
        store.append_analysis(weights)
        manifest.write(weights)
        return store, manifest

    def _parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self._model.named_parameters():
            full = ".".join([ROOT, *(segment for segment in name.split(".") if segment not in WRAPPED)])
            if self._selection.named(full):
                yield full, parameter

    def _is_compiled(self) -> bool:
        compiled = any(
            "_orig_mod" in module._modules or getattr(module, "_compiled_call_impl", None) is not None
            for module in self._model.modules()
        )
        if compiled and not hasattr(torch.compiler, "set_stance"):
            raise CaptureError(
                "dumping a compiled model needs torch 2.6; hook the model that is not compiled"
            )
        return compiled

    def _hook(self, named: NamedModule, recorder: ModuleRecorder) -> None:
        module = named.module
        hooked = Hooked(self._names[id(module)], named.kind, named is self._root)
        before = _Hook(functools.partial(recorder.before, hooked))
        after = _Hook(lambda module, _args, _kwargs, result: recorder.after(hooked, module, result))
        self._removers.append(module.register_forward_pre_hook(before, with_kwargs=True))
        self._removers.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))


def _left_out(config: DumpConfig, device: torch.device) -> str:
    """Why nothing is dumped in this process; empty where it is."""
    device_id = config.device_id
    if device_id is not None and device.type != "cpu" and device.index != device_id:
        return f"the model is not on device {device_id}"
    rank = places_in_run().get("rank", 0)
    return (
        ""
        if config.ranks is None or rank in config.ranks
        else f"rank {rank} is not among the ranks asked for"
    )


class _Hook:
    """A hook of a handle. In copies of the model (`copy.deepcopy`, pickle) it does nothing."""

    def __init__(self, call: Callable[..., object] | None = None) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> None:
        if self._call is not None:
            self._call(*arguments)

    def __deepcopy__(self, _memo: object) -> _Hook:
        return type(self)()

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return type(self), ()


class DirectCall:
    """The stand-in for `model.forward` while the model is hooked; a copy of the model gets a `forward` of its
    own."""

    def __init__(self, model: nn.Module, recorder: ModuleRecorder, hooked: Hooked) -> None:
        self._model = model
        self._recorder = recorder
        self._hooked = hooked
        self._is_removed = False
        self._earlier: Callable[..., Any] | None = model.__dict__.get("forward")
        self._forward: Callable[..., Any] = model.forward
        functools.update_wrapper(self, self._forward, updated=())  # `generate` asks for its signature
        model.__dict__["forward"] = self

    def remove(self) -> None:
        """Give the model its `forward` back. One that was put over it since stays."""
        self._is_removed = True
        if self._model.__dict__.get("forward") is not self:
            return
        del self._model.__dict__["forward"]
        forward = self._earlier
        while isinstance(forward, DirectCall) and forward._is_removed:
            forward = forward._earlier
        if forward is not None:
            self._model.__dict__["forward"] = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._is_removed or not self._recorder.begin(sys._getframe()):
            return self._forward(*args, **kwargs)
        result = None
        try:
            self._recorder.before(self._hooked, self._model, args, kwargs)
            result = self._forward(*args, **kwargs)
        except BaseException:
            self._recorder.after(self._hooked, self._model, None)
            self._recorder.end()
            raise
        self._recorder.after(self._hooked, self._model, result)
        self._recorder.end()
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _forward_of(memo.get(id(self._model), self._model))

    def __reduce__(self) -> tuple[Any, ...]:
        return _forward_of, (self._model,)


def _forward_of(model: nn.Module) -> MethodType:
    return MethodType(type(model).forward, model)
