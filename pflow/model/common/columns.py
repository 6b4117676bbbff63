"""Columns of tables by name."""

from __future__ import annotations

import dataclasses
import functools
from typing import Self, get_type_hints

import torch
from torch import Tensor


@dataclasses.dataclass
class Columns:
    """Groups of columns of a table. A subclass is a dataclass; ``Annotated[Tensor, 3]`` is a group of three columns.

    One group may have the width 0: it has all columns that the others leave.
    """

    @classmethod
    @functools.cache
    def widths(cls) -> tuple[int, ...]:
        """Number of columns of each group."""
        return tuple(hint.__metadata__[0] for hint in get_type_hints(cls, include_extras=True).values())

    @classmethod
    def of(cls, table: Tensor, *, dim: int = -1) -> Self:
        """The columns of a table float [..., F], as views; with `dim` 0 the rows of [F, ...]."""
        widths = cls.widths()
        rest = int(table.shape[dim]) - sum(widths) if 0 in widths else 0
        return cls(*table.split_with_sizes([width or rest for width in widths], dim))

    def table(self) -> Tensor:
        """The table float [..., F]; ValueError names a group of columns that has another width."""
        for (name, values), width in zip(vars(self).items(), self.widths(), strict=True):
            if width and values.shape[-1] != width:
                raise ValueError(f"{type(self).__name__}.{name}: {values.shape[-1]} columns, expected {width}")
        return torch.cat(list(vars(self).values()), dim=-1)
