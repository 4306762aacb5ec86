"""A request's story in sentences."""

from __future__ import annotations

from cachesvc.story import Admission, MatchEnd, Preemption, Stories, Story, Wait, WaitCause

_CAUSES = {
    WaitCause.NO_ROW: "every row was taken",
    WaitCause.NO_PAGES: "it lacked {lacking} pages, with one left for each running request",
    WaitCause.NO_BUDGET: "the tokens of a step were used up by requests before it",
    WaitCause.PREEMPTING: "pages were so short that running requests were preempted",
    WaitCause.LONG_PREFILLS: "as many long prompts as are allowed were being computed",
    WaitCause.FIRST_CHOICE: "the first choice of its prompt, {behind}, was not sent yet",
    WaitCause.BEHIND: "it waited behind {behind}",
    WaitCause.NO_RUNNER: "no runner is attached, or its credits are used up",
}


def summary_of(story: Story, stories: Stories, waits: list[Wait]) -> str:
    """All of it, in order, a few sentences."""
    events: list[tuple[int, str]] = [(wait.first_plan_id, _told(wait, stories)) for wait in waits]
    events += [
        (given.plan_id, _told_admission(given, story, stories)) for given in story.admissions
    ]
    events += [(taken.plan_id, _told_preemption(taken, stories)) for taken in story.preemptions]
    if story.end:
        told = f"It ended before plan {story.ended_plan_id}: {story.end}."
        events.append((story.ended_plan_id, told))
    events.sort(key=lambda event: event[0])
    return " ".join(told for _, told in events)


def _told(wait: Wait, stories: Stories) -> str:
    behind = repr(stories.label_of(wait.behind))
    cause = _CAUSES[wait.cause].format(lacking=wait.lacking_pages, behind=behind)
    if wait.cause is WaitCause.NO_RUNNER:
        return f"It waits for a plan to be made: {cause}."
    return f"Plans {wait.first_plan_id} to {wait.last_plan_id} went without it: {cause}."


def _told_admission(given: Admission, story: Story, stories: Stories) -> str:
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
        why = "begins what was never cached"
    where = f"token {miss.token_id} at position {miss.position}"
    return f"{found} with {given.cached_len} tokens cached; {where} {why}."


def _told_preemption(taken: Preemption, stories: Stories) -> str:
    whom = stories.label_of(taken.for_arrival)
    return (
        f"Plan {taken.plan_id} took its row, after {taken.sampled_len} sampled tokens, for "
        f"{whom!r}, which came first: {taken.lacking_pages} pages were lacking."
    )
