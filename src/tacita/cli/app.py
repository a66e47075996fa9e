"""The `tacita` command itself, and what its subcommands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from click.core import ParameterSource

from tacita._check import RENAMED
from tacita._progress import Progress, ProgressBar, quiet
from tacita._version import __version__

app = typer.Typer(
    name="tacita",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

DELTA = Annotated[float, typer.Option(help="Total failure probability, everything included.")]
SEED = Annotated[
    int | None, typer.Option(min=0, max=2**62, help="For a run that can be repeated; marked as not secure.")
]
RUN_DIR = Annotated[Path | None, typer.Option(help="A new folder for the run; runs/NAME-1 and so on unless given.")]
TARGET = Annotated[
    str | None,
    typer.Option(
        metavar="NAME=NUMBERS",
        help="What an attacker may achieve, instead of epsilon: attack_success=0.55, tpr=0.02,0.01 (share found, false "
        "alarms), secret=0.10,0.15 (guessed without and with a person) or mu=0.5,1e-5.",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def main() -> None:
    """Run the command; bad input ends with one line on standard error and exit code 2."""
    import tacita.cli  # noqa: F401  # its modules add their commands

    try:
        code = app(standalone_mode=False)
    except click.NoSuchOption as error:
        code = _complain(_new_option(error) or error.format_message())
    except click.ClickException as error:
        code = _complain(error.format_message())
    except click.Abort:
        print("tacita: interrupted", file=sys.stderr)
        code = 130
    except OSError as error:
        about = error.filename2 or error.filename
        code = _complain(f"{str(about)!r}: {error.strerror}." if about and error.strerror else str(error))
    except (ValueError, TypeError, ImportError, MemoryError) as error:
        code = _complain(str(error) or type(error).__name__)
    sys.exit(code if isinstance(code, int) else 0)


def _new_option(error: click.NoSuchOption) -> str | None:
    """Return what an option under its old name is called now, if this command has it."""
    new = RENAMED.get(error.option_name.lstrip("-").replace("-", "_"))
    for option in error.ctx.command.params if error.ctx else ():
        if isinstance(option, click.Option) and new == option.name:
            return f"{error.option_name} is called {option.opts[0]} now: {option.help}"
    return None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacita {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Data-aware privacy for machine learning: what a model leaks about anyone, and about typical people."""


def busy(what: str, *, quiet: bool) -> AbstractContextManager[object]:
    """Return a spinner on a terminal; nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"{what} …")


def drawing(as_json: bool, detail: Callable[[], str] | None = None) -> AbstractContextManager[Progress]:
    """Return what draws progress; with --json nothing does."""
    return nullcontext(quiet) if as_json else ProgressBar(detail)


def new_run(run_dir: Path | None, stem: str) -> Path:
    """Return where a new run goes: `--run-dir`, or runs/STEM-1 and so on.

    A place that cannot hold one is refused before the work.
    """
    from tacita import runs

    run = runs.fresh_name("runs", stem) if run_dir is None else run_dir
    try:
        nearest = next(path for path in (run.absolute(), *run.absolute().parents) if path.exists())
        usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
        taken = nearest == run.absolute() and usable and any(run.iterdir())
    except PermissionError:
        usable, taken, nearest = False, False, run
    if taken or not usable:
        why = "is not empty" if taken else "is not a folder that may be written to"
        raise ValueError(f"--run-dir {str(run)!r} cannot hold a run: {str(nearest)!r} {why}.")
    return run


def tell_finished(run: Path, *kinds: str) -> None:
    """Refuse a run that another command resumes, and say on standard error that it is finished, if it is."""
    from tacita.cli.kinds import require_kind
    from tacita.runs import Run

    require_kind(run, *kinds)
    said = Run(run).finished
    if said is not None:
        print(f"tacita: {said}", file=sys.stderr)


def refuse_ignored(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options that were typed and would be ignored."""
    typed = [name for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if typed:
        options = ", ".join("--" + name.replace("_", "-") for name in typed)
        raise ValueError(f"{why}: leave out {options}.")


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def _complain(message: str) -> int:
    print(f"tacita: {' '.join(message.split())}", file=sys.stderr)
    return 2
