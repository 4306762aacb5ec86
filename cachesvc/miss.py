"""Why a match in the prefix tree ends where it does."""

from __future__ import annotations

from cachesvc.eviction_log import EvictionLog
from cachesvc.prefix_node import ID_BYTES, Match, first_difference
from cachesvc.story import MatchEnd, Miss


def miss_of(ids: bytes, match: Match, page_size: int, evictions: EvictionLog) -> Miss:
    """Why no more of `ids`, int32 in bytes, matched. `match` was made just now, and asked for all
    full pages but for one token.
    """
    position = match.num_pages * page_size
    page_ids = ids[position * ID_BYTES : (position + page_size) * ID_BYTES]
    if position + page_size >= len(ids) // ID_BYTES:
        return Miss(MatchEnd.WHOLE, position, _token(page_ids, 0))
    evicted = evictions.find(match, page_ids)
    if evicted is not None:
        end = MatchEnd.EVICTED
        return Miss(end, position, _token(page_ids, 0), evicted.plan_id, evicted.arrival)
    if match.partial is None:
        return Miss(MatchEnd.NEVER_CACHED, position, _token(page_ids, 0))
    at = match.partial_pages * len(page_ids)
    nth = first_difference(match.partial.ids[at : at + len(page_ids)], page_ids)
    return Miss(MatchEnd.DIFFERS, position + nth, _token(page_ids, nth))


def _token(ids: bytes, nth: int) -> int:
    return int.from_bytes(ids[nth * ID_BYTES : (nth + 1) * ID_BYTES], "little", signed=True)
