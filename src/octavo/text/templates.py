"""Chat templates of model files, run with a limit on work, and the token ids they lead to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import minijinja

from octavo.core.errors import ModelFileError, TemplateError
from octavo.text.literals import Mask, Masker, strings_in
from octavo.text.messages import Message, fold_system, normalise_messages, plain_object, plain_value
from octavo.text.tokenizer import Tokenizer

TEMPLATE_KEY: Final = "tokenizer.chat_template"
MAX_TEMPLATE_CHARACTERS: Final = 1_000_000
MAX_RENDERED_CHARACTERS: Final = 32_000_000
_BASE_FUEL = 2_000_000
_FUEL_PER_CHARACTER = 32
_GENERATION_TAG = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")
_PROBE = "octavo-probe"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as text; in `masked`, of equal length, no character of the caller's can open a
    control token, so that control tokens are looked for there."""

    text: str
    masked: str


class ChatTemplate:
    """The chat template of one model (Jinja syntax, with the settings of the transformers library).

    `source` is None for a model without one; rendering then fails with a remedy. `now` is the clock
    of `strftime_now`. Not affected by what earlier conversations did; safe to share.

    Raises:
        ModelFileError: the template is too large or does not parse.
    """

    def __init__(
        self,
        source: str | None,
        *,
        control_names: Collection[str] = (),
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] = datetime.now,
    ):
        self.source = source
        self._constants = {"bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        self._knows_system: bool | None = None
        if source is None:
            return
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise ModelFileError(
                "the chat template is too large",
                field=TEMPLATE_KEY,
                expected=f"at most {MAX_TEMPLATE_CHARACTERS} characters",
                found=str(len(source)),
            )
        # transformers marks the model's own turns with a tag that prints nothing.
        self._source = _GENERATION_TAG.sub(
            lambda tag: f"{{%{tag[1]} {'endif' if tag[2] else 'if true'} {tag[3]}%}}", source
        )
        self._masker = Masker(control_names, source)
        try:
            self._environment(_BASE_FUEL).add_template("chat", self._source)
        except minijinja.TemplateError as error:
            raise ModelFileError(
                f"the chat template does not parse: {_reason(error)}",
                field=TEMPLATE_KEY,
                remedy="the file is damaged; give another template or use completions",
            ) from None

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, object],
        tokenizer: Tokenizer,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> ChatTemplate:
        """The template of a GGUF file, or one without source where the file has none."""
        tokens = tokenizer.vocabulary.tokens
        bos, eos = tokenizer.bos_id, tokenizer.vocabulary.eos_id
        return cls(
            template_source(metadata),
            control_names=tokenizer.control_ids.keys(),
            bos_token="" if bos is None else tokens[bos],
            eos_token="" if eos is None else tokens[eos],
            now=now,
        )

    def render(
        self,
        messages: object,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> Rendered:
        """The conversation as the model was trained to read it.

        `variables` are further names the template may read. System messages are folded into the
        user turn that follows where the template knows no system role.

        Raises:
            TemplateError: no template, a message at fault (`message_index`), or too much work.
            InvalidRequest: a tool or variable is not made of JSON values.
        """
        if self.source is None:
            raise TemplateError(
                "this model has no chat template",
                field="messages",
                remedy="use /v1/completions, or `octavo generate`, with a plain prompt",
            )
        conversation = normalise_messages(messages)
        extra = plain_object(variables or {}, "chat_template_kwargs")
        offered = plain_value(list(tools), "tools") if tools else None
        if "developer" not in self.source:
            conversation = [
                {**message, "role": "system"} if message["role"] == "developer" else message
                for message in conversation
            ]
        if any(message["role"] == "system" for message in conversation):
            conversation = conversation if self._renders_system() else fold_system(conversation)
        mask = self._masker.mask([conversation, offered, extra])
        try:
            masked = self._run(conversation, offered, extra, add_generation_prompt, mask)
        except _Refusal as refusal:
            index = self._message_at_fault(conversation, offered, extra, mask)
            raise TemplateError(str(refusal), message_index=index, remedy=refusal.remedy) from None
        return Rendered(mask.reveal(masked), masked)

    def _run(
        self,
        messages: Sequence[Message],
        tools: object,
        variables: Mapping[str, object],
        add_generation_prompt: bool,
        mask: Mask,
    ) -> str:
        given = [messages, tools, variables]
        size = sum(map(len, strings_in(given))) + len(self._source)
        environment = self._environment(_BASE_FUEL + _FUEL_PER_CHARACTER * size)
        context: dict[str, object] = {
            **self._constants,
            **mask.apply_to_object(variables),
            "messages": [
                {**mask.apply_to_object(message), "role": message["role"]} for message in messages
            ],
            "tools": mask.apply(tools),
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = environment.render_str(self._source, **context)
        except _Refusal:
            raise
        except (minijinja.TemplateError, ValueError, TypeError, RecursionError) as error:
            raise _refusal(error) from None
        if len(text) > MAX_RENDERED_CHARACTERS:
            raise _Refusal("the template printed too much text", "send a shorter conversation")
        return text

    def _environment(self, fuel: int) -> minijinja.Environment:
        return minijinja.Environment(
            fuel=fuel,
            trim_blocks=True,
            lstrip_blocks=True,
            filters={"tojson": _to_json},
            globals={"raise_exception": _raise_exception, "strftime_now": self._strftime_now},
        )

    def _strftime_now(self, pattern: str) -> str:
        return self._now().strftime(pattern)

    def _renders_system(self) -> bool:
        """Whether a system message shows in the output, found by trying once."""
        if self._knows_system is None:
            probe: list[Message] = [
                {"role": "system", "content": _PROBE},
                {"role": "user", "content": "?"},
            ]
            try:
                self._knows_system = _PROBE in self._run(probe, None, {}, True, Mask(str, {}))
            except _Refusal:
                self._knows_system = False
        return self._knows_system

    def _message_at_fault(
        self,
        messages: Sequence[Message],
        tools: object,
        variables: Mapping[str, object],
        mask: Mask,
    ) -> int:
        """The message with which the conversation stops being acceptable, by bisection."""
        accepted, refused = 0, len(messages)
        while refused - accepted > 1:
            middle = (accepted + refused) // 2
            try:
                self._run(messages[:middle], tools, variables, False, mask)
                accepted = middle
            except _Refusal:
                refused = middle
        return refused - 1


def template_source(metadata: Mapping[str, object]) -> str | None:
    """The template's text in a GGUF file; None where there is none.

    Raises:
        ModelFileError: it is no text.
    """
    source = metadata.get(TEMPLATE_KEY)
    if source is not None and not isinstance(source, str):
        found = type(source).__name__
        raise ModelFileError("wrong type", field=TEMPLATE_KEY, expected="text", found=found)
    return source or None


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: object,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
) -> list[int]:
    """Prompt ids of a conversation, with one BOS where the file says so.

    The rendered text is encoded as a whole, control tokens taken only where the template opened
    them: borders between template and caller change no merge.
    """
    rendered = template.render(
        messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
    )
    controls = tokenizer.find_controls(rendered.masked)
    return tokenizer.with_bos(tokenizer.encode_spans(rendered.text, controls))


class _Refusal(Exception):
    """The template could not or would not render."""

    def __init__(self, message: str, remedy: str | None = None):
        super().__init__(message)
        self.remedy = remedy


def _raise_exception(message: object = "") -> str:
    raise _Refusal(f"the chat template refuses: {str(message)[:500]}")


def _refusal(error: Exception) -> _Refusal:
    if isinstance(error, minijinja.TemplateError) and error.kind == "OutOfFuel":
        return _Refusal("the chat template did more work than allowed", "use plain completions")
    if isinstance(error, RecursionError):
        return _Refusal("the chat template nests too deep")
    return _Refusal(f"the chat template fails on this conversation: {_reason(error)}")


def _reason(error: Exception) -> str:
    if isinstance(error, minijinja.TemplateError):
        place = f" (line {error.line})" if error.line else ""
        return f"{error.detail or error.message}{place}"[:500]
    return str(error)[:500]


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`tojson` as chat templates expect it: without Jinja's HTML escapes, other letters kept."""
    between = None if separators is None else (separators[0], separators[1])
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=between,
        sort_keys=sort_keys,
    )
