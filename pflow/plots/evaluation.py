"""Figures of a training, losses against the epoch, and of an evaluation: metrics in bins, distributions, confusion."""

from __future__ import annotations

import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from pflow.metrics.event import BOSONS, OPENING_ANGLE
from pflow.metrics.jets import ABS_COS_THETA
from pflow.metrics.match import AXES, DISTANCE, ENERGY, THETA, HitMatching, Matching
from pflow.metrics.oracle import ORACLE
from pflow.metrics.report import REFERENCE, EvaluationResult, definitions
from pflow.metrics.stats import Axis, Floats, Number, Series, Tree, leaves
from pflow.physics.arrays import Mask
from pflow.plots import COLORS, MARKERS, plain, styled

WRONG_ENERGY = "val/wrong_energy"
"""The metric that is no loss: it has a separate panel."""


@styled()
def plot_training(history: Mapping[str, Mapping[float, float]], *, text: str = "") -> Figure:
    """Training (dashed) and validation (solid) loss, parts and wrong energy, from `history` [name][passed epochs].

    ValueError: no losses.
    """
    names = {name.split("/")[1] for name in history if name != WRONG_ENERGY}
    if not names:
        raise ValueError("the history holds no losses")
    parts = sorted(names - {"loss"})
    n_panels = 1 + bool(parts) + (WRONG_ENERGY in history)
    figure = Figure(figsize=(4.6 * n_panels + 1.5 * bool(parts), 4.2), layout="constrained")
    panels = list(np.atleast_1d(figure.subplots(1, n_panels)))
    for split, style, label in (("val", "-", "validation"), ("train", "--", "training")):
        _curve(panels[0], history.get(f"{split}/loss", {}), 0, style, label)
        for k, part in enumerate(parts):
            # Named once: the training's dashed curve has the colour of the validation's.
            named = part.replace("_", " ") if split == "val" else None
            _curve(panels[1], history.get(f"{split}/{part}", {}), k, style, named)
    panels[0].set_ylabel("Loss")
    panels[0].legend()
    if parts:
        panels[1].set_ylabel("Parts of the loss")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9)
    if WRONG_ENERGY in history:
        percent = {epoch: 100.0 * value for epoch, value in history[WRONG_ENERGY].items()}
        _curve(panels[-1], percent, 0, "-", None)
        panels[-1].set(ylabel="Wrong energy [%]", ylim=(0, 1.15 * panels[-1].get_ylim()[1]))
    for panel in panels:
        panel.set(xlabel="Epoch", xlim=(0, None))  # from 0, so that one epoch has ticks too
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.tick_params(labelsize=11)
    panels[0].set_title(plain(text), loc="left")
    return figure


def _curve(axes: Axes, values: Mapping[float, float], index: int, style: str, label: str | None) -> None:
    epochs = sorted(values)
    color, marker = COLORS[index % len(COLORS)], MARKERS[index // len(COLORS)]
    apart = 1 + len(epochs) // 30  # markers of many points would hide the line
    heights = [values[epoch] for epoch in epochs]
    axes.plot(epochs, heights, style, color=color, marker=marker, markevery=apart, label=label)


BINNED: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("response_median", "Median of $E_{reco}/E_{true}$", {"reference": 1.0}),
    ("resolution_68", r"Resolution $\sigma_{68}$ of $E_{reco}/E_{true}$", {"limits": (0.0, None)}),
    ("q68_deg", "68% quantile of the angle [deg]", {"log": True}),
    ("efficiency", "Efficiency", {"reference": 1.0}),
    ("fake_rate", "Fake rate", {"limits": (0.0, None)}),
)
"""Binned metric, label, and options of `plot_binned`."""

JET_ENERGY: dict[str, tuple[str, dict[str, Any]]] = {
    "resolution": (r"Jets: $\sqrt{2}\ RMS_{90}\,/\,Mean_{90}$", {"limits": (0.0, None)}),
    "scale": (r"Jets: $Mean_{90}\,/\,\sqrt{s}$", {"reference": 1.0}),
}
"""The same of the energies of jets."""

CLASSES = ("charged_hadron", "photon", "neutral_hadron")
"""Classes with a panel each."""

BY_CLASS = {
    ENERGY: ("response_median", "resolution_68", "q68_deg", "efficiency", "fake_rate"),
    THETA: ("response_median", "resolution_68"),
    DISTANCE: ("efficiency", "fake_rate"),
}
"""By axis: binned metrics with a panel for each class."""

WORDS = {
    "resolution_68": "energy resolution",
    "q68_deg": "68% quantile of the angle",
    "confusion_budget": "where the resolution of the visible energy comes from",
    "photon_pairs": "opening angle and mass of pairs of photons",
    "photon_pairs_angle": "angle of each photon of a pair",
}
"""Captions of figures by the part of the name before ``_vs_``, where it would be unreadable."""

RESPONSE, ENTRIES = r"median {response_median}, $\sigma_{{68}}$ {resolution_68}", "entries per bin"
DISTRIBUTIONS = {
    "response": ("energy", RESPONSE, "$E_{reco}/E_{true}$", ENTRIES),
    "angle": ("angle", "median {median_deg} deg", "Angle between true and reconstructed direction [deg]", ENTRIES),
    "visible_energy": ("event.visible_energy", RESPONSE, "Visible energy, reconstructed / true", ENTRIES),
    "visible_mass": ("event.visible_mass", RESPONSE, "Visible mass, reconstructed / true", ENTRIES),
    **{
        f"hadronic_mass_{boson}": (
            f"hadronic_mass.{boson}",
            RESPONSE,
            f"Mass of the two jets of {boson}, reconstructed / true",
            "bosons",
        )
        for boson in BOSONS.values()
    },
    "jets": (
        "jets.durham_2",
        "IQR / median {iqr_over_median}",
        "Energy of jets, reconstructed / true (Durham, two jets)",
        "jets",
    ),
    "jets_angle": (
        "jets.durham_2",
        "68% within {q68_deg} deg",
        "Angle between true and reconstructed jet [deg] (Durham, two jets)",
        "jets",
    ),
}
"""By figure: the part of the results, the text with its numbers for the legend, the label, the counted objects."""
HISTOGRAMS = {
    "response": "histograms.response",
    "angle": "histograms.angle_deg",
    "jets_angle": "jets.durham_2.angle_histogram_deg",
}
"""Keys of the histograms that are not `histogram` of their part."""

STEPS = {
    "photons": "photons",
    "neutral_hadrons": "neutral\nhadrons",
    "charged": "charged",
    "measurement_photons": "photons'\nenergies",
    "measurement_neutral_hadrons": "hadrons'\nenergies",
    "measurement_charged": "tracks'\nmomenta",
    "rest": "rest",
}
"""Names of the steps of the confusion budget."""

DEFINED = {
    "angle": ("angle.median_deg",),
    "confusion": (
        "matched pairs, true particles without a match (missed) and reconstructed ones without one (fake); "
        "fractions are of a row, all true particles of a class or all fakes",
    ),
    "confusion_budget": ("confusion_budget.resolution.*", "confusion_budget.gain.*"),
    "count_difference": ("count.exact_fraction",),
    "efficiency": ("class.*.efficiency",),
    "fake_rate": ("class.*.fake_rate",),
    "hadronic_mass": ("hadronic_mass.*.median_gev", "hadronic_mass.*.response_median"),
    "jet_energy_resolution": ("jet_energy.*.resolution",),
    "jet_energy_scale": ("jet_energy.*.scale", "jet_energy.*.resolution"),
    "jets": ("jets.*.iqr_over_median", "jets.*.efficiency"),
    "jets_angle": ("jets.*.q68_deg", "jets.*.efficiency"),
    "photon_pairs": ("photon_pairs.opening_response", "photon_pairs.mass_response"),
    "photon_pairs_angle": ("photon_pairs.angle_*_mean_deg",),
    "q68_deg": ("angle.q68_deg",),
    "resolution_68": ("energy.resolution_68",),
    "response": ("energy.response_median", "energy.resolution_68"),
    "response_median": ("energy.response_median",),
    "tau_modes": ("taus.mode_right",),
    "two_photons_found": ("count.two_photons_found.efficiency",),
    "visible": ("event.*.response_median", "event.*.resolution_68"),
}
"""What a figure shows, keys of `DEFINITIONS` or a text, by the beginning of its name; the longest holds."""


def caption(name: str, matching: Matching | HitMatching) -> str:
    """The caption of a figure by its name, and the definitions of what it shows.

    >>> caption("q68_deg_vs_energy_by_class", Matching())
    '68% quantile of the angle vs energy by class: 68% quantile of the angle between the directions of matched pairs'
    """
    metric, versus, axis = name.partition("_vs_")
    axis = axis.replace("distance", "angle to the next charged particle of the same list")
    words = (WORDS.get(metric, metric) + versus + axis).replace("_", " ")
    keys = DEFINED.get(max(filter(name.startswith, DEFINED), key=len, default=""), ())
    known = definitions(matching)
    return ": ".join([words, *filter(None, ["; ".join(known.get(key, key) for key in keys)])])


def figures(result: EvaluationResult) -> dict[str, Figure]:
    """Matplotlib figures of a result by the name of their file; a metric without values has no figure.

    >>> events = pflow.read_events("multi_test_small.root", entry_stop=2)
    >>> drawn = figures(pflow.evaluate(pflow.reconstruct(events, "general"), events))
    >>> drawn["visible_energy"].savefig("visible_energy.png")
    """
    titles = {name: plain(result.titles.get(name, name)) for name in result.algorithms}
    n_used = result.n_events - result.n_bad_input
    # A reference that some files lack is of fewer events than the title says.
    fewer = {name: n for name, tree in result.algorithms.items() if (n := tree["n_events"]) != n_used}
    titles |= {name: f"{titles[name]} ({n} events)" for name, n in fewer.items()}
    trees = {titles[name]: tree for name, tree in result.algorithms.items()}
    # Colours and markers go by role: further algorithms do not change them.
    further = [name for name in titles if name not in (result.name, ORACLE, REFERENCE)]
    roles = {name: k for k, name in enumerate((result.name, ORACLE, REFERENCE, *further))}
    where = ", ".join(filter(None, (result.sample, result.detector, result.energy)))
    text = f"{n_used} events, truth rule '{result.settings.rule}'"
    if result.n_truth_tracks:
        text += ", tracks from Monte Carlo particles"
    text = f"{plain(where)}\n{text}" if where else text
    common: dict[str, Any] = {"text": text, "styles": {titles[name]: roles[name] for name in titles}}
    drawn = _binned_figures(trees, common)
    for name, (of, words, label, counted) in DISTRIBUTIONS.items():
        shown = {
            title: (histogram, words.format_map({k: _digits(number) for k, number in _part(tree, of).items()}))
            for title, tree in trees.items()
            if (histogram := _part(tree, HISTOGRAMS.get(name, f"{of}.histogram")))
        }
        if name in ("response", "angle") or any(_total(histogram) for histogram, _ in shown.values()):
            options: dict[str, Any] = {"log_x": True} if "angle" in name else {"central": True}
            drawn[name] = plot_distribution(shown, label=label, fraction_of=counted, **common, **options)
    numbers = {title: tree["count"]["difference"] for title, tree in trees.items()}
    values = [int(difference) for of in numbers.values() for difference in of] or [0]
    # Edges between the whole numbers, so that each difference is in the middle of its bin.
    edges, counts = np.arange(min(values) - 1.5, max(values) + 2.5), {}
    for title, of in numbers.items():
        heights, _ = np.histogram([int(value) for value in of], edges, weights=list(of.values()))
        exact = f"exact: {trees[title]['count']['exact_fraction'].value:.1%}"
        counts[title] = {"edges": edges, "counts": heights, "below": 0, "above": 0}, exact
    label = "Reconstructed minus true number of particles"
    drawn["count_difference"] = plot_distribution(counts, label=label, fraction_of="events", **common)
    budgets = {title: tree["confusion_budget"] for title, tree in trees.items()}
    if any(np.isfinite(tree["gain"]["rest"].low) for tree in budgets.values()):
        drawn["confusion_budget"] = plot_budget(budgets, **common)
    for name, tree in result.algorithms.items():
        ending, titled = "" if name == result.name else f"_{name}", f"{titles[name]}, {text}"
        counts, *classes = (tree["confusion"][key] for key in ("counts", "true_classes", "reco_classes"))
        if np.any(counts):
            drawn[f"confusion{ending}"] = plot_confusion(counts, *classes, text=titled)
        if "taus" in tree:
            counts, *modes = (tree["taus"]["modes"][key] for key in ("counts", "true_modes", "reco_modes"))
            drawn[f"tau_modes{ending}"] = plot_confusion(counts, *modes, text=titled, of="decay mode")
    return drawn


def _part(tree: Tree, key: str) -> Tree:
    """The branch of a tree with a dotted key; {} if it has none."""
    for name in key.split("."):
        tree = tree.get(name, {})
    return tree


def _binned_figures(trees: Mapping[str, Tree], common: dict[str, Any]) -> dict[str, Figure]:
    """Metrics in bins of a true or reconstructed quantity, and of the jets against sqrt(s)."""
    drawn: dict[str, Figure] = {}
    flat = {title: dict(leaves(tree)) for title, tree in trees.items()}
    alone = common["text"]

    def add(name: str, axis: Axis, keys: Mapping[str, str], label: str, text: str = alone, **options: Any) -> None:
        """A figure with a panel for each title of `keys`; the only panel has the text as its title."""
        panels = {panel: {of: tree[key] for of, tree in flat.items() if key in tree} for panel, key in keys.items()}
        if any(np.isfinite(s.value + s.low + s.high).any() for series in panels.values() for s in series.values()):
            text = "" if text in panels else text
            drawn[name] = plot_binned(axis, panels, label=label, **{**common, "text": text}, **options)

    for axis, (metric, label, options) in itertools.product(AXES, BINNED):
        of_axis, counted, text = axis.label, "n_truth", alone
        if metric == "fake_rate":
            counted, of_axis = "n_reco", of_axis.replace("True", "Reconstructed").replace("next", "next reconstructed")
        outside = [tree[counted] - sum(tree["binned"][axis.name]["all"][counted]) for tree in trees.values()]
        if axis is ENERGY and any(outside):
            text += f"\nup to {max(outside)} particles outside of {axis.edges[0]:g} to {axis.edges[-1]:g} {axis.unit}"
        binned, labelled = f"{metric}_vs_{axis.name}", dataclasses.replace(axis, label=of_axis)
        if axis is not DISTANCE or metric in BY_CLASS[DISTANCE]:
            add(binned, labelled, {text: f"binned.{axis.name}.all.{metric}"}, label, text, **options)
        if metric in BY_CLASS[axis]:
            # Tracks measure a hundred times better than showers of hadrons.
            options = {"log": True} if metric == "resolution_68" else options
            keys = {f"{of.replace('_', ' ')}s": f"binned.{axis.name}.{of}.{metric}" for of in CLASSES}
            add(f"{binned}_by_class", labelled, keys, label, text, **options)
    label = "Exactly two particles found"
    add("two_photons_found", OPENING_ANGLE, {alone: "count.two_photons_found.efficiency"}, label, reference=1.0)
    pairs, label = "photon_pairs.binned.", "Median of reconstructed / true"
    keys = {"opening angle": f"{pairs}opening_response", "mass": f"{pairs}mass_response"}
    add("photon_pairs", OPENING_ANGLE, keys, label, reference=1.0)
    keys = {f"{of} photon": f"{pairs}angle_{k}_mean_deg" for k, of in ((1, "harder"), (2, "softer"))}
    add("photon_pairs_angle", OPENING_ANGLE, keys, "Mean angle to the true photon [deg]", log=True)
    energies = sorted({energy for tree in trees.values() for energy in tree.get("jet_energy", ())}, key=float)
    for key, (label, options) in JET_ENERGY.items():
        keys = {f"$\\sqrt{{s}}$ = {energy} GeV": f"jet_energy.{energy}.binned.{key}" for energy in energies}
        add(f"jet_energy_{key}_vs_abs_cos_theta", ABS_COS_THETA, keys, label, **options)
        if len(energies) > 1:
            of = {energy: f"jet_energy.{energy}.{key}_barrel" for energy in energies}
            points = {
                title: {float(energy): tree[name] for energy, name in of.items() if name in tree}
                for title, tree in flat.items()
            }
            label = f"{label}, $|\\cos\\theta|<0.7$"
            drawn[f"jet_energy_{key}_vs_sqrt_s"] = plot_by_energy(points, label=label, **common)
    return drawn


def _digits(number: Any) -> str:
    # With zeros at the end (#), and without the point behind whole numbers.
    known = isinstance(number, Number) and np.isfinite(number.value)
    return f"{number.value:#.3g}".rstrip(".") if known else "-"


@styled()
def plot_binned(
    axis: Axis,
    by_title: Mapping[str, Mapping[str, Series]],
    *,
    label: str,
    text: str = "",
    limits: tuple[float | None, float | None] = (None, None),
    reference: float | None = None,
    log: bool = False,
    styles: Mapping[str, int] | None = None,
) -> Figure:
    """Points with 68.3% intervals against a binned quantity, by algorithm, in a panel for each title.

    A point without an interval is left out, and on a logarithmic axis one that is not above 0.

    `text`: title of the legend; `reference`: height of a thin line; `log`: logarithmic vertical axis; `styles`: index
    of the colour and marker of each algorithm, by default its place.
    """
    n = len(by_title)
    figure = Figure(figsize=(7.0, 5.2) if n == 1 else (4.6 * n, 4.8))
    panels = np.atleast_1d(figure.subplots(1, n, sharex=True, sharey=True))
    filled = np.zeros(len(axis), dtype=np.bool_)
    shown = [values for series in by_title.values() for values in series.values()]
    positive = [end for values in shown for end in (*values.value, *values.low) if end > 0]
    if log := log and bool(positive):  # from below all values: an interval that reaches 0 is seen to go on downwards
        limits = (0.5 * min(positive), limits[1])
    for axes, (title, series) in zip(panels, by_title.items(), strict=True):
        if reference is not None:
            axes.axhline(reference, color="0.6", linewidth=1, zorder=0)
        for k, (name, values) in enumerate(series.items()):
            low, high, place = axis.edges[:-1], axis.edges[1:], (k + 1) / (len(series) + 1)  # in the bin
            x = low ** (1 - place) * high**place if axis.log else low + place * (high - low)
            style = {"xerr": np.stack([x - low, high - x]), "label": name, **_style(styles, name, k)}
            filled |= _errorbars(axes, x, values, log=log, **style)
        if axis.log:
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
        if log:
            axes.set_yscale("log")
        axes.set_xlabel(f"{axis.label} [{axis.unit}]" if axis.unit else axis.label)
        axes.set_title(title, loc="left")
    # The panels share their axes, so that the bins filled in any of them are shown in all.
    bins = np.flatnonzero(filled) if filled.any() else np.arange(len(axis))
    panels[0].set(xlim=(axis.edges[bins[0]], axis.edges[bins[-1] + 1]), ylabel=label, ylim=limits)
    _legend(figure, panels, text)
    return figure


@styled()
def plot_by_energy(
    by_name: Mapping[str, Mapping[float, Number]], *, label: str, text: str, styles: Mapping[str, int]
) -> Figure:
    """Numbers with their 68.3% intervals by sqrt(s), GeV, for each algorithm."""
    figure = Figure()
    axes = figure.add_subplot()
    for k, (name, numbers) in enumerate(by_name.items()):
        _errorbars(axes, np.array(list(numbers)), Series.of(numbers.values()), label=name, **_style(styles, name, k))
    axes.set(xlabel=r"$\sqrt{s}$ [GeV]", ylabel=label)
    _legend(figure, [axes])
    axes.set_title(text, loc="left")
    return figure


@styled()
def plot_budget(budgets: Mapping[str, Tree], *, text: str, styles: Mapping[str, int]) -> Figure:
    """What each step of the `ConfusionBudget` of each algorithm gains in quadrature, in % of the visible energy."""
    figure = Figure(figsize=(9.0, 5.2))
    axes = figure.add_subplot()
    steps = [step for step in STEPS if any(step in tree["gain"] for tree in budgets.values())]
    for k, (name, tree) in enumerate(budgets.items()):
        known = {steps.index(step): number * 100.0 for step, number in tree["gain"].items()}
        places = np.array(list(known)) + 0.14 * (k - 0.5 * (len(budgets) - 1))
        total = tree["resolution"]["measured"] * 100.0
        title = f"{name}: {total.value:.2f} in all"
        _errorbars(axes, places, Series.of(known.values()), label=title, **_style(styles, name, k))
    axes.axhline(0.0, color="0.6", linewidth=1, zorder=0)
    confusion = sum(step in ("photons", "neutral_hadrons", "charged") for step in steps)
    axes.axvline(confusion - 0.5, color="0.6", linewidth=1, linestyle=":")
    axes.set_xticks(range(len(steps)), [STEPS[step] for step in steps], fontsize=11)
    axes.minorticks_off()
    axes.set_ylabel(r"Part of $RMS_{90}/Mean_{90}$ [%]")
    _legend(figure, [axes])
    axes.set_title(text, loc="left")
    return figure


def _errorbars(
    axes: Axes, x: Floats, values: Series, *, xerr: Floats | None = None, log: bool = False, **style: Any
) -> Mask:
    """Points with their intervals; bool [N], which of them are shown."""
    # Fewer than three entries have no interval, and would look exact.
    shown = np.isfinite(values.value + values.low + values.high)
    if log:  # a marker at 0, which is not clipped, would lie infinitely far below the figure
        shown &= values.value > 0
    if shown.any():
        # Matplotlib refuses negative lengths, which an interval beside its value would give.
        yerr = np.maximum(0, np.stack([values.value - values.low, values.high - values.value]))[:, shown]
        across = None if xerr is None else xerr[:, shown]
        bars = axes.errorbar(x[shown], values.value[shown], yerr, across, linestyle="none", elinewidth=1.2, **style)
        bars.lines[0].set(clip_on=False, zorder=3)  # markers on the axis are whole: in front of its line
    return np.asarray(shown)


def _style(styles: Mapping[str, int] | None, name: str, place: int) -> dict[str, Any]:
    index = place if styles is None else styles[name]
    return {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}


def _legend(figure: Figure, panels: Iterable[Axes], text: str = "") -> None:
    """Put the legend of all panels above them, where it hides no point."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        style: dict[str, Any] = {"ncols": min(3, len(handles)), "columnspacing": 1.0, "handlelength": 1.2}
        shown = list(handles.values()), list(handles)
        figure.legend(*shown, loc="outside upper center", title=text or None, **style)


@styled()
def plot_distribution(
    histograms: Mapping[str, tuple[Tree, str]],
    *,
    label: str,
    text: str = "",
    styles: Mapping[str, int] | None = None,
    log_x: bool = False,
    central: bool = False,
    fraction_of: str = "entries per bin",
) -> Figure:
    """Fraction of all entries in each bin, by algorithm: its `Distribution.histogram`, and a text for the legend.

    Entries outside the axis count. `styles` as for `plot_binned`; `central` restricts the axis to the middle 98% of
    each algorithm's entries.
    """
    figure = Figure()
    axes = figure.add_subplot()
    filled = [histogram for histogram, _ in histograms.values() if _total(histogram)]
    shown = _middle(filled) if central and filled else slice(None)
    for k, (name, (histogram, number)) in enumerate(histograms.items()):
        total = _total(histogram)
        if not total:
            continue
        counts = np.asarray(histogram["counts"][shown])
        outside = 1.0 - float(counts.sum()) / total
        # A smaller part outside would be written as 0.0%.
        parts = [name, number, f"{outside:.1%} outside" if outside >= 0.0005 else ""]
        edges = histogram["edges"][shown.start : None if shown.stop is None else shown.stop + 1]
        style = {"color": _style(styles, name, k)["color"], "linewidth": 1.5, "label": "\n".join(filter(None, parts))}
        axes.stairs(counts / total, edges, **style)
    if log_x:
        axes.set_xscale("log")
    axes.set(xlabel=label, ylabel=f"Fraction of {fraction_of}")
    axes.set_ylim(bottom=0)
    _legend(figure, [axes])
    axes.set_title(text, loc="left")
    return figure


def _total(histogram: Tree) -> float:
    return float(sum(histogram["counts"]) + histogram["below"] + histogram["above"])


def _middle(histograms: Sequence[Tree]) -> slice:
    """The bins with the middle 98% of each histogram's entries, and a margin."""
    ends = []
    for histogram in histograms:
        cumulative = (histogram["below"] + np.cumsum(histogram["counts"])) / _total(histogram)
        ends += np.searchsorted(cumulative, (0.01, 0.99)).tolist()
    margin = max(3, round(0.15 * (max(ends) - min(ends))))
    return slice(max(min(ends) - margin, 0), min(max(ends) + margin + 1, len(histograms[0]["counts"])))


@styled()
def plot_confusion(
    counts: npt.ArrayLike,
    true_classes: Sequence[str],
    reco_classes: Sequence[str],
    *,
    text: str = "",
    of: str = "class",
) -> Figure:
    """Counts [true, reconstructed]; cells are coloured by the fraction of their row and show fraction and count."""
    matrix = np.asarray(counts, dtype=np.float64)
    total = matrix.sum(axis=1, keepdims=True)
    fractions = np.divide(matrix, total, out=np.zeros_like(matrix), where=total > 0)
    figure = Figure(figsize=(8.0, 6.4))
    axes = figure.add_subplot()
    image = axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(matrix).tolist():
        fraction = fractions[row, column]
        cell = f"{fraction:.1%}\n{int(matrix[row, column])}"
        colour = "white" if fraction > 0.5 else "black"
        axes.text(column, row, cell, ha="center", va="center", fontsize=9, color=colour)
    for ticks, names in ((axes.set_xticks, reco_classes), (axes.set_yticks, true_classes)):
        ticks(range(len(names)), ["\n".join(textwrap.wrap(name.replace("_", " "), 8)) for name in names], fontsize=10)
    axes.tick_params(which="both", length=0)
    axes.minorticks_off()
    axes.set(xlabel=f"Reconstructed {of}", ylabel=f"True {of}")
    figure.colorbar(image, ax=axes, label=f"Fraction of the true {of}")
    axes.set_title(text, loc="left")
    return figure
