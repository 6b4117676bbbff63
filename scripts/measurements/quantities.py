"""The samples, the quantities of the main table, and the targets that they are held to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

from pflow.metrics.stats import Number

ROLES = ("photon", "general")
"""The shipped models by their purpose; also their names in the results."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """Files NAME_train.root, NAME_val.root and NAME_test.root, the models that reconstruct them, and the truth rule."""

    name: str
    roles: tuple[str, ...] = ("general",)
    rule: str = "stable"


SAMPLES = (
    Sample("gamma1", roles=ROLES),
    Sample("gammasep", roles=ROLES),
    Sample("single"),
    Sample("multi"),
    Sample("zqq"),
    Sample("zh"),
    Sample("tau10", rule="entering"),
)


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One quantity of one sample.

    Parameters
    ----------
    sample, title
        Of the row; the title names the unit.
    key
        Dotted key of the number in the results.
    factor
        From the results' unit to the title's.
    paper
        What the first paper reports, on its own samples.
    better
        Whether less or more is better.
    bound
        Target in the title's unit: at most this value if less is better, else at least.
    beat_pandora
        Whether being better than Pandora on the same events is a target.
    """

    sample: str
    title: str
    key: str
    factor: float = 100.0
    paper: str = "-"
    better: Literal["less", "more"] = "less"
    bound: float | None = None
    beat_pandora: bool = False

    @property
    def target(self) -> str:
        """The targets in words, ``-`` without one."""
        words = ["better than Pandora"] if self.beat_pandora else []
        if self.bound is not None:
            words.append(f"at {'most' if self.better == 'less' else 'least'} {self.bound:g}")
        return "; ".join(words) or "-"


def judge(quantity: Quantity, ours: Number, pandora: Number) -> str:
    """Whether all targets are met: ``yes``, ``no``, either with ``(open)``, or ``-`` without a target or a number.

    An answer is open if the 68.3% intervals (of a fixed bound: ours alone) allow the other one.
    """
    met, is_open = [], []
    bounds = [pandora] if quantity.beat_pandora else []
    if quantity.bound is not None:
        bounds.append(Number(quantity.bound, quantity.bound, quantity.bound))
    for bound in bounds:
        if math.isnan(ours.value) or math.isnan(bound.value):
            return "-"
        difference = bound.value - ours.value if quantity.better == "less" else ours.value - bound.value
        met.append(difference > 0 or (difference == 0 and bound is not pandora))
        is_open.append(ours.low <= bound.high and bound.low <= ours.high)
    if not met:
        return "-"
    if all(met):
        return "yes (open)" if any(is_open) else "yes"
    # One target that is clearly missed settles the answer.
    return "no (open)" if all(o for o, m in zip(is_open, met, strict=True) if not m) else "no"


def of_particles(
    sample: str, *, beat_pandora: bool, class_bound: float | None = None, fake_bound: float | None = None
) -> tuple[Quantity, ...]:
    """What is found, invented and identified."""
    options: dict[str, Any] = {"beat_pandora": beat_pandora}
    return (
        Quantity(sample, "energy-weighted efficiency [%]", "energy_weighted_efficiency", better="more", **options),
        Quantity(sample, "fake energy fraction [%]", "fake_energy_fraction", bound=fake_bound, **options),
        Quantity(
            sample, "class right, of matched [%]", "pdg.class_accuracy", better="more", bound=class_bound, **options
        ),
    )


def of_jets(sample: str, bounds: Sequence[float | None] = (None,) * 4) -> tuple[Quantity, ...]:
    """Resolution of the visible energy and of jets, with the bounds of each, percent."""
    keys = [
        ("visible energy, resolution_68 / median [%]", VISIBLE),
        *((f"jets ({title}), IQR / median [%]", f"jets.{name}.iqr_over_median") for name, title in JETS),
    ]
    return tuple(
        Quantity(sample, title, key, bound=bound, beat_pandora=True)
        for (title, key), bound in zip(keys, bounds, strict=True)
    )


def of_details(sample: str) -> tuple[Quantity, ...]:
    """What jets need beside energies: directions, soft photons and electrons."""
    return (
        Quantity(sample, "angle, 68% quantile [deg]", "angle.q68_deg", 1.0, beat_pandora=True),
        Quantity(
            sample, "photons below 1 GeV found [%]", "extra.soft_photons.efficiency", better="more", beat_pandora=True
        ),
        Quantity(
            sample,
            "electrons: class right, of matched [%]",
            "class.electron.identified",
            better="more",
            beat_pandora=True,
        ),
    )


RIGHT = "extra.class_right"
JETS = (("genkt_r04", "kt R = 0.4"), ("genkt_r07", "kt R = 0.7"), ("durham_2", "Durham, two"))
APART = "extra.separation.separated"
VISIBLE = "event.visible_energy.resolution_68_over_median"
QUANTITIES = (
    Quantity("gamma1", "mean \\|dE\\|/E [%]", "energy.mean_abs_rel_error", paper="5", bound=3.5),
    Quantity("gamma1", "energy resolution_68 / median [%]", "energy.resolution_68_over_median"),
    Quantity("gamma1", "angle, mean [deg]", "angle.mean_deg", 1.0, paper="2.98", bound=0.02),
    Quantity("gamma1", "angle, mean, no track in the event [deg]", "extra.no_track.angle_mean_deg", 1.0),
    Quantity("gamma1", "angle, median [deg]", "angle.median_deg", 1.0),
    Quantity("gamma1", "exactly one particle [%]", "count.exact_fraction", better="more", bound=99.5),
    Quantity("gammasep", "one against two [%]", APART, paper="99.6 (an easier sample)", better="more", bound=98.0),
    Quantity("gammasep", "one against two, pairs above 30 mrad [%]", f"{APART}_above", better="more", bound=99.5),
    Quantity(
        "single",
        "class right, of matched above 2 GeV [%]",
        f"{RIGHT}.above_2_gev.of_matched",
        better="more",
        bound=95.0,
    ),
    Quantity("single", "class right, of all above 2 GeV [%]", f"{RIGHT}.above_2_gev.of_targets"),
    Quantity("single", "class right, of matched [%]", f"{RIGHT}.all.of_matched"),
    *of_particles("multi", beat_pandora=True, class_bound=95.0),
    *of_particles("zqq", beat_pandora=True, fake_bound=4.5),
    *of_jets("zqq", (3.3, 7.0, 7.2, 6.2)),
    *of_details("zqq"),
    *of_particles("zh", beat_pandora=True),
    *of_jets("zh"),
    *of_details("zh"),
    *of_particles("tau10", beat_pandora=False),
)
"""In the order of the table."""
