"""Compares what was heard with the undisturbed answer, and says in which way it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.chaos.heard import Answer, Heard
from tests.chaos.pool import Use

EXACT, LOST, DOUBLED, MISMATCHED = "exact", "lost", "doubled", "mismatched"
LEFT = "left"  # by its client, and right as far as it came
Truth = tuple[Answer, ...]  # of each choice


def of_ids(expected: Sequence[int], got: Sequence[int]) -> str:
    """LOST: a stretch is missing. DOUBLED: a stretch is there again, right behind itself.
    MISMATCHED: anything else.
    """
    expected, got = list(expected), list(got)
    if got == expected:
        return EXACT
    same = common_len(expected, got)
    extra = len(got) - len(expected)
    if extra < 0 and expected[:same] + expected[same - extra :] == got:
        return LOST
    again = got[same : same + extra] == got[max(0, same - extra) : same]
    if extra > 0 and again and got[:same] + got[same + extra :] == expected:
        return DOUBLED
    return MISMATCHED


def common_len(expected: Sequence[int], got: Sequence[int]) -> int:
    """How many first ids are the same."""
    pairs = zip(expected, got, strict=False)
    differences = (at for at, (one, other) in enumerate(pairs) if one != other)
    return next(differences, min(len(expected), len(got)))


def of_choice(expected: Answer, got: Answer) -> str:
    verdict = of_ids(expected.token_ids, got.token_ids)
    if verdict is EXACT and got != expected:
        return MISMATCHED  # text, reason or usage
    return verdict


def of_heard(truth: Truth, heard: Heard, use: Use) -> str:
    """The worst of all choices, and of tries that a gateway's death broke."""
    verdicts = [
        of_ids(truth[nth].token_ids[: len(choice.token_ids)], choice.token_ids)
        for nth, choice in heard.broken
    ]
    if heard.failure:
        verdicts.append(LOST)
    elif heard.finished:
        verdicts += [
            of_choice(expected, choice.answer)
            for expected, choice in zip(truth, heard.choices, strict=True)
        ]
    elif use.leaves_after is None:
        verdicts.append(LOST)
    else:
        for expected, choice in zip(truth, heard.choices, strict=True):
            verdicts.append(of_ids(expected.token_ids[: len(choice.token_ids)], choice.token_ids))
            if not expected.text.startswith(choice.text):
                verdicts.append(MISMATCHED)
        verdicts.append(LEFT)
    order = (MISMATCHED, DOUBLED, LOST, LEFT, EXACT)
    return min(verdicts, key=order.index)


@dataclass
class Judged:
    """How many requests ended in which way, and a line for each that is not right."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def judge(self, truth: Truth, heard: Heard, use: Use) -> None:
        verdict = of_heard(truth, heard, use)
        self.counts[verdict] += 1
        if verdict not in (EXACT, LEFT):
            self.findings.append(
                f"{verdict}: use {use.number}, request {use.asked.number}: {_shown(truth, heard)}"
            )

    @property
    def wrong(self) -> int:
        return sum(self.counts[verdict] for verdict in (LOST, DOUBLED, MISMATCHED))


def _shown(truth: Truth, heard: Heard) -> str:
    """Where the first difference is, and both from shortly before it on."""
    lines = [heard.failure] if heard.failure else []
    for nth, (expected, choice) in enumerate(zip(truth, heard.choices, strict=True)):
        ids, got = list(expected.token_ids), choice.token_ids
        same = common_len(ids, got)
        if choice.finished and choice.answer == expected:
            continue
        lines.append(
            f"choice {nth}: {same} of {len(ids)} ids are the same, then {got[same : same + 6]}"
            f" and not {ids[same : same + 6]}; end {choice.finished and choice.answer.end}"
            f" and not {expected.end}"
        )
        if got == ids:
            lines.append(f"text {choice.text!r} and not {expected.text!r}")
    return "; ".join(lines)
