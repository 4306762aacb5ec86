"""A request's story in sentences."""

from __future__ import annotations

from cachesvc.story import (
    Admission,
    MatchEnd,
    Preemption,
    PreemptionCause,
    Stories,
    Story,
    Wait,
    WaitCause,
)

_CAUSES = {
    WaitCause.NO_ROW: "every row was taken",
    WaitCause.NO_PAGES: "it lacked {lacking} pages, with one left for each running request",
    WaitCause.NO_BUDGET: "the tokens of a step were used up by requests before it",
    WaitCause.PREEMPTING: "pages were so short that running requests were preempted",
    WaitCause.LONG_PREFILLS: "as many long prompts as are allowed were being computed",
    WaitCause.FIRST_CHOICE: "the first choice of its prompt, {behind}, was not sent yet",
    WaitCause.BEHIND: "it waited behind {behind}",
    WaitCause.NO_RUNNER: "no runner was attached",
    WaitCause.SUSPECT: "of requests that a runner may have died of, one is tried at a time",
}

_TAKEN = {
    PreemptionCause.PAGES_SHORT: "{lacking} pages were lacking for {whom}, which came first",
    PreemptionCause.PLAN_REFUSED: "a plan was refused, and every row with it",
    PreemptionCause.MEMORY_LOST: "the runner's memory was another, or another manager's",
    PreemptionCause.BOOKS_HEALED: "page accounting failed, and every row was made anew",
}


def summary_of(story: Story, stories: Stories, waits: list[Wait]) -> str:
    """All of it, in order, a few sentences."""
    events = [(taken.step, _told_preemption(taken, stories)) for taken in story.preemptions]
    events += [(wait.first_step, _told(wait, stories)) for wait in waits]
    events += [(given.step, _told_admission(given, stories)) for given in story.admissions]
    if story.ended is not None:
        told = f"It ended before plan {story.ended.plan_id}: {story.end}."
        events.append((story.ended.step, told))
    events.sort(key=lambda event: event[0])
    return " ".join(told for _, told in events)


def _told(wait: Wait, stories: Stories) -> str:
    behind = repr(stories.label_of(wait.behind))
    cause = _CAUSES[wait.cause].format(lacking=wait.lacking_pages, behind=behind)
    if wait.cause is WaitCause.NO_RUNNER:
        return f"Before plan {wait.first_plan_id} it waited: {cause}."
    return f"Plans {wait.first_plan_id} to {wait.last_plan_id} went without it: {cause}."


def _told_admission(given: Admission, stories: Stories) -> str:
    miss = given.miss
    found = f"Plan {given.plan_id} gave it row {given.table_idx}"
    if miss.end is MatchEnd.WHOLE:
        return f"{found} with {given.cached_len} tokens cached, all that can be."
    if miss.end is MatchEnd.EVICTED:
        whom = stories.label_of(miss.evicted_for)
        why = f"was evicted in plan {miss.evicted_plan_id}" + (f" for {whom!r}" if whom else "")
    elif miss.end is MatchEnd.DIFFERS:
        why = "differs from what is cached"
    else:
        why = "begins what is not cached"
    where = f"token {miss.token_id} at position {miss.position}"
    return f"{found} with {given.cached_len} tokens cached; {where} {why}."


def _told_preemption(taken: Preemption, stories: Stories) -> str:
    cause = _TAKEN[taken.cause].format(
        whom=repr(stories.label_of(taken.for_arrival)), lacking=taken.lacking_pages
    )
    return (
        f"Its row was gone with plan {taken.plan_id}, {taken.sampled_len} tokens sampled: {cause}."
    )
