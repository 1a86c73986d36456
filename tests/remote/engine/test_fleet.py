"""Which nodes take part: a sentence before the first batch for one that cannot."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from acc_pytest import __version__
from acc_pytest.errors import SettingsError
from acc_pytest.remote.engine.engine import Fleet
from acc_pytest.remote.engine.pool import (
    ClusterNode,
    LostTask,
    ProbeAnswer,
    ProbeQuestion,
    Sight,
    files_of,
    portable_probe,
    sources,
)

from .fake_pool import FakePool

QUESTION = ProbeQuestion((__file__, "/missing"), (str(Path(__file__).parent),), (__file__,))


class Answering(FakePool):
    """A pool whose nodes answer what a test says, by name."""

    def __init__(self, **answers: Sight | ProbeAnswer) -> None:
        super().__init__(None, [*answers])
        self.answers = answers

    def probe(self, question: bytes, nodes: Sequence[ClusterNode]) -> list[ProbeAnswer]:
        found = [self.answers[node.id] for node in nodes]
        return [("", pickle.dumps(one)) if isinstance(one, Sight) else one for one in found]


def refused(**answers: Sight | ProbeAnswer) -> str:
    with pytest.raises(SettingsError) as caught:
        Fleet(Answering(**answers), QUESTION, print).start(0.0)
    return str(caught.value)


def test_a_node_that_cannot_take_part_is_told_in_one_sentence() -> None:
    own = QUESTION.answer()
    assert own.present == (True, False)
    assert "node A cannot import acc_pytest (No module named 'acc_pytest')" in refused(
        a=("No module named 'acc_pytest'", b"")
    )
    assert f"node A has acc-pytest 0.0, and here is acc-pytest {__version__}" in refused(
        a=replace(own, version="0.0")
    )
    assert "node B has other sources of it" in refused(a=own, b=replace(own, sources="other"))
    assert f"node A has no {__file__}; put the file of this machine there" in refused(
        a=replace(own, digests=("",))
    )
    assert f"node A has another {__file__}" in refused(a=replace(own, digests=("x",)))
    assert "node A does not answer: no answer in 60 s" in refused(a=LostTask("no answer in 60 s"))
    several = refused(a=replace(own, sources="x"), b=replace(own, sources="x"), c=replace(own, sources="x"))
    assert several.endswith("install one version on all nodes (2 other nodes are refused too)")
    assert "no node of the cluster has a core" in refused()


def test_a_node_that_is_gone_when_it_is_asked_is_left_out() -> None:
    gone = LostTask("NodeDiedError: preempted", node_is_gone=True)
    fleet = Fleet(Answering(a=gone, b=QUESTION.answer()), QUESTION, print)
    fleet.start(0.0)
    assert [*fleet.alive] == ["b"]
    assert "no node of the cluster answers" in refused(a=gone)


def test_one_that_comes_later_and_cannot_is_left_out_with_a_line() -> None:
    own, said = QUESTION.answer(), list[str]()
    pool = Answering(a=own, b=own, c=replace(own, sources="x"))
    pool.names = ["a"]
    fleet = Fleet(pool, QUESTION, said.append)
    fleet.start(0.0)
    pool.names = ["b", "c"]
    fleet.refresh(1.0)
    assert [*fleet.alive] == ["a"]
    for now in (2.0, 4.0):
        fleet.refresh(now)
        assert [*fleet.alive] == ["b"]
    assert [line.endswith("; it is left out") for line in said] == [True]


def test_nodes_that_see_the_same_files_are_of_one_kind() -> None:
    own = QUESTION.answer()
    other = replace(own, present=(False, True))
    fleet = Fleet(Answering(a=own, b=other, c=own), QUESTION, print)
    fleet.start(0.0)
    assert sorted(map(sorted, fleet.kinds.values())) == [["a", "c"], ["b"]]
    assert fleet.present["b"] == [False, True]


def test_a_probe_says_what_it_could_not_import() -> None:
    class_of_another_version = b"cacc_pytest.remote.engine.nowhere\nQuestion\n."
    assert portable_probe()(class_of_another_version) == (
        "No module named 'acc_pytest.remote.engine.nowhere'",
        b"",
    )
    assert "UnpicklingError" in portable_probe()(b"\0")[0]
    missing, answer = portable_probe()(pickle.dumps(QUESTION))
    assert (missing, pickle.loads(answer)) == ("", QUESTION.answer())


def test_the_files_of_functions_are_whole_paths_and_sources_have_one_digest() -> None:
    assert files_of(["x.py:f", "x.py:g", "/y.py:f"]) == (str(Path("x.py").resolve()), "/y.py")
    assert sources() == sources()
    assert len(sources()) == 12


def test_all_nodes_have_what_lies_in_a_store_and_hosts_have_their_own() -> None:
    samples = ("/missing", "s3://bucket/dump", "node://a.net/dump", "node://b/dump")
    question = ProbeQuestion(samples, (), ())
    pool = Named(None)
    fleet = Fleet(pool, question, print)
    fleet.start(0.0)
    assert fleet.present == {"a": [False, True, True, False], "b": [False, True, False, True]}


class Named(FakePool):
    """Nodes whose hosts are called as they are, and `a.net`."""

    def nodes(self) -> list[ClusterNode]:
        return [replace(node, called=frozenset((node.id, f"{node.id}.net"))) for node in super().nodes()]
