"""Autoregressive decoding; events that end leave. Letters: B batch, B' events still decoding, T particles."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Keep = Callable[[Tensor], Tensor]
"""Moves the rows of a tensor that stay to its front, in place, and returns a view of these: `fill_gaps`."""


def fill_gaps(rows: Tensor, *, gaps: Tensor, movers: Tensor, size: int) -> Tensor:
    """Move the rows `movers` of [B, ...] to `gaps`, int64 [M] each, in place; a view of the first rows, [size, ...]."""
    if gaps.numel():
        rows[gaps] = rows[movers]
    return rows[:size]


def change_tensors(change: Callable[[Tensor], Tensor], record: Any) -> Any:
    """A record, tuple, list or dictionary, to whatever depth, with a change of each tensor in it; None stays."""
    if isinstance(record, Tensor):
        return change(record)
    if isinstance(record, dict):
        return {name: change_tensors(change, value) for name, value in record.items()}
    if isinstance(record, tuple | list):
        parts = [change_tensors(change, part) for part in record]
        return type(record)(*parts) if hasattr(record, "_fields") else parts
    return record


def where(selected: Tensor, size: int) -> Tensor:
    """Indices int64 [size] of the `size` true entries of bool [N], without the wait of `nonzero` on a GPU."""
    return torch.repeat_interleave(selected.long(), output_size=size)


class Decoder(Protocol):
    """The state of the decoding of a batch, by an architecture."""

    def advance(self) -> Tensor:
        """Compute the next decoder state of each event; bool [B'], True = one more particle."""

    def sizes(self, goes_on: Tensor) -> Tensor:
        """Numbers that `emit` needs on the host, int64 [K]; `goes_on`, bool [B'], says which events continue."""

    def compact(self, keep: Keep) -> None:
        """Drop the events that have ended, after `advance`."""

    def emit(self, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Decode one particle of each event, and make it the next input; columns [B', ...] by name.

        `sizes` is what `sizes` returned, on the host.
        """


class DecodedSequence(NamedTuple):
    """What was decoded; T is the largest number of particles."""

    columns: dict[str, Tensor]  # [B, T, ...] of `Decoder.emit`, zeros where an event has ended
    mask: Tensor  # bool [B, T], True = decoded
    truncated: Tensor  # bool [B], True = the largest number was decoded and the event had not ended


def decode(decoder: Decoder, *, batch: int, max_particles: int | Tensor, device: torch.device) -> DecodedSequence:
    """Decode the particles of each of `batch` events, at most `max_particles` of all or int64 [B] of each.

    One GPU synchronisation a step reads the number of events still decoding with all else that the host needs.
    """
    rows = torch.arange(batch, device=device)  # the event of each row of the shrinking batch
    truncated = torch.zeros(batch, dtype=torch.bool, device=device)
    limits = torch.as_tensor(max_particles, device=device).expand(batch)
    steps: list[tuple[Tensor, dict[str, Tensor]]] = []
    for position in itertools.count():
        goes_on, may_go_on = decoder.advance(), limits[rows] > position
        truncated[rows] = goes_on & ~may_go_on
        goes_on = goes_on & may_go_on
        n_rows = goes_on.sum()
        behind = torch.arange(len(rows), device=device) >= n_rows
        counts = torch.stack([n_rows, (goes_on & behind).sum()])
        remaining, n_moved, *sizes = torch.cat([counts, decoder.sizes(goes_on)]).cpu().tolist()
        if remaining == 0 and steps:
            break
        if remaining < len(rows):
            # Each row behind the new end that stays fills the gap of a row that leaves: over a whole decoding no more
            # than one batch is copied.
            gaps, movers = where(~goes_on[:remaining], n_moved), where(goes_on[remaining:], n_moved) + remaining
            keep = partial(fill_gaps, gaps=gaps, movers=movers, size=remaining)
            rows = keep(rows.clone())  # earlier steps keep their rows
            decoder.compact(keep)
        # Behind the compaction: an empty batch then gives the shapes of the columns.
        if remaining == 0:
            break
        steps.append((rows, decoder.emit(sizes)))
    # Without a step the columns of a batch without events give the shapes.
    shapes = steps[0][1] if steps else decoder.emit(sizes)
    columns = {name: value.new_zeros(batch, len(steps), *value.shape[1:]) for name, value in shapes.items()}
    mask = torch.zeros(batch, len(steps), dtype=torch.bool, device=device)
    start = 0
    # One copy for all steps between two compactions, instead of one a step.
    for _, group in itertools.groupby(steps, key=lambda step: id(step[0])):  # steps between which no event ended
        same = list(group)
        events, positions = same[0][0], slice(start, start + len(same))
        mask[events, positions] = True
        for name, column in columns.items():
            column[events, positions] = torch.stack([values[name] for _, values in same], dim=1)
        start = positions.stop
    return DecodedSequence(columns, mask, truncated)
