"""The bytes of ids whose text is no whole character."""

from __future__ import annotations

from tokenizers.pre_tokenizers import ByteLevel

from gateway.byte_run import has_decoder
from gateway.tokenizer import Tokenizer


class TokenBytes:
    """What each id adds to a text, before it is read as UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer.backend
        self._byte_values = tokenizer.byte_values
        is_byte_level = has_decoder(tokenizer.backend, "ByteLevel")
        self._alphabet = _byte_level_alphabet() if is_byte_level else {}

    def of_part(self, token_id: int) -> bytes | None:
        """None for an id that no bytes are known of but those of its text."""
        if (value := self._byte_values.get(token_id)) is not None:
            return bytes([value])
        token = self._backend.id_to_token(token_id)
        if token is None or not self._alphabet.keys() >= set(token):
            return None
        return bytes(self._alphabet[char] for char in token)


def _byte_level_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level token stands for: itself where it is one, the
    others in their order for the bytes that are left.
    """
    chars = sorted(ByteLevel.alphabet())
    own = [ord(char) for char in chars if ord(char) < 256]
    return dict(zip(chars, [*own, *sorted(set(range(256)) - set(own))], strict=True))
