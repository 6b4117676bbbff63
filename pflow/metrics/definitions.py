"""Definition and unit of each key of the results, for reports and metrics.json."""

from __future__ import annotations

from fnmatch import fnmatchcase

from pflow.errors import ConfigError

__all__ = ["DEFINITIONS", "definition_of", "unit_of"]

DEFINITIONS = {
    "count.exact_fraction": "events with as many reconstructed particles as targets / events",
    "count.one_vs_two_accuracy": "correct events (one particle for one, more for two) / events of one or two photons",
    "count.one_vs_two_accuracy_above_30_mrad": "the same, without the pairs of photons closer than 30 mrad",
    "count.two_photons_found.efficiency": "events with two or more particles / events of two photons, by opening angle",
    "energy.mean_abs_rel_error": "mean of |E_reco - E_true| / E_true of matched pairs",
    "energy.mean_rel_error": "mean of (E_reco - E_true) / E_true of matched pairs",
    "energy.response_median": "median of E_reco / E_true of matched pairs",
    "energy.resolution_68": "half the narrowest interval that holds 68.3% of E_reco / E_true of matched pairs",
    "energy.resolution_68_over_median": "energy.resolution_68 / energy.response_median",
    "energy.resolution_iqr": "interquartile range / 1.349 of E_reco / E_true of matched pairs",
    "angle.mean_deg": "mean angle between the directions of matched pairs",
    "angle.median_deg": "median angle between the directions of matched pairs",
    "angle.q68_deg": "68% quantile of the angle between the directions of matched pairs",
    "charge.accuracy": "matched pairs of equal charge / matched pairs",
    "pdg.accuracy": "matched pairs of equal |PDG| / matched pairs",
    "pdg.class_accuracy": "matched pairs of the same class / matched pairs",
    "class.*.efficiency": "matched targets / targets, of true class *",
    "class.*.fake_rate": "unmatched / all reconstructed particles, of reconstructed class *",
    "class.*.purity": "matched to a target of the same class / all reconstructed particles, of class *",
    "class.*.identified": "matched to a particle of the same class / matched targets, of true class *",
    "class.*.response_median": "as energy.response_median, of matched pairs of true class *",
    "class.*.resolution_68": "as energy.resolution_68, of matched pairs of true class *",
    "class.*.resolution_68_over_median": "class.*.resolution_68 / class.*.response_median",
    "class.*.resolution_iqr": "as energy.resolution_iqr, of matched pairs of true class *",
    "class.*.median_deg": "as angle.median_deg, of matched pairs of true class *",
    "class.*.q68_deg": "as angle.q68_deg, of matched pairs of true class *",
    "fake_energy_fraction": "energy of unmatched / of all reconstructed particles",
    "energy_weighted_efficiency": "energy of matched / of all targets",
    "event.*.response_median": "median of reconstructed / true visible energy or mass of events",
    "event.*.resolution_68": "half the narrowest interval with 68.3% of that response",
    "event.*.resolution_68_over_median": "that resolution_68 / response_median",
    "event.*.rms90": "standard deviation of that response in its narrowest interval with 90%",
    "jets.*.efficiency": "true jets with a reconstructed jet within 0.1 rad / all true jets of at least 10 GeV",
    "jets.*.response_median": "median of E_reco / E_true of matched jets",
    "jets.*.iqr_over_median": "interquartile range / median of E_reco / E_true of matched jets",
    "energy_rank.count_difference": "mean of reconstructed minus true number of particles",
    "energy_rank.mean_abs_rel_error": "mean of |E_reco - E_true| / E_true of pairs by rank in energy",
    "energy_rank.mean_rel_error": "mean of (E_reco - E_true) / E_true of pairs by rank in energy",
    "energy_rank.charge_accuracy": "equal charge / pairs by rank in energy",
    "energy_rank.pdg_accuracy": "equal |PDG| / pairs by rank in energy",
    "energy_rank.angle_mean_deg": "mean angle between the directions of pairs by rank in energy",
    "energy_rank.angle_median_deg": "median angle between the directions of pairs by rank in energy",
    "binned.*.*.efficiency": "as class.*.efficiency, in bins of the true quantity",
    "binned.*.*.fake_rate": "as class.*.fake_rate, in bins of the reconstructed quantity",
    "binned.*.*.response_median": "as class.*.response_median, in bins of the true quantity",
    "binned.*.*.resolution_68": "as class.*.resolution_68, in bins of the true quantity",
    "binned.*.*.median_deg": "as class.*.median_deg, in bins of the true quantity",
    "binned.*.*.q68_deg": "as class.*.q68_deg, in bins of the true quantity",
}
"""Meaning of keys (patterns in which * stands for a name), in the order of the results."""


def definition_of(key: str) -> str:
    """The definition of a dotted key, e.g. ``class.photon.efficiency``."""
    for keys, text in DEFINITIONS.items():
        if keys.count(".") == key.count(".") and fnmatchcase(key, keys):
            return text
    raise ConfigError(f"no metric '{key}'")


def unit_of(key: str) -> str:
    """The unit of a key or pattern, "1" for none."""
    return "deg" if key.endswith("deg") else "1"
