"""What becomes of Q, K and V between their projection and attention."""

from __future__ import annotations

from torch import Tensor

from kernels.reference.kv_store import store_kv
from kernels.reference.rms_norm import rms_norm
from kernels.reference.rotary import rotary


def rotary_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out_locs: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> None:
    """Normalises, if told to, and rotates `q` in place; stores K, treated alike, and V by loc.

    `q` is [T, num_heads, head_dim], `k` and `v` [T, num_kv_heads, head_dim], which stay as they
    are. `cos` and `signed_sin` are the tables of `rotary_tables`, `positions` [T] their rows.
    Caches and `out_locs` as in `store_kv`. `q_norm` and `k_norm` [head_dim], both or neither, are
    the weights of an RMS norm of each head, with `eps` (Henry et al. 2020, arXiv:2010.04245).
    """
    of_token = cos.index_select(0, positions), signed_sin.index_select(0, positions)
    normed_q = q if q_norm is None else rms_norm(q, q_norm, eps)
    normed_k = k if k_norm is None else rms_norm(k, k_norm, eps)
    q.copy_(rotary(normed_q, *of_token))
    store_kv(k_cache, v_cache, rotary(normed_k, *of_token), v, out_locs)
