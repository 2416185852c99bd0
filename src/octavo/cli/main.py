"""`octavo`: one thin file a verb, loaded only when its verb is called."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from octavo import __version__
from octavo.cli.console import ensure_standard_streams, quiet_output
from octavo.core.errors import OctavoError

VERBS = {
    "cache": "List, verify or clear the pages that engines keep on disk.",
    "chat": "Talk with a model, one turn after the other.",
    "demo": "Start a server, ask it a question over HTTP.",
    "generate": "Complete a prompt.",
    "perplexity": "Measure how well a model predicts a text.",
    "plan": "Replay recorded load on a model of time; measure what steps cost.",
    "pull": "Fetch a model by name, once.",
    "serve": "Serve a model over HTTP, with the OpenAI API.",
    "settings": "Show every setting and where it came from.",
    "tune": "Measure what suits this machine, and remember it.",
}
"""Each verb is the function `command` of the module of its name in this package."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class LazyGroup(click.Group):
    """Knows the verbs' names and summaries; imports a verb's module when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"octavo.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(verb, VERBS[verb]) for verb in self.list_commands(ctx)])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="octavo %(version)s")
def group() -> None:
    """Run language models on your own machine.

    MODEL is a known name (octavo pull --list), a GGUF file, or a folder with one. The first call
    with a name fetches the model.
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point: errors become one line on standard error and an exit status.

    0 success, 1 an error of the model or the machine, 2 wrong usage, 130 interrupted.
    """
    ensure_standard_streams()
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        # Not group.main(): it turns interrupts and broken pipes into exit status 1.
        with group.make_context("octavo", arguments) as context:
            group.invoke(context)
        sys.stdout.flush()
        return 0
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_ERROR
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        quiet_output()
        return EXIT_INTERRUPTED
    except OctavoError as error:
        _show(str(error))
        return EXIT_ERROR
    except OSError as error:
        # Whoever opens a file speaks of it; what is left is output: onto a full disk, say.
        quiet_output()
        _show(f"input or output failed: {error}")
        return EXIT_ERROR
    except MemoryError:
        _show("out of memory (use a smaller model, or lower memory.kv_bytes)")
        return EXIT_ERROR


def _show(message: str) -> None:
    if os.environ.get("OCTAVO_DEBUG"):
        traceback.print_exc()
    click.echo(f"octavo: {message}", err=True)
