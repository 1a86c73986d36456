"""Dumps in an object store: an S3 server on the loopback, read by its protocol."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from acc_pytest import DumpConfig, cli, register_hook
from acc_pytest.dumps import open_dump
from acc_pytest.errors import FormatError
from acc_pytest.lab.demo import DemoPaths, DemoSpec, Fault, make_demo
from acc_pytest.remote.indexing import index_upload, refs_of
from acc_pytest.remote.stores import filesystem
from acc_pytest.remote.stores.making import mirrored
from acc_pytest.session.planning import make_plan
from acc_pytest.settings import Settings
from acc_pytest.tensors.address import Cache, address_of
from acc_pytest.tensors.location import bytes_of
from tests.shared_directory import made_once

from .conftest import QUICKER, Run, read_rows, small_demo

pytest.importorskip("s3fs", reason="dumps in S3 need s3fs")
pytest.importorskip("moto.server", reason="the tests' S3 server is moto")

from .object_store import ObjectStore, Wire

SECRET = "wJalrXUtnFEMIbPxRfiCYEXAMPLEKEY"


@pytest.fixture(scope="session")
def server() -> Iterator[ObjectStore]:
    """One for the session: a worker may come to this module twice, and file systems know their endpoint."""
    made = ObjectStore()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def store(server: ObjectStore) -> Iterator[ObjectStore]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")  # those of botocore wait for seconds
        yield server


@pytest.fixture
def wire(store: ObjectStore) -> Wire:
    store.wire.reset()
    return store.wire


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """One layer, whose last residual add leaves the residual out: each file is a request of a slow server."""
    spec = DemoSpec(layers=1, decode_steps=0, fault=Fault("residual", 0))
    return made_once(tmp_path_factory, "stored", lambda directory: small_demo(directory, spec))


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> DemoPaths:
    """Tensors of a size beside which headers and topology are little: 600 tokens."""
    spec = DemoSpec(layers=1, decode_steps=0, prompt_length=600)
    return made_once(tmp_path_factory, "wide", lambda directory: make_demo(directory, spec))


Compare = Callable[..., pytest.RunResult]


@pytest.fixture
def compare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Compare:
    """Compare two addresses; the CSV is `out/acc.csv`, the cache is the test's own."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):  # of the outer session
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]")

    def run(golden: str, mine: str, *arguments: str) -> pytest.RunResult:
        sides = [f"--acc-golden={golden}", f"--acc-mine={mine}", "-oacc_cache_dir=cache"]
        return pytester.runpytest_inprocess(
            *QUICKER, *sides, "--acc-output=out", "--acc-csv=acc.csv", *arguments
        )

    return run


@pytest.fixture(scope="module")
def there(store: ObjectStore, faulty: DemoPaths) -> tuple[str, str]:
    """The addresses of `faulty`, uploaded."""
    return store.upload("dumps", faulty.golden, "golden"), store.upload("dumps", faulty.mine, "mine")


def verdicts() -> list[tuple[str, ...]]:
    return [(row["test_id"], row["verdict"], row["max_relative_error"]) for row in read_rows()]


def test_a_comparison_in_a_store_is_the_one_on_the_disk(
    acc: Run, compare: Compare, faulty: DemoPaths, there: tuple[str, str], wire: Wire
) -> None:
    acc(faulty)
    here = verdicts()
    result = compare(*there, "--acc-rows=rows.jsonl", "--acc-html=page.html", "--junitxml=junit.xml")
    assert verdicts() == here
    assert wire.bytes_read
    result.stdout.fnmatch_lines(["acc golden: torch s3://dumps/golden/msit_dump_*"])
    result.stdout.fnmatch_lines(["root cause: * the operator is wrong on its own inputs: *"])
    for name in ("out/acc.csv", "rows.jsonl", "page.html", "junit.xml"):
        text = Path(name).read_text()
        assert "acc_mirror" not in text, name
        assert SECRET not in text, name
    assert read_rows()[0]["my_data_path"].startswith("s3://dumps/mine/")


@pytest.mark.slow
@pytest.mark.usefixtures("python_with_torch")
def test_workers_read_the_store_too(compare: Compare, there: tuple[str, str], wire: Wire) -> None:
    """They get paths of mirrors in the plan, and the caches that these are in."""
    compare(*there, "--acc-replay=off")
    here = verdicts()
    shutil.rmtree("cache")
    compare(*there, "--acc-replay=off", "-n2")
    assert sorted(verdicts()) == sorted(here)


def test_what_was_read_once_is_not_read_again(compare: Compare, there: tuple[str, str], wire: Wire) -> None:
    compare(*there, "--acc-replay=off")
    wire.reset()
    compare(*there, "--acc-replay=off")
    assert wire.bytes_read == 0


@pytest.mark.slow
def test_no_more_is_read_than_what_is_compared(
    compare: Compare, wide: DemoPaths, store: ObjectStore, wire: Wire
) -> None:
    golden, mine = store.upload("wide", wide.golden, "golden"), store.upload("wide", wide.mine, "mine")
    compare(golden, mine, "--acc-replay=off")  # which reads inputs that are not compared
    compared = {path for row in read_rows() for path in paths_of(row) if row["verdict"] == "pass"}
    payload = sum(store.size(path) for path in compared)
    assert payload > 3_000_000
    assert wire.bytes_read <= 1.2 * payload


@pytest.mark.slow
def test_from_its_index_a_demo_of_small_tensors_takes_little_more_than_these(
    compare: Compare, store: ObjectStore, wire: Wire, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its texts alone are larger. A file that was written anew is seen, and then the index is refused."""
    demo = made_once(tmp_path_factory, "demo", lambda directory: make_demo(directory, DemoSpec()))
    golden, mine = store.upload("demo", demo.golden, "golden"), store.upload("demo", demo.mine, "mine")
    for place, root in ((golden, demo.golden), (mine, demo.mine)):
        refs = refs_of(open_dump(str(root)))
        headers = {str(Path(ref.path).relative_to(root)): ref.header() for ref in refs}
        index_upload(address_of(place), headers)  # as `acc dump -o s3://...` does
    wire.reset()
    compare(golden, mine, "--acc-replay=off")
    assert {row["verdict"] for row in read_rows()} == {"pass"}
    pairs = make_plan(Settings(golden=str(demo.golden), mine=str(demo.mine))).pairs
    compared = {ref for pair in pairs for side in (pair.golden, pair.mine) for ref in side.refs}
    assert wire.bytes_read <= 1.2 * sum(ref.header().nbytes for ref in compared)
    assert wire.listed <= 4 + len(store.keys("demo")) / 1000
    (key, *_) = (key for key in store.keys("demo") if key.endswith("after/outtensor0.bin"))
    store.put("demo", key, store.content("demo", key)[::-1])
    result = compare(golden, mine, "--acc-replay=off", "--co")
    result.stdout.fnmatch_lines(
        ["acc note: s3://demo/mine/acc_dump.index: is stale and was not used: files were added, *"]
    )


def test_a_dump_that_is_written_to_a_store_has_its_index(
    store: ObjectStore, wire: Wire, tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    store.upload("runs", tmp_path, "")  # makes the bucket
    with register_hook(model, DumpConfig("s3://runs/today", token_range=[0, 1], run_name="r")) as handle:
        model(torch.ones(2, 3))
        model(torch.ones(2, 3))
    assert "today/r/acc_dump.index" in store.keys("runs")
    for address in ("s3://runs/today/r", handle.address):
        wire.reset()
        dump = open_dump(address, cache=Cache(str(tmp_path / address.rpartition("/")[2])))
        headers = [ref.header() for ref in refs_of(dump)]
        assert len(headers) > 5
        assert [*wire.read] == ["/runs/today/r/acc_dump.index"]


def paths_of(row: dict[str, str]) -> list[str]:
    return [*row["golden_data_path"].split(";"), *row["my_data_path"].split(";")]


def test_a_store_that_fails_now_and_then_is_asked_again(
    compare: Compare, acc: Run, faulty: DemoPaths, there: tuple[str, str], wire: Wire
) -> None:
    acc(faulty, "--acc-replay=off")
    here = verdicts()
    wire.fails_every = 10
    compare(*there, "--acc-replay=off")
    assert wire.failed > 3
    assert verdicts() == here


def test_an_object_that_is_denied_makes_its_pair_red(
    compare: Compare, there: tuple[str, str], wire: Wire
) -> None:
    wire.denied = "root.model.norm/output.pth"
    compare(*there, "--acc-replay=off")
    denied = [row for row in read_rows() if row["golden_data_path"].endswith(wire.denied)]
    assert [row["verdict"] for row in denied] == ["incomparable"] * len(denied)
    assert denied
    assert "s3://dumps/golden/" in denied[0]["cmp_fail_reason"]
    assert "not for you" in denied[0]["cmp_fail_reason"] or "Denied" in denied[0]["cmp_fail_reason"]
    assert any(row["verdict"] == "pass" for row in read_rows())


@pytest.mark.slow
def test_an_object_that_always_fails_costs_its_attempts_once(
    compare: Compare, there: tuple[str, str], wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "PAUSES", (0.0, 0.0))
    wire.broken = "root.model.norm/output.pth"
    compare(*there)
    assert wire.failed <= 2 * 3  # of golden's steps each
    rows = read_rows()
    broken = [row for row in rows if row["golden_data_path"].endswith(wire.broken)]
    assert {row["verdict"] for row in broken} == {"incomparable"}
    assert all("cannot be read from the store" in row["cmp_fail_reason"] for row in broken)
    assert any(row["verdict"] == "pass" for row in rows)


def test_an_object_that_was_written_anew_since_it_was_listed_is_named(
    store: ObjectStore, wire: Wire, tmp_path: Path
) -> None:
    """S3 says so with what is read: nothing else is asked."""
    (tmp_path / "x.bin").write_bytes(bytes(100))
    address = store.upload("anew", tmp_path, "x")
    path = mirrored(address_of(address), str(tmp_path / "cache"))
    asked = wire.asked
    assert bytes_of(f"{path}/x.bin") == bytes(100)
    assert wire.asked == asked + 1
    path = mirrored(address_of(address), str(tmp_path / "other_cache"))
    store.put("anew", "x/x.bin", b"1" * 100)
    with pytest.raises(FormatError, match=r"^s3://anew/x/x\.bin: was written anew since its dump was listed"):
        bytes_of(f"{path}/x.bin")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://dumps/nowhere", "s3://dumps/nowhere: no such file or directory; correct the address"),
        (
            f"s3://AKIA:{SECRET}@dumps/golden",
            "s3://***@dumps/golden: an address must have no password and no query; *",
        ),
        (f"s3://dumps/golden?secret={SECRET}", "s3://dumps/golden[?]***: an address must have no *"),
        ("gs://bucket/dump", "gs://bucket/dump: gs:// needs the package gcsfs: pip install 'gcsfs'"),
        ("nosuch://a/b", "nosuch://a/b: cannot be opened: Protocol not known: nosuch; correct the protocol"),
    ],
)
def test_a_wrong_address_is_one_sentence(
    compare: Compare,
    there: tuple[str, str],
    wire: Wire,
    address: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    result = compare(address, there[1])
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said}"])
    assert SECRET not in result.stdout.str() + result.stderr.str()


@pytest.mark.parametrize("size", ["10", "-1", "10X", "1e3", ""])
def test_the_size_of_the_cache_is_a_size(compare: Compare, size: str) -> None:
    result = compare("a", "b", f"-oacc_cache_size={size}")
    if size in ("10", ""):
        result.stderr.no_fnmatch_line("*acc_cache_size*")
    else:
        result.stderr.fnmatch_lines([f"ERROR: acc_cache_size must be a size such as 500M*, got {size}"])


@pytest.mark.slow
def test_places_of_one_dump_may_be_given_several_times_or_in_an_ini_file(
    compare: Compare, acc: Run, faulty: DemoPaths, store: ObjectStore, wire: Wire, pytester: pytest.Pytester
) -> None:
    """The topology of mine lies on the disk, its tensors in the store."""
    acc(faulty)
    here = verdicts()
    (root,) = faulty.mine.iterdir()
    shutil.copytree(
        root, f"host0/{root.name}", ignore=lambda _, names: ["tensors"] if "tensors" in names else []
    )
    tensors = store.upload("split", root / "tensors", f"host1/{root.name}/tensors")
    places = [str(pytester.path / "host0" / root.name), tensors.removesuffix("/tensors")]
    compare(str(faulty.golden), places[0], f"--acc-mine={places[1]}")
    assert verdicts() == here
    pytester.makeini(
        f"[pytest]\nacc_mine =\n    host0/{root.name}\n    {places[1]}\nacc_golden = {faulty.golden}\n"
    )
    words = ("-oacc_cache_dir=cache", "--acc-output=out", "--acc-csv=acc.csv")
    assert pytester.runpytest_inprocess(*QUICKER, *words).ret == pytest.ExitCode.TESTS_FAILED
    assert verdicts() == here


@pytest.mark.slow
def test_an_index_is_made_by_a_command(
    compare: Compare, there: tuple[str, str], wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    compare(*there, "--acc-replay=off")
    before = verdicts()
    assert cli.main(["index", there[0], "--cache-dir", "other"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(
        r"acc: s3://dumps/golden/acc_dump\.index: \d+ files, \d+ headers of tensors, [\d.]+ KiB", said
    )
    result = compare(*there, "--acc-replay=off")
    assert verdicts() == before
    result.stdout.no_fnmatch_line("*stale*")
