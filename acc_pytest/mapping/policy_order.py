"""The documented order of policies: what the user says exactly, roles, tables, sequence; hints last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from . import policies
from .match import Match
from .op_mapping_file import type_rules
from .policies import Scope
from .roles.join import RoleJoin
from .tables import Tables
from .user_rules import UserRules


@dataclass(frozen=True, slots=True)
class PolicyOrder:
    """The policies for two trees; where their modules are `unlike` the tables say nothing."""

    user: UserRules
    tables: Tables
    unlike: bool

    def matches(self, scope: Scope, join: RoleJoin) -> Iterator[Match]:
        """Every match of a scope, whose slots it claims."""
        yield from _claimed(scope, self.user.precise(scope, join))
        given = {end for end in scope.taken if end[0] == "mine"}
        for match in join.matches():
            if not match.ends & given:
                scope.taken |= match.ends
                yield match
        if self.user.hints:
            trial = replace(scope, taken=set(scope.taken))
            weak = [match for policy in self._by_tables(trial) for match in _claimed(trial, policy)]
            yield from _claimed(scope, self.user.refined(scope, join, weak))
        for policy in self._by_tables(scope):
            yield from _claimed(scope, policy)
        yield from _claimed(scope, self.user.added(scope, join))

    def _by_tables(self, scope: Scope) -> tuple[Iterator[Match], ...]:
        if self.unlike:
            return ()  # the order of modules that differs says nothing, and the tables are of ATB
        in_layers = type_rules(self.tables.types_in) if scope.layered else []
        exact = type_rules(self.tables.types, exact=True) if scope.layered else []
        return (
            policies.special(scope),
            policies.modules(scope),
            policies.by_types(scope, in_layers, "types"),
            policies.fragments(scope),
            policies.by_types(scope, exact, "types"),
            policies.sequence(scope),
        )


def _claimed(scope: Scope, policy: Iterable[Match]) -> Iterator[Match]:
    """The matches of a policy whose slots are free, claimed one by one."""
    for match in policy:
        if not match.ends & scope.taken:
            scope.taken |= match.ends
            yield match
