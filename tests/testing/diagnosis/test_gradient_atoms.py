"""Statements about the token of a gradient and the token of the value."""

import numpy as np
import pytest

from linkern.testing.diagnosis.index_sets.gradient_atoms import value_atoms

WRITTEN, SOURCE = (x.ravel() for x in np.meshgrid(np.arange(0, 90, 7), np.arange(90)))
KNOWN = {
    "source": SOURCE,
    "written": WRITTEN,
    "end of source": np.full(SOURCE.shape, 90),
}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (SOURCE // 16 != WRITTEN // 16, "values across edges of chunks of 16"),
        (SOURCE // 10 == WRITTEN // 10, "values inside chunks of 10"),
        (SOURCE == WRITTEN, "the token of the value"),
        (SOURCE > WRITTEN, "tokens after that of the value"),
    ],
)
def test_a_planted_set_has_an_atom_that_holds_of_no_other_entry(
    wrong: np.ndarray, text: str
) -> None:
    atoms = [atom for _, atom in value_atoms(KNOWN, np.where(wrong, -8.0, 1.0))]
    named = {atom.text: atom for atom in atoms}
    assert np.array_equal(named[text].holds(KNOWN, len(wrong)), wrong)


def test_maps_without_a_token_of_the_value_have_no_such_atoms() -> None:
    known = {name: x for name, x in KNOWN.items() if name != "written"}
    assert not [*value_atoms(known, np.ones(len(SOURCE)))]
