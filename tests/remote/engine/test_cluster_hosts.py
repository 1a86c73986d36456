"""Dumps on the machines of a cluster: one question surveys each, and further ones read some bytes of it."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from acc_pytest import __version__
from acc_pytest.dumps import open_dump
from acc_pytest.errors import DumpError, FormatError, SettingsError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, make_demo
from acc_pytest.mapping.pair import Plan
from acc_pytest.mapping.planner import plan
from acc_pytest.remote.engine.cluster_hosts import ClusterHosts
from acc_pytest.remote.engine.dispatch import Placement
from acc_pytest.remote.engine.engine import Fleet
from acc_pytest.remote.engine.pool import (
    ClusterNode,
    LostTask,
    NodeQuestion,
    ProbeAnswer,
    ProbeQuestion,
    Sight,
    files_of,
    portable_probe,
    sources,
)
from acc_pytest.remote.indexing import refs_of
from acc_pytest.remote.keeping import keep
from acc_pytest.remote.stores import filesystem, hosts
from acc_pytest.tensors.address import Cache
from acc_pytest.tensors.location import shown_at
from acc_pytest.tensors.ref import TensorRef
from tests.each_case import check_each
from tests.shared_directory import made_once

from .fake_pool import FakePool

NODES = [ClusterNode(name, name, 1, 1, frozenset((name,))) for name in ("node1", "node2")]


@dataclass
class FakeCluster:
    """Two machines with one disk, `root` of which only they see: it has another name while they answer."""

    root: Path
    local_node: str = ""
    gone: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    asked_of: list[tuple[str, str]] = field(default_factory=list)

    def nodes(self) -> Sequence[ClusterNode]:
        return NODES

    def answers_to(self, asked: Sequence[NodeQuestion], seconds: float) -> Sequence[ProbeAnswer]:
        hidden = self.root.with_name("hidden")
        hidden.rename(self.root)
        try:
            return [self._answer(node.id, question) for node, question in asked]
        finally:
            self.root.rename(hidden)

    def _answer(self, node: str, question: bytes) -> ProbeAnswer:
        kind = type(pickle.loads(question)).__name__
        self.asked_of.append((node, kind))
        if node in self.gone:
            return LostTask("the node died", node_is_gone=True)
        if node in self.silent:
            return LostTask("no answer in 60 s", is_silent=True)
        return LostTask(self.lost.pop()) if self.lost else portable_probe()(question)

    @property
    def kinds(self) -> list[str]:
        return [kind for _, kind in self.asked_of]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    spec = DemoSpec(layers=1, decode_steps=0, prompt_length=16)
    return made_once(tmp_path_factory, "on_nodes", lambda directory: _made(directory, spec))


def _made(directory: Path, spec: DemoSpec) -> DemoPaths:
    paths = make_demo(directory, spec)
    keep(str(paths.mine), str(directory / "kept"))
    return paths


@pytest.fixture
def cluster(pair: DemoPaths, tmp_path: Path) -> Iterator[FakeCluster]:
    """Both dumps lie on the machines alone, at `tmp_path / "disk"`."""
    root = tmp_path / "disk"
    os.symlink(pair.mine.parent, tmp_path / "hidden")
    made = FakeCluster(root)
    filesystem._store_of.cache_clear()
    hosts.use_hosts(ClusterHosts(lambda: made))
    yield made
    hosts.use_hosts(None)


def planned(cluster: FakeCluster, tmp_path: Path, golden: str = "golden", mine: str = "mine") -> Plan:
    cache = Cache(str(tmp_path / "cache"))
    one = open_dump(f"node://node1{cluster.root}/{golden}", cache=cache)
    other = open_dump(f"node://node2{cluster.root}/{mine}", cache=cache, golden=one)
    return plan(one, other)


def test_a_plan_is_made_of_one_survey_of_each_dump(
    cluster: FakeCluster, pair: DemoPaths, tmp_path: Path
) -> None:
    golden = open_dump(str(pair.golden))
    right = plan(golden, open_dump(str(pair.mine), golden=golden))
    found = planned(cluster, tmp_path)
    assert [one.id for one in found.pairs] == [one.id for one in right.pairs]
    headers = [ref.header() for one in found.pairs for ref in (*one.golden.refs, *one.mine.refs)]
    assert headers == [ref.header() for one in right.pairs for ref in (*one.golden.refs, *one.mine.refs)]
    tokens = [kind for kind in cluster.kinds if kind == "ReadQuestion"]
    assert sorted({*cluster.kinds} - {*tokens}) == ["ProbeQuestion", "SurveyQuestion"]
    assert cluster.kinds.count("SurveyQuestion") == 2
    assert len(tokens) <= 4  # the ids of tokens, which the token policy compares
    ref, there = found.pairs[-1].mine.refs[0], right.pairs[-1].mine.refs[0]
    assert ref.open().equal(there.open())
    assert cluster.asked_of[-1] == ("node2", "ReadQuestion")
    assert shown_at(ref.path).startswith(f"node://node2{cluster.root}/mine/")


def test_every_form_of_a_dump_may_lie_there(cluster: FakeCluster, pair: DemoPaths, tmp_path: Path) -> None:
    """The directory above a dump, the dump, a place inside of it, a kept dump, a file."""
    root = next(pair.mine.iterdir())
    file = next(root.rglob("outtensor0.bin")).relative_to(pair.mine.parent)

    def on_the_machine_itself(right: Sequence[TensorRef], found: Sequence[TensorRef]) -> None:
        asked = len(cluster.asked_of)
        (tmp_path / "hidden").rename(cluster.root)
        hosts.use_hosts(ClusterHosts(lambda: replace(cluster, local_node="node2")))
        try:
            assert all(one.open().equal(other.open()) for one, other in zip(right, found))
        finally:
            hosts.use_hosts(ClusterHosts(lambda: cluster))
            cluster.root.rename(tmp_path / "hidden")
        assert len(cluster.asked_of) == asked

    def check(place: str) -> None:
        local = open_dump(str(pair.mine.parent / place))
        there = open_dump(f"node://node2{cluster.root}/{place}", cache=Cache(str(tmp_path / "cache")))
        assert there.kind == local.kind
        right, found = ([*refs_of(dump)] for dump in (local, there))
        assert [Path(one.path).name for one in found] == [Path(one.path).name for one in right]
        assert all(one.open().equal(other.open()) for one, other in zip(right[:5], found))
        on_the_machine_itself(right[-5:], found[-5:])

    places = ("mine", f"mine/{root.name}", f"mine/{root.name}/tensors", str(file), "kept", "golden")
    check_each([(place, place) for place in places], check)


def test_a_machine_that_is_gone_or_loses_a_process(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "PAUSES", (0.0, 0.0))
    pairs = planned(cluster, tmp_path).pairs
    cluster.lost = ["the process died", "the process died"]
    assert len(pairs[-1].mine.refs[0].open())
    assert cluster.lost == []
    cluster.gone = {"node2"}
    refs = [ref for one in pairs for ref in one.mine.refs][:-1]
    asked = len(cluster.asked_of)
    for ref in (*refs[:2], *refs[-2:]):
        wanted = "node2 is no longer a node of the cluster; run again when it is back"
        with pytest.raises(FormatError, match=rf"^node://node2/\S+: cannot be read: {wanted}$"):
            ref.open()
    assert len(cluster.asked_of) == asked + 1  # then it is known
    cluster.silent = {"node1"}
    golden = [ref for one in pairs for ref in one.golden.refs]
    for ref in (golden[-1], golden[-2]):
        with pytest.raises(FormatError, match=r"read: node1 gave no answer in 60 s; run again when it is"):
            ref.open()
    assert len(cluster.asked_of) == asked + 2


def test_a_file_that_is_no_longer_there(cluster: FakeCluster, pair: DemoPaths, tmp_path: Path) -> None:
    (tmp_path / "hidden").unlink()
    shutil.copytree(pair.mine.parent, tmp_path / "hidden")
    ref = planned(cluster, tmp_path).pairs[-1].mine.refs[0]
    shutil.rmtree(tmp_path / "hidden" / "mine")
    with pytest.raises(FormatError, match="is no longer there; was the dump deleted"):
        ref.open()


def test_what_cannot_be_surveyed_is_one_sentence(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DumpError, match=r"^node9: no node .* has that name \(of /x\); known: node1, node2$"):
        open_dump("node://node9/x")
    place = f"{cluster.root}/none"
    with pytest.raises(DumpError, match=rf"^node2: {place}: no such file or directory; correct the path$"):
        planned(cluster, tmp_path, mine="none")
    cluster.gone = {"node2"}
    with pytest.raises(DumpError, match=r"^node2: its dump could not be listed there: the node died; run"):
        planned(cluster, tmp_path)
    hosts.use_hosts(ClusterHosts(lambda: cluster))
    with pytest.raises(SettingsError, match=r"^acc_engine = ray: node node2 does not answer: the node died"):
        planned(cluster, tmp_path)
    hosts.use_hosts(None)
    with pytest.raises(DumpError, match="lies on a node of a cluster; add acc_engine = ray"):
        planned(cluster, tmp_path)


def test_pairs_go_to_the_machine_that_has_most_of_their_bytes(cluster: FakeCluster, tmp_path: Path) -> None:
    pairs = planned(cluster, tmp_path).pairs
    placement = Placement(pairs)
    assert [hosts.host_of(sample) for sample in placement.samples] == ["node1", "node2"]
    present = {"a": [True, False], "b": [False, True]}
    sizes = [*placement.sizes(range(len(pairs)), present)]
    assert {*map(len, (size.places for size in sizes))} <= {0, 1}
    float32_beside_float16 = [size for size in sizes if size.places == {"a"}]
    assert len(float32_beside_float16) > 20
    assert {size.places for size in placement.sizes([0, 1], present, "mine")} == {frozenset("b")}


# Which nodes take part: a sentence before the first batch for one that cannot.


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
