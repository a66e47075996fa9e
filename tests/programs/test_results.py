"""What a program released."""

import pytest

import tacita.cli  # noqa: F401
from tacita.ledger import Ledger
from tacita.programs import (
    geometric,
)
from tests.programs.surveys import census, people


def test_a_noisy_number_is_one_number():
    p = census()
    p.release(p.column("job").histogram(), geometric(epsilon=5), name="jobs")
    with pytest.raises(ValueError, match="3 numbers"):
        _ = p.run(people())["jobs"].value


def test_results_say_whether_they_were_charged(tmp_path):
    p = census(epsilon=1.0)
    p.release(p.column("smoker").count(), geometric(epsilon=0.5), name="smokers")
    assert "Not charged to any ledger" in str(p.run(people()))
    charged = p.run(people(), ledger=tmp_path / "new.sqlite")
    assert "Not charged" not in str(charged)
    assert repr(charged) == "<Results: smokers>"
    assert repr(charged["smokers"]).startswith("<Noisy: ")
    with Ledger.open(tmp_path / "new.sqlite") as ledger:
        assert ledger.neighbours == "replace_one"
        assert ledger.spent(1e-5).epsilon == 0.5
