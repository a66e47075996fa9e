"""Released results for people."""

import tacita.cli  # noqa: F401
from tacita.programs import (
    dirichlet,
    geometric,
    normal,
)
from tests.programs.surveys import census, people


def test_the_figure_is_the_same_every_time(folder):
    from tacita.programs.show import write_figure

    p = census()
    p.release(p.column("job").posterior(dirichlet(1, 1, 1)), geometric(epsilon=1), name="jobs")
    p.release(p.column("age").clamp(0, 100).posterior(normal(50, 30, record_sd=15)), geometric(epsilon=1), name="age")
    results = p.run(people())
    for name in ("a.svg", "b.svg"):
        write_figure(folder / name, results)
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()
    assert (folder / "a.svg").read_text().count("<svg") == 1
