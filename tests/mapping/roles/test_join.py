"""Exports of both sides joined by their roles: who is paired with whom, by which policy, and read how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from acc_pytest.dumps.base import Slot
from acc_pytest.mapping.match import Export, Match
from acc_pytest.mapping.roles.join import RoleJoin
from acc_pytest.mapping.tables import load_tables
from acc_pytest.topology.tree import Node

TABLES = load_tables()
LAYER = Node("layer", "Layer", "0_Layer")
OTHER = Node("other", "Layer", "1_Layer")


def export(
    role: str,
    name: str = "",
    form: str = "plain",
    *,
    slot: str = "output",
    op_type: str = "LinearOperation",
    component: int | None = None,
    companions: tuple[Export, ...] = (),
) -> Export:
    """A tensor of a leaf, called after its role."""
    node = Node(name or role, op_type, name or role)
    return Export(
        node, Slot("input" if slot == "input" else "output", (0,)), role, form, component, companions
    )


def exports(roles: str) -> list[Export]:
    """Plain ones of these roles."""
    return [export(role) for role in roles.split()]


def joined(
    golden: Sequence[Export],
    mine: Sequence[Export],
    fits: Callable[[Match], bool] = lambda match: True,
    layer: Node | None = LAYER,
    sharded: bool = False,
    said: Callable[[Node, Node], bool] = lambda golden, mine: False,
    modules: bool = False,
) -> list[Match]:
    join = RoleJoin(golden, mine, TABLES, fits, layer, sharded=sharded, is_user_pair=said, modules=modules)
    return list(join.matches())


def names(matches: Sequence[Match]) -> list[tuple[str, str]]:
    """The names of both nodes, golden's first."""
    return [(match.golden.node.name, match.mine.node.name) for match in matches]


def views(match: Match) -> tuple[str, int, str, int]:
    """Kind and number of both views, golden's first."""
    return match.golden_view.kind, match.golden_view.index, match.mine_view.kind, match.mine_view.index


def pieces(match: Match) -> list[str]:
    """The names of the pieces that a match refers to."""
    return [piece.node.name for piece in (*match.golden_view.parts, *match.mine_view.parts)]


# ---- one role, one pair -----------------------------------------------------------------------------


def test_equal_roles_are_pairs_and_others_are_none() -> None:
    [match] = joined(exports("q k"), exports("v q"))
    assert (names([match]), match.policy, match.reason) == ([("q", "q")], "role", "both are `q`")
    assert views(match) == ("whole", 0, "whole", 0)


def test_what_does_not_fit_is_no_pair_unless_a_model_has_it_once() -> None:
    def never(match: Match) -> bool:
        return False

    for role in ("embed", "final_norm", "lm_head"):
        both = exports(role), exports(role)
        assert len(joined(*both, never, layer=None)) == 1, "a wrong shape there is a finding"
        assert joined(*both, never) == []
        assert joined([*both[0], export(role, "again")], both[1], never, layer=None) == []
        assert joined(both[0], [export(role, form="passing")], never, layer=None) == []
    assert joined(exports("q"), exports("q"), never, layer=None) == []


def test_of_several_that_fit_one_is_taken() -> None:
    two = [export("o", "first"), export("o", "second")]
    assert names(joined(two, exports("o"))) == [("first", "o")]
    assert names(joined(two, exports("o"), lambda match: match.golden.node.name == "second")) == [
        ("second", "o")
    ]


def test_outputs_come_before_inputs_and_what_the_user_says_before_the_rest() -> None:
    read, written = export("q", "read", slot="input"), export("q", "written")
    assert names(joined([read, written], exports("q"))) == [("written", "q")]
    other = export("q", "said")
    assert names(
        joined(
            [written, other, read], exports("q"), said=lambda golden, mine: golden.name in ("said", "read")
        )
    ) == [("said", "q")]


def nested(role: str, *op_types: str) -> list[Export]:
    """Exports of nodes in each other, the outermost first."""
    nodes = [Node(op_type, op_type, op_type) for op_type in op_types]
    for parent, child in pairwise(nodes):
        parent.add(child)
    return [Export(node, Slot("output", (0,)), role) for node in nodes]


def test_operators_go_with_the_innermost_and_modules_with_the_outermost() -> None:
    golden = nested("down", "Mlp", "Experts", "down")
    leaf = export("down", "leaf")
    assert names(joined(golden, [leaf])) == [("down", "leaf")]
    module, inner, _ = mine = nested("down", "MlpGateLayer", "MlpInner", "LinearOperation")
    assert names(joined(golden, mine)) == [
        ("Mlp", "MlpGateLayer"),
        ("down", "MlpInner"),
        ("down", "LinearOperation"),
    ]
    policies = [match.policy for match in joined(golden, [module, inner, leaf])]
    assert policies == ["module", "role", "role"]


def test_a_composite_of_one_linear_is_no_module() -> None:
    golden = nested("o", "Attention", "o_proj")
    mine = nested("o", "LinearNoQuant", "LinearOperation")
    assert names(joined(golden, mine)) == [("o_proj", "LinearNoQuant"), ("o_proj", "LinearOperation")]


def test_the_layer_goes_with_the_outermost_and_is_not_beside_its_modules() -> None:
    layer, mlp, _ = mine = nested("down", "Prefill_layer", "MlpGateLayer", "LinearOperation")
    golden = nested("down", "DecoderLayer", "Mlp", "down")
    matches = joined(golden, mine, layer=layer.node)
    assert names(matches)[:2] == [("DecoderLayer", "Prefill_layer"), ("DecoderLayer", "MlpGateLayer")]
    assert [match.policy for match in matches] == ["layer", "module", "role"]
    assert mlp.node.depth == 1


def test_a_tensor_that_is_only_handed_on_is_taken_where_nobody_computed_it() -> None:
    repeated, plain = export("lm_head", "handed on", "repeated"), export("lm_head", "computed")
    assert names(joined([repeated, plain], exports("lm_head"))) == [("computed", "lm_head")]
    assert names(joined([repeated], exports("lm_head"))) == [("handed on", "lm_head")]


def test_a_moved_tensor_of_golden_is_the_tensor() -> None:
    assert names(joined([export("o", form="passing")], exports("o"))) == [("o", "o")]
    assert joined([export("o", form="table")], exports("o")) == []


def test_a_key_stands_in_for_a_rotated_key_where_nothing_rotates() -> None:
    golden = [export("k_rope", "rotated", "cache")]
    assert names(joined(golden, exports("k"))) == [("rotated", "k")]
    assert joined(golden, [*exports("k"), export("q_rope")])[0].policy == "cache"
    assert names(joined(golden, exports("k k_rope"))) == [("rotated", "k_rope")]


# ---- how both are read ------------------------------------------------------------------------------


def one(golden: Export, mine: Export) -> Match:
    [match] = joined([golden], [mine], layer=None)
    return match


def test_forms_say_how_a_tensor_is_read() -> None:
    beside = (export("bias"),)
    cases = {
        "plain": ("whole", 0, "whole", 0),
        "partial": ("whole", 0, "sum", 0),
        "unbiased": ("whole", 0, "bias", 0),
        "partial_unbiased": ("whole", 0, "bias_sum", 0),
        "paged": ("whole", 0, "slots", 0),
        "head_part": ("heads", 1, "whole", 0),
    }
    for form, expected in cases.items():
        match = one(export("o"), export("o", form=form, component=1, companions=beside))
        assert views(match) == expected, form
        assert pieces(match) == (["bias"] if form not in ("plain", "partial") else []), form
    reasons = {
        "partial": ("special", "summed over ranks it is `o`"),
        "unbiased": ("special", "with the bias it is `o`"),
        "partial_unbiased": ("special", "with the bias it is `o`"),
        "paged": ("cache", "the rows that were written are `o`"),
        "head_part": ("packed", "part 2 of every head of `o`"),
    }
    for form, said in reasons.items():
        match = one(export("o"), export("o", form=form, component=1))
        assert (match.policy, match.reason) == said
    first = one(export("o"), export("o", form="head_part"))
    assert (views(first)[1], first.reason) == (0, "part 1 of every head of `o`")


@pytest.mark.parametrize("role", ["final_norm", "lm_head"])
def test_of_logits_one_side_may_have_the_last_token_only(role: str) -> None:
    assert views(one(export(role), export(role))) == ("last", 0, "last", 0)


def test_of_modules_logits_may_be_those_of_the_last_token_and_padded() -> None:
    kinds = [
        views(*joined(exports(role), exports(role), modules=True))[::2] for role in ("lm_head", "final_norm")
    ]
    assert kinds == [("logits", "logits"), ("last", "last")]


def test_what_has_yet_to_be_turned_or_added_is_completed_on_its_own_side() -> None:
    beside = (export("beside"),)
    for form, kind, policy, reason in (
        ("turned", "turned", "rope", "turned by the position tables it is `q_rope`"),
        ("split", "residual", "special", "with the residual added it is `q_rope`"),
    ):
        golden, mine = export("q_rope", form=form, companions=beside), export("q_rope", "mine")
        match = one(golden, mine)
        assert (match.policy, match.reason, match.tag) == (policy, reason, "")
        assert (views(match), pieces(match)) == ((kind, 0, "whole", 0), ["beside"])
        match = one(mine, golden)
        assert (views(match), pieces(match)) == (("whole", 0, kind, 0), ["beside"])
        assert match.tag == ("turned" if form == "turned" else "")
    both = export("o", form="split", companions=beside)
    assert views(one(both, both)) == ("residual", 0, "residual", 0)
    same = export("o", form="turned")
    assert joined([same], [same]) == [], "neither side was dumped as it is compared"


def test_a_choice_is_held_against_the_largest_logits_of_the_other_sides_router() -> None:
    golden = [export("router", "gate"), export("router_index", "gate", "largest")]
    golden[1] = Export(golden[0].node, Slot("output", (0,)), "router_index", "largest")
    mine = [export("router_index", "topk"), export("router", "topk")]
    mine[1] = Export(mine[0].node, Slot("output", (1,)), "router")
    match = next(match for match in joined(golden, mine) if match.mine.role == "router_index")
    assert (views(match), match.tag) == (("largest", 0, "whole", 0), "")
    assert match.golden_view.parts == (mine[0], mine[1])
    assert match.reason == "the places of the largest logits of the router"
    match = next(match for match in joined(mine, golden) if match.mine.role == "router_index")
    assert (views(match), match.tag) == (("whole", 0, "largest", 0), "largest")
    assert match.mine_view.parts == (mine[0], mine[1])
    lonely = one(golden[1], export("router_index", "elsewhere"))
    assert pieces(lonely) == ["elsewhere"]


@pytest.mark.parametrize(("component", "index"), [(None, -1), (0, 0), (1, 1)])
def test_position_tables_go_with_tables(component: int | None, index: int) -> None:
    golden = export("cos", form="table", component=component)
    match = one(golden, export("cos", form="table"))
    assert (match.policy, views(match)[:2]) == ("rope", ("table", index))
    assert joined([golden], exports("cos")) == joined(exports("cos"), [export("cos", form="table")]) == []


def test_what_the_cache_of_golden_got_is_compared_beside_the_tensor_itself() -> None:
    golden = [export("k_rope", "tensor"), export("k_rope", "cache", "cache")]
    mine = export("k_rope", "mine")
    plain, cached = joined(golden, [mine])
    assert (plain.golden.node.name, plain.tag, cached.golden.node.name, cached.tag) == (
        "tensor", "", "cache", "cache",
    )  # fmt: skip
    assert (cached.policy, cached.reason) == ("cache", "`k_rope` is what the cache got at this step")
    assert views(cached) == ("cache", 0, "whole", 0)
    assert joined(golden[1:], [mine], lambda match: False) == []


def test_forms_of_mine_that_a_cache_is_held_against() -> None:
    cache = [export("v", "cache", "cache")]

    def read(form: str, component: int | None = None) -> list[tuple[str, int, str, int]]:
        return [views(match) for match in joined(cache, [export("v", form=form, component=component)])]

    assert read("plain") == [("cache", 0, "whole", 0)]
    assert read("paged") == [("cache", 0, "slots", 0)]
    assert read("head_part", 2) == [("cache_heads", 2, "whole", 0)]
    assert read("head_part") == [("cache_heads", 0, "whole", 0)]
    assert read("partial") == read("passing") == []


# ---- packs ------------------------------------------------------------------------------------------


def packed(matches: Sequence[Match]) -> list[tuple[str, str, str, tuple[str, int, str, int]]]:
    """Both nodes, tag and views of the matches by `packed`."""
    return [
        (match.golden.node.name, match.mine.node.name, match.tag, views(match))
        for match in matches
        if match.policy == "packed"
    ]


@pytest.mark.parametrize("parts", ["q k v", "v q k"])
def test_a_pack_of_mine_holds_the_tensors_of_golden_in_the_order_of_the_tables(parts: str) -> None:
    matches = joined(exports(parts), exports("qkv"))
    assert packed(matches) == [
        (role, "qkv", role, ("whole", 0, "part", number)) for number, role in enumerate("qkv")
    ]
    assert [pieces(match) for match in matches] == [["q", "k", "v"]] * 3
    assert matches[1].reason == "`k` is part 2 of the packed `qkv`"


def test_the_gate_is_the_first_half_of_a_packed_mlp() -> None:
    of_mine = packed(joined(exports("up gate"), exports("mlp_in")))
    assert of_mine == [
        ("gate", "mlp_in", "gate", ("whole", 0, "part", 0)),
        ("up", "mlp_in", "up", ("whole", 0, "part", 1)),
    ]
    of_golden = packed(joined(exports("mlp_in"), exports("up gate")))
    assert of_golden == [
        ("mlp_in", "gate", "gate", ("part", 0, "whole", 0)),
        ("mlp_in", "up", "up", ("part", 1, "whole", 0)),
    ]


def test_a_pack_of_golden_holds_the_tensors_of_mine() -> None:
    matches = joined(exports("qkv"), exports("k v q"))
    assert packed(matches) == [
        ("qkv", role, role, ("part", number, "whole", 0)) for number, role in enumerate("qkv")
    ]
    assert [pieces(match) for match in matches] == [["q", "k", "v"]] * 3
    assert matches[2].reason == "`v` is part 3 of golden's packed `qkv`"
    both = packed(joined(exports("qkv"), [*exports("q k v"), export("q", "moved")]))
    assert [name for _, name, _, _ in both] == ["q", "moved", "k", "v"], "every tensor of the role"


@pytest.mark.parametrize(
    ("golden", "mine"),
    [
        ("q k", "qkv"),  # a part is missing
        ("qkv", "q k"),
        ("qkv q k v", "qkv"),  # golden has the pack itself
        ("qkv q k v", "q k v"),  # golden has the parts themselves
        ("qkv", "qkv"),
        ("q k v", "q k v"),
    ],
)
def test_a_pack_is_cut_only_where_one_side_has_it_whole_and_the_other_in_all_parts(
    golden: str, mine: str
) -> None:
    assert packed(joined(exports(golden), exports(mine))) == []


def test_pieces_that_do_not_fit_or_are_no_plain_outputs_are_not_cut() -> None:
    def never(match: Match) -> bool:
        return False

    for golden, mine in ((exports("q k v"), exports("qkv")), (exports("qkv"), exports("q k v"))):
        assert joined(golden, mine, never) == []
    for part in (export("v", slot="input"), export("v", form="partial")):
        assert packed(joined([*exports("q k"), part], exports("qkv"))) == []
        assert packed(joined(exports("qkv"), [*exports("q k"), part])) == []
    assert packed(joined(exports("q k v"), [export("qkv", form="partial")])) == []


def interleaved(role: str) -> list[Export]:
    """A tensor of a model that packs the query, key and value of each head."""
    return [export(role, op_type="BloomAttention")]


def test_heads_that_pack_query_key_and_value_are_cut_head_by_head() -> None:
    matches = joined(interleaved("qkv"), exports("q k v"))
    assert [views(match)[:2] for match in matches] == [("interleaved", number) for number in range(3)]
    assert matches[0].reason == "`q` is part 1 of golden's packed `qkv` in every head"
    assert joined(interleaved("mlp_in"), exports("gate up")) == []


def test_shards_that_pack_their_parts_are_compared_part_by_part() -> None:
    golden, mine = exports("qkv"), exports("qkv q k v")
    matches = [match for match in joined(golden, mine, sharded=True) if match.mine.node.name == "qkv"]
    assert packed(matches) == [
        ("qkv", "qkv", role, ("part", number, "own_part", number)) for number, role in enumerate("qkv")
    ]
    assert pieces(matches[0]) == ["q", "k", "v"] * 2
    assert matches[1].reason == "part 2 of the packed `qkv` of both, shard by shard"
    assert [match.policy for match in joined(golden, exports("qkv"), sharded=True)] == ["role"]
    assert joined(interleaved("qkv"), mine, sharded=True)[0].policy == "role"
    assert [m.mine.node.name for m in joined(exports("o"), mine, sharded=True)] == []
    unfit = joined(golden, mine, lambda match: match.mine.node.name != "qkv", sharded=True)
    assert {match.mine.node.name for match in unfit} == {"q", "k", "v"}
    passing = [export("qkv", form="passing"), *exports("q k v")]
    assert {m.mine.node.name for m in joined(golden, passing, sharded=True)} == {"q", "k", "v"}


def test_packs_of_modules_are_cut_by_what_each_side_tells_itself() -> None:
    both = exports("qkv attn_core")
    matches = [m for m in joined(both, both, sharded=True, modules=True) if m.mine.role == "qkv"]
    assert packed(matches) == [
        ("qkv", "qkv", role, ("own_columns", number, "own_columns", number))
        for number, role in enumerate("qkv")
    ]
    assert pieces(matches[0]) == ["attn_core", "attn_core"]
    assert (matches[2].policy, matches[2].reason) == (
        "packed", "part 3 of the packed `qkv` of both, rank by rank",
    )  # fmt: skip
    fits = [m.tag for m in joined(both, both, lambda m: m.tag != "k", sharded=True, modules=True)]
    assert [tag for tag in fits if tag] == ["q", "v"]


def test_halves_are_cut_without_the_attention_and_three_parts_are_not() -> None:
    halves = joined(exports("mlp_in"), exports("mlp_in"), sharded=True, modules=True)
    assert [(m.tag, views(m), pieces(m)) for m in halves] == [
        (role, ("own_columns", number, "own_columns", number), [])
        for number, role in enumerate(("gate", "up"))
    ]
    for golden, mine in (("qkv attn_core", "qkv"), ("qkv", "qkv attn_core")):
        assert joined(exports(golden), exports(mine), sharded=True, modules=True) == []
    whole = joined(exports("qkv"), exports("qkv"), modules=True)
    assert [match.policy for match in whole] == ["role"], "nothing is in shards"
    apart = joined(exports("q k v"), exports("qkv"), sharded=True, modules=True)
    assert [match.tag for match in apart] == ["q", "k", "v"], "golden has no such pack"


# ---- two tensors that somebody says are one ---------------------------------------------------------


def read_as(golden: Export, mine: Export, more: Sequence[Export] = ()) -> Match | None:
    """The two, known to both sides where they have a role, besides `more` of golden."""
    goldens = [each for each in (golden, *more) if each.role]
    mines = [mine] if mine.role else []
    join = RoleJoin(goldens, mines, TABLES, lambda match: False, LAYER)
    as_said = [Export(each.node, each.slot, "") for each in (golden, mine)]
    return join.read_as(*as_said)


def test_two_of_one_role_are_read_as_their_role_asks_whether_they_fit_or_not() -> None:
    match = read_as(export("o"), export("o", form="partial"))
    assert match is not None
    assert (views(match), match.policy) == (("whole", 0, "sum", 0), "role")


def test_two_of_different_roles_are_not_one() -> None:
    assert read_as(export("q"), export("k")) is None
    assert read_as(export("q"), export("qkv")) is None, "golden has no key and no value"
    assert read_as(export("o"), export("qkv"), exports("q k v")) is None


def test_a_tensor_without_a_role_takes_that_of_the_other() -> None:
    for golden, mine in (
        (export("lm_head", "g"), export("", "m")),
        (export("", "g"), export("lm_head", "m")),
    ):
        match = read_as(golden, mine)
        assert match is not None
        assert (match.reason, views(match)[0]) == ("both are `lm_head`", "last")
        assert (match.golden.role, match.mine.role) == ("lm_head", "lm_head")
    nothing = read_as(export("", "g"), export("", "m"))
    assert nothing is not None
    assert (nothing.policy, nothing.reason) == ("", "")


def test_a_part_of_a_pack_is_read_as_that_part() -> None:
    match = read_as(export("k"), export("qkv"), exports("q v"))
    assert match is not None
    assert (match.policy, match.reason, match.tag) == ("packed", "part of `qkv`", "k")
    assert (views(match), pieces(match)) == (("whole", 0, "part", 1), ["q", "k", "v"])
    assert names([match]) == [("k", "qkv")]
