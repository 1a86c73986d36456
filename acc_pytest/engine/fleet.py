"""`Fleet`: the nodes that take part. Each is asked what it has before its first batch, late ones as well."""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Sequence

from ..errors import SettingsError
from ..tensors.stores.address import is_address
from ..tensors.stores.hosts import host_of
from .pool import ClusterNode, LostTask, Pool
from .probing import ProbeQuestion, Sight, refusal, sight_of

EVERY = 2.0
"""Seconds between two looks at which nodes are alive."""
REST = 15.0
"""Seconds for which a node is left alone on which a task could not run: a cluster learns late that one is
gone."""


class Fleet:
    """The nodes of a pool that have answered `question` as this machine does. `say` prints a line."""

    def __init__(self, pool: Pool, question: ProbeQuestion, say: Callable[[str], None]) -> None:
        self._pool = pool
        self._question = question
        self._say = say
        self._local_sight = question.answer()
        self._sights: dict[str, Sight] = {}
        self._kinds: dict[str, str] = {}
        self._refused: set[str] = set()
        self._excluded: set[str] = set()
        self._due = 0.0
        self._resting: dict[str, float] = {}
        self.alive: dict[str, ClusterNode] = {}

    def start(self, now: float) -> None:
        """Ask all nodes. One that is gone by then is left out.

        Raises `SettingsError` for one that cannot take part, or where there is none.
        """
        nodes = [node for node in self._pool.nodes() if node.tasks]
        if refusals := [sentence for _, sentence in self._ask(nodes)]:
            suffix = f" ({len(refusals) - 1} other nodes are refused too)" if refusals[1:] else ""
            raise SettingsError(f"acc_engine = ray: {refusals[0]}{suffix}")
        if not nodes:
            raise SettingsError(
                "acc_engine = ray: no node of the cluster has a core (or as many as acc_threads); add one"
            )
        self._admit(nodes)
        if not self.alive:
            raise SettingsError("acc_engine = ray: no node of the cluster answers; look at `ray status`")
        self._due = now + EVERY

    def refresh(self, now: float) -> None:
        """Look which nodes are alive, if it is time to. One that came later and is of no use is left out,
        with a line."""
        if now < self._due:
            return
        self._due = now + EVERY
        self._resting = {node: until for node, until in self._resting.items() if until > now}
        out = self._refused | self._excluded | self._resting.keys()
        nodes = [node for node in self._pool.nodes() if node.tasks and node.id not in out]
        for node, sentence in self._ask([node for node in nodes if node.id not in self._sights]):
            self._refused.add(node.id)
            self._say(f"acc: {sentence}; it is left out")
        self._admit(nodes)

    def rest(self, node: str, now: float) -> None:
        """Take a node out for a while."""
        self._resting[node] = now + REST
        self.alive.pop(node, None)

    def leave_out(self, node: str, why: str) -> None:
        """Take a node out until it is taken back."""
        if node in self.alive:
            self._say(f"acc: node {self.alive.pop(node).name} {why}; its pairs go elsewhere")
        self._excluded.add(node)

    def take_back(self, node: str) -> None:
        """A node may take part again."""
        self._excluded.discard(node)

    def _ask(self, nodes: Sequence[ClusterNode]) -> list[tuple[ClusterNode, str]]:
        """The nodes that cannot take part, and why; those that are gone neither can nor cannot."""
        if not nodes:
            return []
        answers = self._pool.probe(pickle.dumps(self._question), nodes)
        refused = []
        for node, answer in zip(nodes, answers):
            if isinstance(answer, LostTask) and answer.node_is_gone:
                continue
            if sentence := refusal(node, answer, self._question, self._local_sight):
                refused.append((node, sentence))
            else:
                sight = self._sights[node.id] = sight_of(answer)
                self._kinds[node.id] = repr(sight.files)
        return refused

    def _admit(self, nodes: Sequence[ClusterNode]) -> None:
        self.alive = {node.id: node for node in nodes if node.id in self._sights}

    @property
    def present(self) -> dict[str, Sequence[bool]]:
        """For each node that is alive, which of the samples it has; all have what lies in stores."""
        return {
            node.id: [
                is_present or (is_address(sample) and host_of(sample) in ("", *node.called))
                for sample, is_present in zip(self._question.samples, self._sights[node.id].present)
            ]
            for node in self.alive.values()
        }

    @property
    def kinds(self) -> dict[str, frozenset[str]]:
        """The nodes that are alive, those that see the same files together."""
        kinds: dict[str, set[str]] = collections.defaultdict(set)
        for node in self.alive:
            kinds[self._kinds[node]].add(node)
        return {kind: frozenset(nodes) for kind, nodes in kinds.items()}

    def kind(self, node: str) -> str:
        """The kind of a node that takes part, or has."""
        return self._kinds[node]
