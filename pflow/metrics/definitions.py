"""What each key of the results means and in which unit it is: the documentation that travels with the numbers."""

from __future__ import annotations

import dataclasses
from fnmatch import fnmatchcase

from pflow.errors import ConfigError

__all__ = ["DEFINITIONS", "Definition", "definition_of"]


@dataclasses.dataclass(frozen=True)
class Definition:
    """Keys (a pattern in which * stands for a name), unit ("1" for none) and meaning."""

    keys: str
    unit: str
    text: str


_MATCHED = "of matched pairs"

DEFINITIONS = (
    Definition("count.exact_fraction", "1", "events with as many reconstructed particles as targets / events"),
    Definition(
        "count.one_vs_two_accuracy",
        "1",
        "events with one particle for one photon, two or more for two / events whose targets are one or two photons",
    ),
    Definition(
        "count.two_photons_found.efficiency",
        "1",
        "events with two or more reconstructed particles / events whose targets are two photons, in bins of the angle "
        "between the two",
    ),
    Definition("energy.mean_abs_rel_error", "1", f"mean of |E_reco - E_true| / E_true {_MATCHED}"),
    Definition("energy.mean_rel_error", "1", f"mean of (E_reco - E_true) / E_true {_MATCHED}"),
    Definition("energy.response_median", "1", f"median of E_reco / E_true {_MATCHED}"),
    Definition(
        "energy.resolution_68", "1", f"half the narrowest interval that holds 68.3% of E_reco / E_true {_MATCHED}"
    ),
    Definition("energy.resolution_68_over_median", "1", "energy.resolution_68 / energy.response_median"),
    Definition("energy.resolution_iqr", "1", f"interquartile range / 1.349 of E_reco / E_true {_MATCHED}"),
    Definition("angle.mean_deg", "deg", f"mean angle between the directions {_MATCHED}"),
    Definition("angle.median_deg", "deg", f"median angle between the directions {_MATCHED}"),
    Definition("angle.q68_deg", "deg", f"68% quantile of the angle between the directions {_MATCHED}"),
    Definition("charge.accuracy", "1", "matched pairs of equal charge / matched pairs"),
    Definition("pdg.accuracy", "1", "matched pairs of equal |PDG| / matched pairs"),
    Definition("pdg.class_accuracy", "1", "matched pairs of the same class / matched pairs"),
    Definition("class.*.efficiency", "1", "matched targets / targets, of true class *"),
    Definition("class.*.fake_rate", "1", "unmatched / all reconstructed particles, of reconstructed class *"),
    Definition(
        "class.*.purity", "1", "matched to a target of the same class / all reconstructed particles, of class *"
    ),
    Definition("class.*.identified", "1", "matched to a particle of the same class / matched targets, of true class *"),
    Definition("class.*.response_median", "1", f"as energy.response_median, {_MATCHED} of true class *"),
    Definition("class.*.resolution_68", "1", f"as energy.resolution_68, {_MATCHED} of true class *"),
    Definition("class.*.resolution_68_over_median", "1", "class.*.resolution_68 / class.*.response_median"),
    Definition("class.*.resolution_iqr", "1", f"as energy.resolution_iqr, {_MATCHED} of true class *"),
    Definition("class.*.median_deg", "deg", f"as angle.median_deg, {_MATCHED} of true class *"),
    Definition("class.*.q68_deg", "deg", f"as angle.q68_deg, {_MATCHED} of true class *"),
    Definition("fake_energy_fraction", "1", "energy of unmatched / of all reconstructed particles"),
    Definition("energy_weighted_efficiency", "1", "energy of matched / of all targets"),
    Definition("event.visible_energy.response_median", "1", "median of reconstructed / true visible energy of events"),
    Definition("event.visible_energy.resolution_68", "1", "half the narrowest interval with 68.3% of that response"),
    Definition("event.visible_energy.resolution_68_over_median", "1", "that resolution_68 / response_median"),
    Definition(
        "event.visible_energy.rms90", "1", "standard deviation of that response in its narrowest interval with 90%"
    ),
    Definition("event.visible_mass.response_median", "1", "median of reconstructed / true visible mass of events"),
    Definition("event.visible_mass.resolution_68", "1", "half the narrowest interval with 68.3% of that response"),
    Definition("event.visible_mass.resolution_68_over_median", "1", "that resolution_68 / response_median"),
    Definition(
        "event.visible_mass.rms90", "1", "standard deviation of that response in its narrowest interval with 90%"
    ),
    Definition("jets.*.efficiency", "1", "true jets of at least 10 GeV with a reconstructed jet within 0.1 rad / all"),
    Definition("jets.*.response_median", "1", "median of E_reco / E_true of matched jets"),
    Definition("jets.*.iqr_over_median", "1", "interquartile range / median of E_reco / E_true of matched jets"),
    Definition("legacy.count_difference", "1", "mean of reconstructed minus true number of particles"),
    Definition("legacy.mean_abs_rel_error", "1", "mean of |E_reco - E_true| / E_true of pairs by rank in energy"),
    Definition("legacy.mean_rel_error", "1", "mean of (E_reco - E_true) / E_true of pairs by rank in energy"),
    Definition("legacy.charge_accuracy", "1", "equal charge / pairs by rank in energy"),
    Definition("legacy.pdg_accuracy", "1", "equal |PDG| / pairs by rank in energy"),
    Definition("legacy.angle_mean_deg", "deg", "mean angle between the directions of pairs by rank in energy"),
    Definition("legacy.angle_median_deg", "deg", "median angle between the directions of pairs by rank in energy"),
    Definition("binned.*.*.efficiency", "1", "as class.*.efficiency, in bins of the true quantity"),
    Definition("binned.*.*.fake_rate", "1", "as class.*.fake_rate, in bins of the reconstructed quantity"),
    Definition("binned.*.*.response_median", "1", "as class.*.response_median, in bins of the true quantity"),
    Definition("binned.*.*.resolution_68", "1", "as class.*.resolution_68, in bins of the true quantity"),
    Definition("binned.*.*.median_deg", "deg", "as class.*.median_deg, in bins of the true quantity"),
    Definition("binned.*.*.q68_deg", "deg", "as class.*.q68_deg, in bins of the true quantity"),
)
"""In the order of the results."""


def definition_of(key: str) -> Definition:
    """The definition of a dotted key, e.g. ``class.photon.efficiency``.

    Raises
    ------
    ConfigError
        No metric has this key.
    """
    for definition in DEFINITIONS:
        if definition.keys.count(".") == key.count(".") and fnmatchcase(key, definition.keys):
            return definition
    raise ConfigError(f"no metric '{key}'")
