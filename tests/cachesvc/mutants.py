"""Bugs to plant: each replaces one method of the manager, or of the fake runner, by a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Patch = pytest.MonkeyPatch
Mutant = Callable[[Patch], None]


class Mutants(list[Mutant]):
    """Those of one file."""

    def plant(self, mutant: Mutant) -> Mutant:
        """The decorator that takes one in."""
        self.append(mutant)
        return mutant
