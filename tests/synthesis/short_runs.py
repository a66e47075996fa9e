"""Short runs of generators, shared by the tests of the package and of its command."""

from click.testing import CliRunner
from typer.main import get_command

from tacita import runs
from tacita.cli import app
from tacita.synthesis.jobs import start
from tacita.synthesis.recipes import Recipe


def recipe(**changes):
    return Recipe.from_dict({"data": {"name": "digits"}, "samples": 60, "seed": 1, "steps": 2, **changes})


def run(folder, *, measure=False, **changes):
    return start(recipe(**changes), folder).run(quality=measure)


def tacita(*words):
    return CliRunner().invoke(get_command(app), [str(word) for word in words])


def edit(folder, name, **changes):
    """Change a JSON file of a run by hand; dotted names reach inside."""
    document = runs.read_json(folder, name)
    for path, value in changes.items():
        *where, last = path.split("__")
        part = document
        for step in where:
            part = part[step]
        part[last] = value
    runs.write_json(folder, name, document)


GAN = {"generator": "private-wgan", "noise_multiplier": 1.5, "steps": 4, "panel": 8, "batch_size": 64}
CSV = "age,job,happy\n" + "".join(f"{20 + i % 50},{'ab'[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(400))
TOML = """
epsilon = 2.0
samples = 50
nominal_size = 400
steps = 5
[data]
file = "people.csv"
target = "happy"
[data.columns.age]
type = "real"
low = 0
high = 100
whole = true
[data.columns.job]
type = "category"
values = ["a", "b", "c"]
[data.columns.happy]
type = "bool"
"""
UNMEASURED = "measuring: it ends here, as these records do not allow more"
