"""Options that several verbs share: settings and sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from octavo.core.errors import InvalidRequest
from octavo.core.sampling import SamplingParams
from octavo.core.settings_load import LoadedSettings, explain, load_settings

Function = TypeVar("Function", bound=Callable[..., Any])

CHAT_TEMPERATURE = 0.7


def settings_options(*, explain: bool = True) -> Callable[[Function], Function]:
    """Adds --config (`config`), --set (`assignments`), --explain (`show_settings`)."""

    def decorate(function: Function) -> Function:
        if explain:
            function = click.option(
                "--explain",
                "show_settings",
                is_flag=True,
                help="Print every setting with its source, and stop.",
            )(function)
        function = click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="KEY=VALUE",
            help="Change a setting, e.g. scheduler.token_budget=512; may be repeated.",
        )(function)
        return click.option(
            "--config", type=click.Path(dir_okay=False), help="YAML file with settings."
        )(function)

    return decorate


def load(
    config: str | None, assignments: tuple[str, ...], model: str | None = None
) -> LoadedSettings:
    """Settings from the file, the environment, --set, and the MODEL argument over all of them."""
    overrides = {} if model is None else {"model": model}
    return load_settings(
        file=config, flags=assignments, overrides=overrides, overrides_origin="argument MODEL"
    )


def explained(loaded: LoadedSettings, wanted: bool) -> bool:
    """Print the settings if that is wanted; True if the verb is then done."""
    if wanted:
        click.echo(explain(loaded))
    return wanted


_SAMPLING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("--min-tokens", {"type": int, "default": 0, "help": "No end before so many tokens."}),
    (
        "--temperature",
        {"type": float, "default": CHAT_TEMPERATURE, "help": "0 takes the most likely token."},
    ),
    ("--top-k", {"type": int, "default": 0, "help": "Choose among the k likeliest (0: off)."}),
    ("--top-p", {"type": float, "default": 1.0, "help": "Choose among this much probability."}),
    (
        "--min-p",
        {"type": float, "default": 0.0, "help": "Drop tokens below this share of the likeliest."},
    ),
    ("--seed", {"type": int, "help": "The same seed gives the same answer."}),
    ("--repetition-penalty", {"type": float, "default": 1.0, "help": "1 is off."}),
    ("--presence-penalty", {"type": float, "default": 0.0, "help": "0 is off."}),
    ("--frequency-penalty", {"type": float, "default": 0.0, "help": "0 is off."}),
    (
        "--logit-bias",
        {"multiple": True, "metavar": "ID=VALUE", "help": "Add to a token's logit; repeatable."},
    ),
    ("--stop", {"multiple": True, "help": "End before this text; repeatable."}),
    (
        "--stop-token-id",
        {"multiple": True, "type": int, "help": "End at this token; repeatable."},
    ),
    (
        "--ignore-eos",
        {"is_flag": True, "help": "Go on when the model ends its answer."},
    ),
)


def sampling_options(*, max_tokens: int) -> Callable[[Function], Function]:
    """Adds the options of `sampling_params`."""

    def decorate(function: Function) -> Function:
        for name, options in reversed(_SAMPLING):
            shown = options.get("default") is not None
            function = click.option(name, show_default=shown, **options)(function)
        return click.option(
            "--max-tokens",
            type=int,
            default=max_tokens,
            show_default=True,
            help="Most tokens to answer with; 0 with generate only reads the prompt.",
        )(function)

    return decorate


def sampling_params(
    *,
    logit_bias: tuple[str, ...],
    stop_token_id: tuple[int, ...],
    **options: Any,
) -> SamplingParams:
    """Parameters from the values of `sampling_options` and further fields.

    Raises:
        InvalidRequest: a value is out of range.
    """
    return SamplingParams(
        logit_bias=dict(_bias(text) for text in logit_bias),
        stop_token_ids=stop_token_id,
        **options,
    )


def _bias(text: str) -> tuple[int, float]:
    token, equals, value = text.partition("=")
    try:
        if equals:
            return int(token), float(value)
    except ValueError:
        pass
    raise InvalidRequest(
        f"{text!r} is not ID=VALUE", field="--logit-bias", remedy="write for example 198=-100"
    )
