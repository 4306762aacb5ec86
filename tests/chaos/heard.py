"""What a client hears of one request, over all of its tries."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from pagewire.v1 import inference_pb2 as pb


class SeamError(Exception):
    """What came after a lost gateway does not go on where the client was."""


@dataclass(frozen=True)
class Answer:
    """One choice, whole. `cached_tokens` is no part of it: it depends on what ran before."""

    text: str
    token_ids: tuple[int, ...]
    end: str  # reason, and what matched
    prompt_tokens: int
    completion_tokens: int


@dataclass
class HeardChoice:
    """As far as it came. `arrivals_s` has the wall clock of each token, seconds."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    arrivals_s: list[float] = field(default_factory=list)
    finished: pb.Finished | None = None
    next_char: int = 0  # where in the text the next delta begins

    @property
    def answer(self) -> Answer:
        assert self.finished is not None
        matched = self.finished.WhichOneof("matched")
        return Answer(
            self.text,
            tuple(self.token_ids),
            f"{self.finished.reason} {matched} {matched and getattr(self.finished, matched)}",
            self.finished.usage.prompt_tokens,
            self.finished.usage.completion_tokens,
        )


class Heard:
    """Each of `num_choices` choices; `broken` are choices of tries that had to begin anew."""

    def __init__(self, num_choices: int) -> None:
        self.choices = [HeardChoice() for _ in range(num_choices)]
        self.broken: list[tuple[int, HeardChoice]] = []
        self.failure = ""  # why it has no end: an error, or silence
        self.ended_s: float | None = None
        self.started = False  # in this try

    @property
    def num_tokens(self) -> int:
        return sum(len(choice.token_ids) for choice in self.choices)

    @property
    def finished(self) -> bool:
        return all(choice.finished for choice in self.choices)

    def begin_try(self) -> list[int]:
        """The ids to resume with. Several choices cannot be resumed: they begin anew."""
        self.started = False
        if len(self.choices) == 1:
            return self.choices[0].token_ids
        self.broken += [pair for pair in enumerate(self.choices) if pair[1].token_ids]
        self.choices = [HeardChoice(arrivals_s=choice.arrivals_s) for choice in self.choices]
        return []

    def take(self, response: pb.GenerateResponse) -> None:
        """Errors: SeamError."""
        match response.WhichOneof("event"):
            case "started":
                self._take_started(response.started.resumed_text)
            case "delta":
                self._take_delta(response.delta)
            case "finished":
                choice = self.choices[response.finished.choice]
                if choice.finished is not None:
                    raise SeamError("a choice ended twice")
                choice.finished = response.finished

    def _take_started(self, resumed_text: str) -> None:
        if self.started:
            raise SeamError("started twice")
        self.started = True
        if not self.choices[0].text.startswith(resumed_text):
            raise SeamError(f"resumed with {resumed_text!r} after {self.choices[0].text!r}")
        self.choices[0].next_char = len(resumed_text)

    def _take_delta(self, delta: pb.Delta) -> None:
        choice = self.choices[delta.choice]
        held = choice.text[choice.next_char :]
        if not (delta.text.startswith(held) or held.startswith(delta.text)):
            raise SeamError(f"{delta.text!r} where {held!r} came before")
        choice.text += delta.text[len(held) :]
        choice.next_char += len(delta.text)
        choice.token_ids += delta.token_ids
        choice.arrivals_s += [time.time()] * len(delta.token_ids)

    def went_on_after(self, moment_s: float) -> bool:
        """Whether it ended, or every choice had a token or its end since."""
        if self.ended_s is not None:
            return True
        return all(
            choice.finished or (choice.arrivals_s and choice.arrivals_s[-1] > moment_s)
            for choice in self.choices
        )

    def first_token_after(self, moment_s: float) -> float | None:
        later = [at for choice in self.choices for at in choice.arrivals_s if at > moment_s]
        return min(later, default=None)
