"""Text to token ids: the model's tokenizer and chat template, as its directory holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from gateway.byte_run import byte_values
from gateway.token_ids import end_token_ids_of, vocab_size_of
from servicekit.errors import InvalidArgument, Reason, SetupError
from servicekit.model_dir import model_name, read_config, read_generation_config
from servicekit.quoting import shortened

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Any of these is enough for transformers to build a fast tokenizer.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
MAX_WORDS_CHARS = 400  # of a template's own words: some quote the messages


class ChatMessage(NamedTuple):
    """One turn of a chat; a plain (role, content) pair serves as well."""

    role: str
    content: str
    more: Mapping[str, Any] = {}  # further members for the template, as tool_calls


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of one model. Immutable, and safe to call from several threads at once.

    `special_ids` are the ids that a decode with skip_special_tokens leaves out. `end_token_ids` end
    a generation: the union of what config.json, generation_config.json and the tokenizer say.
    `vocab_size` is the model's, which may exceed the tokenizer's; an id that the tokenizer does not
    know has no text. `byte_values` are the bytes that the byte tokens of a byte-fallback tokenizer
    stand for; others have none.
    """

    model_name: str
    backend: tokenizers.Tokenizer
    special_ids: frozenset[int]
    byte_values: Mapping[int, int]
    end_token_ids: frozenset[int]
    vocab_size: int
    bos_token_id: int | None
    adds_bos: bool
    template_owner: PreTrainedTokenizerFast

    @classmethod
    def load(cls, model_dir: Path) -> Tokenizer:
        """Loads from a local directory, never from the network and never running code that lies in
        it.

        SetupError names the file that is missing or cannot be used.
        """
        config = read_config(model_dir)
        generation_config = read_generation_config(model_dir)
        fast = _load_fast(model_dir)
        backend = fast.backend_tokenizer
        # A tokenizer.json may carry the truncation and padding of its training.
        backend.no_truncation()
        backend.no_padding()
        bos_token_id = fast.bos_token_id
        return cls(
            model_name=model_name(model_dir),
            backend=backend,
            special_ids=frozenset(
                token_id
                for token_id, token in backend.get_added_tokens_decoder().items()
                if token.special
            ),
            byte_values=byte_values(backend),
            end_token_ids=end_token_ids_of(config, generation_config, fast.eos_token_id, model_dir),
            vocab_size=vocab_size_of(config, model_dir),
            bos_token_id=bos_token_id,
            adds_bos=bos_token_id is not None and backend.encode("").ids[:1] == [bos_token_id],
            template_owner=fast,
        )

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a raw prompt, with what the tokenizer adds by itself, BOS first where it
        adds one.

        A text that itself starts with the BOS string gets exactly one BOS, not a second one: the
        text's own stays.
        """
        # A batch of one: unlike `encode`, it lets other threads run meanwhile.
        (encoded,) = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.ids
        doubled = ids[:2] == [self.bos_token_id] * 2
        return ids[1:] if self.adds_bos and add_special_tokens and doubled else ids

    def encode_chat(
        self,
        messages: Sequence[ChatMessage | tuple[str, str]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_special_tokens: bool = False,
    ) -> list[int]:
        """Token ids of a chat as the model's template renders it, up to where the assistant's
        answer starts.

        The template alone decides about BOS and other special tokens: none is added unless asked
        for. InvalidArgument with CHAT_TEMPLATE when the model has no template or the template
        refuses the messages, with its own words; with EMPTY_PROMPT when there is no message.
        """
        rendered = self.render_chat(messages, tools=tools)
        return self.encode(rendered, add_special_tokens=add_special_tokens)

    def render_chat(
        self,
        messages: Sequence[ChatMessage | tuple[str, str]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The text that `encode_chat` encodes; the same errors.

        InvalidArgument with CHAT_TEMPLATE also when the template would leave `tools` out.
        """
        if not messages:
            raise InvalidArgument(
                Reason.EMPTY_PROMPT,
                "messages is empty: send at least one message",
                field="messages",
            )
        if not self.template_owner.chat_template:
            raise InvalidArgument(
                Reason.CHAT_TEMPLATE,
                f"{self.model_name} has no chat template; send a raw prompt, not chat messages",
                field="messages",
            )
        turns = [_turn(ChatMessage(*message)) for message in messages]
        rendered = self._rendered(turns, tools)
        if tools and rendered == self._without_tools(turns):
            raise InvalidArgument(
                Reason.CHAT_TEMPLATE,
                f"the chat template of {self.model_name} has no place for tools; leave them out",
                field="tools",
            )
        return rendered

    def _without_tools(self, turns: list[dict[str, Any]]) -> str | None:
        """None: the template cannot do without them."""
        try:
            return self._rendered(turns, ())
        except InvalidArgument:
            return None

    def _rendered(self, turns: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
        try:
            rendered = self.template_owner.apply_chat_template(
                turns,
                tools=[dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is a program of the model's: it may raise anything
            raise InvalidArgument(
                Reason.CHAT_TEMPLATE,
                f"the chat template of {self.model_name} refused the messages: "
                f"{shortened(str(error), MAX_WORDS_CHARS) or type(error).__name__}",
                field="messages",
            ) from error
        return str(rendered)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of ids that are all there. For text that still grows see `Detokenizer`."""
        (text,) = self.backend.decode_batch(
            [list(token_ids)], skip_special_tokens=skip_special_tokens
        )
        return str(text)


def _turn(message: ChatMessage) -> dict[str, Any]:
    return {"role": message.role, "content": message.content, **message.more}


def _load_fast(model_dir: Path) -> PreTrainedTokenizerFast:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not any((model_dir / name).is_file() for name in TOKENIZER_FILES):
        raise SetupError(f"the model directory {model_dir} has no tokenizer.json")
    try:
        loaded: Any = AutoTokenizer.from_pretrained(
            model_dir, local_files_only=True, trust_remote_code=False
        )
    except (
        Exception
    ) as error:  # transformers and tokenizers raise many kinds, down to a bare Exception
        raise SetupError(f"the tokenizer in {model_dir} cannot be loaded: {error}") from error
    if not isinstance(loaded, PreTrainedTokenizerFast):
        raise SetupError(
            f"the tokenizer in {model_dir} has no tokenizer.json that the tokenizers library reads"
        )
    return loaded
