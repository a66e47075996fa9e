"""What a program released."""

import pytest

import tacita.cli  # noqa: F401
from tacita.ledger import Ledger
from tacita.programs import dirichlet, geometric, normal
from tacita.programs.results import write_figure
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


def test_the_figure_is_the_same_every_time(folder):
    p = census()
    p.release(p.column("job").posterior(dirichlet(1, 1, 1)), geometric(epsilon=1), name="jobs")
    p.release(p.column("age").clamp(0, 100).posterior(normal(50, 30, record_sd=15)), geometric(epsilon=1), name="age")
    results = p.run(people())
    for name in ("a.svg", "b.svg"):
        write_figure(folder / name, results)
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()
    assert (folder / "a.svg").read_text().count("<svg") == 1
