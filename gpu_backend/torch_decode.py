"""Where keys and values of decode rows lie in the cache, in groups of rows that plain torch can attend to at once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_GROUP_BYTES = 2 << 20
"""Keys and values of one layer that are gathered at a time on a CPU: what its L2 holds, so that attention finds them
there. Gathering those of 32 rows of a 110M model into fresh memory costs more in page faults than the attention."""


class Group(NamedTuple):
    """Decode rows of similar length, padded to the longest, P tokens; ``valid_GP`` is None where none is padded.

    ``runs_2GKP`` are row numbers in layer 0 of the cache seen as rows of D. Beyond the context of a row they repeat its
    first token: what is masked must still be a number.
    """

    rows_G: Tensor
    runs_2GKP: Tensor
    valid_GP: Tensor | None


class DecodeGroups:
    """The groups of a step, which are the same in every layer, and one buffer for what is gathered of a group."""

    def __init__(self) -> None:
        self._known: tuple[Tensor, Tensor, tuple[int, int], tuple[int, ...], list[Group]] | None = None
        self._buffer = torch.empty(0)

    def of(self, cache_NL2KSD: Tensor, tables_BM: Tensor, contexts_B: Tensor) -> list[Group]:
        """Groups of the rows that have a context, short ones first."""
        versions = (tables_BM._version, contexts_B._version)
        shape = tuple(cache_NL2KSD.shape[1:])
        known = self._known
        if known and known[0] is tables_BM and known[1] is contexts_B and known[2:4] == (versions, shape):
            return known[4]
        lengths: list[int] = contexts_B.tolist()
        groups = []
        for rows in _split(lengths, cache_NL2KSD):
            longest = lengths[rows[-1]]
            rows_G = torch.tensor(rows, device=tables_BM.device)
            positions_P = torch.arange(longest, device=tables_BM.device)
            valid_GP = positions_P < contexts_B[rows_G, None]
            places = torch.where(valid_GP, positions_P, 0)
            padded = valid_GP if lengths[rows[0]] < longest else None
            groups.append(Group(rows_G, runs_of(cache_NL2KSD, tables_BM[rows_G], places), padded))
        self._known = (tables_BM, contexts_B, versions, shape, groups)
        return groups

    def gather(self, cache_NL2KSD: Tensor, layer: int, group: Group) -> Tensor:
        """Keys and values of a group, 2 x G x K x P x D, valid until the next call."""
        _, _, _, kv_heads, block_size, head_dim = cache_NL2KSD.shape
        rows = (group.runs_2GKP + layer * 2 * kv_heads * block_size).view(-1)
        needed, held = rows.numel() * head_dim, self._buffer
        if held.numel() < needed or held.dtype != cache_NL2KSD.dtype or held.device != cache_NL2KSD.device:
            held = self._buffer = cache_NL2KSD.new_empty(needed)
        into = held[:needed].view(-1, head_dim)
        gathered: Tensor = torch.index_select(cache_NL2KSD.view(-1, head_dim), 0, rows, out=into)
        return gathered.view(*group.runs_2GKP.shape, head_dim)


def _split(lengths: list[int], cache_NL2KSD: Tensor) -> list[list[int]]:
    """Rows with a context, in order of it, cut where a group padded to its longest would outgrow its memory."""
    _, _, _, kv_heads, _, head_dim = cache_NL2KSD.shape
    most = _GROUP_BYTES if cache_NL2KSD.device.type == "cpu" else 1 << 62
    most_tokens = most // (2 * kv_heads * head_dim * cache_NL2KSD.itemsize)
    groups: list[list[int]] = []
    for row in sorted((row for row, length in enumerate(lengths) if length), key=lengths.__getitem__):
        if not groups or (len(groups[-1]) + 1) * lengths[row] > most_tokens:
            groups.append([])
        groups[-1].append(row)
    return groups


def runs_of(cache_NL2KSD: Tensor, tables_RM: Tensor, positions_RP: Tensor) -> Tensor:
    """Numbers of the rows of D elements in layer 0 of the cache that hold these positions: 2 x R x K x P, int64."""
    _, layers, _, kv_heads, block_size, _ = cache_NL2KSD.shape
    blocks_RP = tables_RM.gather(1, positions_RP // block_size).to(torch.int64)
    first_RP = blocks_RP * (layers * 2 * kv_heads * block_size) + positions_RP % block_size
    planes_2K = torch.arange(2 * kv_heads, device=tables_RM.device).view(2, 1, kv_heads, 1) * block_size
    return first_RP[None, :, None, :] + planes_2K
