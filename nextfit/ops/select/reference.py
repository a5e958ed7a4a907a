from __future__ import annotations

import torch
from torch import Tensor


def top_k_ascending(scores: Tensor, k: int) -> Tensor:
    """Indices of the k best of each row of scores [rows, n >= k], as a set in ascending order, [rows, k] int64.

    `torch.topk` leaves open which of equal scores it takes; its values are determined. Where the cut goes through
    equal ones, the set is made from them: all above the k-th value, then the first ones equal to it. NaN counts as
    the lowest score.
    """
    scores = torch.nan_to_num(scores, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    values, ids = scores.topk(min(k + 1, scores.shape[-1]), dim=-1)
    last = values[:, k - 1 : k]
    if (values[:, k:] < last).all():
        return ids[:, :k].sort(dim=-1).values
    above, equal = scores > last, scores == last
    missing = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= missing))
    return chosen.nonzero()[:, 1].view(len(scores), k)
