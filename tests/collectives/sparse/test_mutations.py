"""The planted defects of sparse calls fit the files, and name tests that there are."""

from __future__ import annotations

import pytest

from tests.collectives.sparse.mutations import MUTATIONS
from tests.fuzz.launch import ROOT


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutations_fit(name: str) -> None:
    for patch in MUTATIONS[name].patches:
        assert (ROOT / patch.file).read_text().count(patch.old) == 1
    for path in MUTATIONS[name].tests:
        assert (ROOT / path).exists()
