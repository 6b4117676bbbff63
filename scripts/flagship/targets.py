"""The targets of the flagship: what is asked of each sample, and whether it is met."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from flagship.measure import LIMIT_NO_TRACKS
from pflow.metrics.evaluation import CLASSICAL, LIMIT
from pflow.metrics.number import Number

__all__ = ["PANDORA", "ROWS", "Goal", "Row", "Verdict", "judge", "number", "verdicts"]

PANDORA = None
"""Bound of a goal that is Pandora's own figure on the same events."""


@dataclasses.dataclass(frozen=True)
class Goal:
    """At most or at least a value, or better than Pandora.

    Parameters
    ----------
    at_most
        Whether less is better.
    bound
        In the unit of its row; `PANDORA` for Pandora's figure.
    """

    at_most: bool
    bound: float | None = PANDORA

    def text(self) -> str:
        """In words."""
        if self.bound is None:
            return "better than Pandora"
        return f"at {'most' if self.at_most else 'least'} {self.bound:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One quantity of one sample.

    Parameters
    ----------
    sample, title
        Of the row; the title names the unit.
    key
        Where the number is in a line of the results.
    factor
        From the results' unit to the row's.
    paper
        What the first paper reports, on its own samples.
    goals
        All must be met; none: reported without a target.
    """

    sample: str
    title: str
    key: str
    factor: float = 100.0
    paper: str = "-"
    goals: tuple[Goal, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """A row with its numbers, in the unit of the row.

    Parameters
    ----------
    met
        None without a target or without a number.
    within_error
        Whether the other answer lies within the 68.3% intervals.
    """

    row: Row
    model: str
    ours: Number
    classical: Number
    limit: Number
    met: bool | None
    within_error: bool


LESS, MORE = Goal(at_most=True), Goal(at_most=False)
JETS = (("genkt_r04", "kt R = 0.4"), ("genkt_r07", "kt R = 0.7"), ("durham_2", "Durham, two"))


def _particles(sample: str, *, better: bool, class_goals: tuple[Goal, ...] = ()) -> tuple[Row, ...]:
    return (
        Row(
            sample=sample,
            title="energy-weighted efficiency [%]",
            key="energy_weighted_efficiency",
            goals=(MORE,) if better else (),
        ),
        Row(
            sample=sample,
            title="fake energy fraction [%]",
            key="fake_energy_fraction",
            goals=(LESS,) if better else (),
        ),
        Row(sample=sample, title="class right, of matched [%]", key="pdg.class_accuracy", goals=class_goals),
    )


ROWS = (
    Row(
        sample="gamma1",
        title="mean \\|dE\\|/E [%]",
        key="energy.mean_abs_rel_error",
        paper="5",
        goals=(Goal(at_most=True, bound=3.5),),
    ),
    Row(sample="gamma1", title="energy resolution_68 / median [%]", key="energy.resolution_68_over_median"),
    Row(
        sample="gamma1",
        title="angle, mean [deg]",
        key="angle.mean_deg",
        factor=1.0,
        paper="2.98",
        goals=(Goal(at_most=True, bound=0.02),),
    ),
    Row(
        sample="gamma1",
        title="angle, mean, no track in the event [deg]",
        key="extra.no_track.angle_mean_deg",
        factor=1.0,
    ),
    Row(sample="gamma1", title="angle, median [deg]", key="angle.median_deg", factor=1.0),
    Row(
        sample="gamma1",
        title="exactly one particle [%]",
        key="count.exact_fraction",
        goals=(Goal(at_most=False, bound=99.5),),
    ),
    Row(
        sample="gammasep",
        title="one against two [%]",
        key="extra.separation.separated",
        paper="99.6 (an easier sample)",
        goals=(Goal(at_most=False, bound=98.0),),
    ),
    Row(
        sample="gammasep",
        title="one against two, pairs above 30 mrad [%]",
        key="extra.separation.separated_above",
        goals=(Goal(at_most=False, bound=99.5),),
    ),
    Row(
        sample="single",
        title="class right, of matched above 2 GeV [%]",
        key="extra.class_right.above_2_gev.of_matched",
        goals=(Goal(at_most=False, bound=95.0),),
    ),
    Row(
        sample="single",
        title="class right, of all above 2 GeV [%]",
        key="extra.class_right.above_2_gev.of_targets",
    ),
    Row(sample="single", title="class right, of matched [%]", key="extra.class_right.all.of_matched"),
    *_particles("multi", better=True, class_goals=(MORE, Goal(at_most=False, bound=95.0))),
    *_particles("zqq", better=True, class_goals=(MORE,)),
    Row(
        sample="zqq",
        title="visible energy, resolution_68 / median [%]",
        key="event.visible_energy.resolution_68_over_median",
        goals=(LESS,),
    ),
    *(
        Row(
            sample="zqq",
            title=f"jets ({title}), IQR / median [%]",
            key=f"jets.{name}.iqr_over_median",
            goals=(LESS,),
        )
        for name, title in JETS
    ),
    *_particles("tau10", better=False),
)
"""In the order of the table."""


def number(tree: dict[str, Any] | None, key: str) -> Number:
    """A number with its interval from the plain data of a line; undefined where there is none."""
    *path, name = key.split(".")
    for step in path:
        tree = (tree or {}).get(step)
    value = (tree or {}).get(name)
    if tree is None or value is None:
        return Number.undefined()
    low, high = (math.nan if end is None else end for end in tree[f"{name}_interval"])
    return Number(value, low, high)


def judge(goals: tuple[Goal, ...], ours: Number, classical: Number) -> tuple[bool | None, bool]:
    """Whether all goals are met, and whether the interval (for Pandora both intervals) leaves that open."""
    met, is_open = [], []
    for goal in goals:
        bound = classical if goal.bound is None else Number(goal.bound, goal.bound, goal.bound)
        if math.isnan(ours.value) or math.isnan(bound.value):
            return None, False
        if goal.bound is None:
            met.append(ours.value < bound.value if goal.at_most else ours.value > bound.value)
        else:
            met.append(ours.value <= bound.value if goal.at_most else ours.value >= bound.value)
        is_open.append(ours.low <= bound.high and bound.low <= ours.high)
    if not met:
        return None, False
    # A goal that is missed clearly settles the answer, whatever is open about the others.
    deciding = is_open if all(met) else [o for o, m in zip(is_open, met, strict=True) if not m]
    return all(met), any(deciding) if all(met) else all(deciding)


def verdicts(results: dict[str, Any]) -> list[Verdict]:
    """Every row for every model that reconstructed its sample; a model without tracks beside the limit without."""
    found = []
    for row in ROWS:
        sample = results["samples"].get(row.sample)
        for model in sample["models"] if sample else ():
            limit = LIMIT if results["models"][model]["reads_tracks"] else LIMIT_NO_TRACKS
            ours, classical, perfect = (
                number(sample["lines"].get(line), row.key) * row.factor for line in (model, CLASSICAL, limit)
            )
            met, within = judge(row.goals, ours, classical)
            found.append(
                Verdict(
                    row=row,
                    model=model,
                    ours=ours,
                    classical=classical,
                    limit=perfect,
                    met=met,
                    within_error=within,
                )
            )
    return found
