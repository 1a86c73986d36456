"""A language model on the CPU stand-in of ATB: prefill and decode steps over a key/value cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...base.threads import one_thread
from ...errors import SettingsError
from .faults import Fault, FaultyOperator, fitting, inject
from .graph import AtbModel, Cell, Scope
from .models import family_of, read_model
from .models.spec import ModelSpec, NamedWeights, Phase, Weights
from .runtime import LoadedModel, Runtime


class LanguageModel:
    """The ATB models of all ranks with their caches.

    `weights` are the golden model's parameters under the names its family gives them. A `fault` is put
    into the operator it names. Raises `SettingsError` when the model has no such operator.
    """

    def __init__(
        self, spec: ModelSpec, weights: Weights, runtime: Runtime, fault: Fault | None = None
    ) -> None:
        self.spec = spec
        self.fault = fault
        self._family = family_of(spec.family)
        self._models: dict[Phase, _Variants] = {}
        named_weights = NamedWeights(
            {name: tensor.detach().to(spec.torch_dtype) for name, tensor in weights.items()}
        )
        for phase in spec.phases:
            clean = [self._family.model(spec, named_weights, rank, phase) for rank in range(spec.ranks)]
            self._models[phase] = _Variants(spec, runtime, clean, fault)
        self._states = [self._family.state(spec) for _ in range(spec.ranks)]
        self.reset()

    @classmethod
    def from_torch(
        cls,
        model: Any,
        runtime: Runtime,
        *,
        dtype: str = "float16",
        tokens: int = 64,
        fault: Fault | None = None,
        family: str | None = None,
        models: int | None = None,
    ) -> LanguageModel:
        """The network of a Hugging Face `model` (its `config` and `state_dict()`) over the runtime's ranks.

        `tokens` is the longest sequence that the caches hold; `family` and `models` choose among the graphs
        of one network, see `read_model`. Raises `SettingsError` for what the graphs here do not compute.
        """
        spec, weights = read_model(
            model, ranks=runtime.ranks, dtype=dtype, tokens=tokens, family=family, models=models
        )
        return cls(spec, weights, runtime, fault)

    def reset(self) -> None:
        """Begin a new sequence. The caches keep what is in them, as they do on a device."""
        self._past = self._step = 0

    @property
    def faulty(self) -> tuple[str, ...]:
        """Full names of the faulty operators (`RopeOperation_2_0_1_0`) of the models that have run."""
        return tuple(name for model in self._models.values() if (name := model.faulty))

    def places(self, kind: str, layer: int = 0) -> tuple[str, ...]:
        """Operators of a layer that can have this fault in every phase, as `Fault.operator` names them.

        Raises `SettingsError` for an unknown kind or a layer that is not there.
        """
        first, *later = [model.fitting(kind, layer, self.spec) for model in self._models.values()]
        return tuple(path for path in first if all(path in paths for paths in later))

    def warm_up(self, prompt: int) -> None:
        """Run a prompt of `prompt` ids 1 and one decode step, as a serving engine does before it serves."""
        always = self.fault is not None and self.fault.step is None
        for ids in ([1] * prompt, [1]):
            self._run(ids, faulty=always)
        self._past = 0

    def step(self, ids: Sequence[int]) -> torch.Tensor:
        """Run `ids` after all ids before; returns the logits of the last one, `[vocab]`."""
        logits = self._run(ids, faulty=self.fault is not None and self.fault.step in (None, self._step))
        self._step += 1
        return logits

    @one_thread()
    @torch.no_grad()
    def _run(self, ids: Sequence[int], *, faulty: bool) -> torch.Tensor:
        if not 0 < len(ids) <= self.spec.positions - self._past:
            raise SettingsError(
                f"model: {len(ids)} ids after {self._past} do not fit its cache of {self.spec.positions} "
                "tokens; give at least one id, and build the model with more tokens"
            )
        phase = self.spec.phase_of(self._past)
        scopes: list[Scope] = []
        for rank, state in enumerate(self._states):
            inputs = self._family.inputs(self.spec, ids, self._past, phase, rank)
            scopes.append({**{name: Cell(tensor) for name, tensor in inputs.items()}, **state})
        outputs = self._models[phase].execute(scopes, faulty=faulty)
        self._past += len(ids)
        return self._family.logits(outputs[0])


class _Variants:
    """A model on all ranks, clean and with the fault."""

    def __init__(
        self, spec: ModelSpec, runtime: Runtime, clean: Sequence[AtbModel], fault: Fault | None
    ) -> None:
        self._clean = self._wrong = clean
        self._faulty: FaultyOperator | None = None
        if fault is not None:
            spoilt = [inject(model, fault, spec, rank) for rank, model in enumerate(clean)]
            self._wrong, self._faulty = [model for model, _ in spoilt], spoilt[0][1]
        always = fault is not None and fault.step is None
        self._loaded: LoadedModel = runtime.load(self._wrong if always else clean)

    @property
    def faulty(self) -> str:
        """Full name of the faulty operator, empty without one or before the model has run."""
        top = None if self._faulty is None else self._loaded.number(self._faulty.call)
        return "" if self._faulty is None or top is None else self._faulty.name(top)

    def fitting(self, kind: str, layer: int, spec: ModelSpec) -> tuple[str, ...]:
        return fitting(self._clean[0], kind, layer, spec)

    def execute(self, scopes: Sequence[Scope], *, faulty: bool) -> list[Scope]:
        return self._loaded.execute(scopes, self._wrong if faulty else self._clean)
