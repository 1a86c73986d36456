"""Join the exports of both sides by role: the policies `layer`, `module`, `special`, `role`, `rope`,
`packed` and `cache`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ...base.reason import Reason
from ...topology.tree import Node
from ..match import WHOLE, Export, Match, ViewRule
from ..tables import Tables

Fits = Callable[[Match], bool]
MADE = ("split", "turned", "largest")
"""Forms of what is made of a tensor that was dumped before it is compared."""
_ONE_ROW_ROLES = ("final_norm", "lm_head")
_LANDMARKS = ("embed", "final_norm", "lm_head")


class RoleJoin:
    """One layer of each side (or what is outside of layers), their exports indexed by role."""

    def __init__(
        self,
        golden: Sequence[Export],
        mine: Sequence[Export],
        tables: Tables,
        fits: Fits,
        layer: Node | None,
        *,
        sharded: bool = False,
        is_user_pair: Callable[[Node, Node], bool] = lambda golden, mine: False,
        modules: bool = False,
    ) -> None:
        """`layer` is the layer of mine. `sharded` says that tensors come in shards to be merged,
        `is_user_pair` that the user holds a golden node and a node of mine to be the same, `modules` that
        both sides are modules of torch.
        """
        self._is_user_pair = is_user_pair
        self._modules = modules
        self._tables = tables
        self._fits = fits
        self._mine_layer = layer
        self._sharded = sharded
        self._mine = _by_role(mine)
        self._golden = _by_role(golden)
        for role, instead in tables.stand_in.items():
            if role not in self._mine and instead in self._mine:
                self._golden[instead] += self._golden.pop(role, [])
        self._golden_types = {export.node.op_type for export in golden}

    def matches(self) -> Iterator[Match]:
        """All matches, plain ones first; a slot of mine has one plain match at most."""
        apart = self._packs_apart()
        for role, exports in self._mine.items():
            for export in exports:
                if role in apart:
                    yield from filter(self._fits, self._packed_both(role, export))
                else:
                    yield from self._plain(role, export)
                yield from filter(self._fits, self._caches(role, export))
        for pack, roles in self._tables.packs.items():
            yield from filter(self._fits, self._packed_mine(pack, roles))
            yield from filter(self._fits, self._packed_golden(pack, roles))

    def _plain(self, role: str, export: Export) -> Iterator[Match]:
        """The best golden tensor of the role; of a paged cache, the rows that this step wrote."""
        forms = ("table",) if export.form == "table" else ("plain", "passing", *MADE)
        goldens = self._golden.get(role, ())
        candidates = [golden for golden in goldens if golden.form in forms]
        if not candidates:
            candidates = [golden for golden in goldens if golden.form == "repeated"]
        for golden in sorted(candidates, key=lambda candidate: self._preference(candidate, export)):
            if golden.form == export.form != "split" and golden.form in MADE:
                continue
            match = self._match(role, golden, export)
            if self._fits(match):
                yield match
                return
        if len(candidates) == 1 and self._is_landmark(role, export):
            yield self._match(role, candidates[0], export)

    def read_as(self, golden: Export, mine: Export) -> Match | None:
        """Two tensors that somebody says are one, read as their roles ask; `None` where their roles differ.

        A tensor of no known role takes that of the other one.
        """
        goldens, mines = self._roles_of(self._golden, golden), self._roles_of(self._mine, mine)
        for role, first in goldens.items():
            for mine_role, second in mines.items():
                if role == mine_role:
                    return self._match(role, first, second)
                for pack, roles in self._tables.packs.items():
                    if mine_role == pack and role in roles and self._single_exports(self._golden, roles):
                        pieces = tuple(self._single_exports(self._golden, roles))
                        rule = ViewRule("part", roles.index(role), pieces)
                        return Match(
                            first, second, "packed", Reason("part of `{}`", pack), mine_view=rule, tag=role
                        )
        if goldens and mines:
            return None
        for role, first in goldens.items():
            return self._match(role, first, replace(mine, role=role))
        for role, second in mines.items():
            return self._match(role, replace(golden, role=role), second)
        return Match(golden, mine, "", "")

    @staticmethod
    def _roles_of(side: dict[str, list[Export]], export: Export) -> dict[str, Export]:
        return {
            role: candidate
            for role, exports in side.items()
            for candidate in exports
            if (candidate.node, candidate.slot) == (export.node, export.slot)
        }

    def _is_landmark(self, role: str, export: Export) -> bool:
        """Roles that a model has once: a wrong shape there is a finding, not a wrong rule."""
        return self._mine_layer is None and export.form == "plain" and role in _LANDMARKS

    def _match(self, role: str, golden: Export, mine: Export) -> Match:
        last = "logits" if role == "lm_head" and self._modules else "last"
        view = ViewRule(last) if role in _ONE_ROW_ROLES else WHOLE
        match = Match(golden, mine, self._policy(golden, mine), Reason("both are `{}`", role), view, view)
        if golden.form == "table":
            component = -1 if golden.component is None else golden.component
            match = replace(match, policy="rope", golden_view=ViewRule("table", component))
        elif "largest" in (golden.form, mine.form):
            reason = "the places of the largest logits of the router"
            views = self._chosen(golden, mine), self._chosen(mine, golden)
            match = replace(match, reason=reason, golden_view=views[0], mine_view=views[1])
        else:
            match = read_by_forms(match, role)
        return replace(match, tag=mine.form) if mine.form in ("turned", "largest") else match

    def _chosen(self, export: Export, choice: Export) -> ViewRule:
        """The rule by which a router's logits are read beside the choice of the other side's router."""
        if export.form != "largest":
            return WHOLE
        routers = [*self._golden.get("router", ()), *self._mine.get("router", ())]
        values = [router for router in routers if router.node is choice.node]
        return ViewRule("largest", parts=(choice, *values[:1]))

    def _policy(self, golden: Export, mine: Export) -> str:
        if self._mine_layer is None:
            return "special"
        if mine.node is self._mine_layer:
            return "layer"
        return "module" if self._is_module(mine.node) and golden.node.children else "role"

    def _is_module(self, node: Node) -> bool:
        """A composite that does more than one linear: its counterpart is a container, not a leaf."""
        return bool(node.children) and self._tables.kind_of(node.op_type) != "linear"

    def _preference(self, golden: Export, mine: Export) -> tuple[bool, bool, int]:
        """Outputs before inputs; what the user says; containers for modules and layers, innermost nodes for
        operators."""
        outermost = mine.node is self._mine_layer or self._is_outermost(mine)
        depth = golden.node.depth
        by_user = self._is_user_pair(golden.node, mine.node)
        return golden.slot.kind != "output", not by_user, depth if outermost else -depth

    def _is_outermost(self, mine: Export) -> bool:
        nodes = [
            e.node for e in self._mine[mine.role] if e.slot == mine.slot and e.node is not self._mine_layer
        ]
        return self._is_module(mine.node) and mine.node.depth == min(node.depth for node in nodes)

    def _caches(self, role: str, export: Export) -> Iterator[Match]:
        if export.form not in ("plain", "paged", "head_part"):
            return
        rule = slot_rows(export) if export.form == "paged" else WHOLE
        is_part = export.form == "head_part"
        cache = ViewRule("cache_heads", export.component or 0) if is_part else ViewRule("cache")
        for golden in self._golden.get(role, ()):
            if golden.form == "cache":
                reason = Reason("`{}` is what the cache got at this step", role)
                yield Match(golden, export, "cache", reason, cache, rule, tag="cache")

    def _packed_mine(self, pack: str, roles: Sequence[str]) -> Iterator[Match]:
        packed = [export for export in self._mine.get(pack, ()) if export.form == "plain"]
        pieces = self._single_exports(self._golden, roles)
        if self._plain_of(self._golden, pack) or not pieces:
            return
        for export in packed:
            for index, piece in enumerate(pieces):
                rule = ViewRule("part", index, tuple(pieces))
                reason = Reason("`{}` is part {} of the packed `{}`", piece.role, index + 1, pack)
                yield Match(piece, export, "packed", reason, mine_view=rule, tag=piece.role)

    def _packed_golden(self, pack: str, roles: Sequence[str]) -> Iterator[Match]:
        packed = self._plain_of(self._golden, pack)
        pieces = self._single_exports(self._mine, roles)
        if not packed or not pieces or self._single_exports(self._golden, roles):
            return
        kind = "interleaved" if self._interleaved() else "part"
        if kind == "interleaved" and pack != "qkv":
            return
        for index, role in enumerate(roles):
            for export in self._plain_of(self._mine, role):
                rule = ViewRule(kind, index, tuple(pieces))
                per_head = " in every head" if kind == "interleaved" else ""
                reason = Reason("`{}` is part {} of golden's packed `{}`{}", role, index + 1, pack, per_head)
                yield Match(packed[0], export, "packed", reason, golden_view=rule, tag=role)

    def _packs_apart(self) -> set[str]:
        """Packs that cannot be merged whole: each shard of mine packs its shares of all parts."""
        if not self._sharded or self._interleaved():
            return set()
        if self._modules:
            return {pack for pack in self._tables.packs if self._plain_of(self._golden, pack)}
        return {pack for pack, roles in self._tables.packs.items() if self._single_exports(self._mine, roles)}

    def _packed_both(self, pack: str, export: Export) -> Iterator[Match]:
        packed = self._plain_of(self._golden, pack)
        if not packed or export.form != "plain":
            return
        if self._modules:
            yield from self._both_by_own_columns(pack, packed[0], export)
            return
        pieces = tuple(self._single_exports(self._mine, self._tables.packs[pack]))
        for index, piece in enumerate(pieces):
            rules = ViewRule("part", index, pieces), ViewRule("own_part", index, pieces)
            reason = Reason("part {} of the packed `{}` of both, shard by shard", index + 1, pack)
            yield Match(packed[0], export, "packed", reason, *rules, tag=piece.role)

    def _both_by_own_columns(self, pack: str, golden: Export, mine: Export) -> Iterator[Match]:
        """Part by part, each side cut by its own tensors: gate and up are as wide, and so are key and
        value, beside a query that is as wide as what attention gives."""
        roles = self._tables.packs[pack]
        first = [self._golden.get("attn_core", [])[:1], self._mine.get("attn_core", [])[:1]]
        if len(roles) > 2 and not all(first):
            return
        for index, role in enumerate(roles):
            rules = [
                ViewRule("own_columns", index, tuple(export) if len(roles) > 2 else ()) for export in first
            ]
            reason = Reason("part {} of the packed `{}` of both, rank by rank", index + 1, pack)
            yield Match(golden, mine, "packed", reason, rules[0], rules[1], tag=role)

    def _interleaved(self) -> bool:
        return any(self._tables.interleaves(op_type) for op_type in self._golden_types)

    @staticmethod
    def _plain_of(side: dict[str, list[Export]], role: str) -> list[Export]:
        return [
            export for export in side.get(role, ()) if export.form == "plain" and export.slot.kind == "output"
        ]

    def _single_exports(self, side: dict[str, list[Export]], roles: Sequence[str]) -> list[Export]:
        """The innermost plain export of every role, empty when one role has none."""
        by_role = [self._plain_of(side, role) for role in roles]
        return [exports[0] for exports in by_role] if all(by_role) else []


def _by_role(exports: Sequence[Export]) -> dict[str, list[Export]]:
    roles: dict[str, list[Export]] = defaultdict(list)
    for export in exports:
        roles[export.role].append(export)
    return roles


def read_by_forms(match: Match, role: str) -> Match:
    """The match of two tensors of a role with the views that their forms ask for, and the reason in words."""
    forms = match.golden.form, match.mine.form
    if "turned" in forms:
        completed = _completed(match, Reason("turned by the position tables it is `{}`", role))
        return replace(completed, policy="rope")
    if "split" in forms:
        return _completed(match, Reason("with the residual added it is `{}`", role))
    mine = match.mine
    if mine.form == "partial":
        return replace(match, reason=Reason("summed over ranks it is `{}`", role), mine_view=ViewRule("sum"))
    if mine.form == "head_part":
        piece = mine.component or 0
        reason = Reason("part {} of every head of `{}`", piece + 1, role)
        view = ViewRule("heads", piece, mine.companions)
        return replace(match, policy="packed", reason=reason, golden_view=view)
    if mine.form == "paged":
        reason = Reason("the rows that were written are `{}`", role)
        return replace(match, policy="cache", reason=reason, mine_view=slot_rows(mine))
    if mine.form in ("unbiased", "partial_unbiased"):
        kind = "bias" if mine.form == "unbiased" else "bias_sum"
        view = ViewRule(kind, parts=mine.companions)
        return replace(match, reason=Reason("with the bias it is `{}`", role), mine_view=view)
    return match


def slot_rows(paged: Export) -> ViewRule:
    """The rows of a cache of blocks that this step wrote."""
    return ViewRule("slots", parts=paged.companions)


def _completed(match: Match, reason: str) -> Match:
    """Each side read with the other tensors of its own that its form needs."""
    views = _with_companions(match.golden), _with_companions(match.mine)
    return replace(match, reason=reason, golden_view=views[0], mine_view=views[1])


def _with_companions(export: Export) -> ViewRule:
    kinds = {"split": "residual", "turned": "turned"}
    return ViewRule(kinds[export.form], parts=export.companions) if export.form in kinds else WHOLE
