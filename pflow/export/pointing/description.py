"""What stands beside the graphs of a pointing network: how to run them."""

from __future__ import annotations

from typing import cast

from pflow.checkpoint.format import EXPORT_FORMAT
from pflow.checkpoint.load import TrainedModel
from pflow.export.graphs import Export
from pflow.export.pointing.graphs import pointing_graphs
from pflow.model.pointing import PointingReconstructor
from pflow.physics.pdg import CLASSES
from pflow.tokens.features import FEATURES

__all__ = ["HOW_TO", "pointing_export"]

HOW_TO = (
    "One event a run; no axis counts events. Names are of 'inputs' and 'outputs' of the graphs. 'values' is a map from "
    "names to tensors.",
    "1. An event in which no hit has an energy above 'energy_above' (GeV), and that has no tracks or whose tracks the "
    "model does not read ('tracks'), has no particles: do not run the graphs.",
    "2. Inputs of 'encoder': hit_energy (GeV), hit_position (mm), hit_subdetector (index into 'subdetectors'), "
    "hit_layer (from 0, -1 unknown), track_momentum (GeV, at the vertex), track_charge (e), track_calo_position (mm) "
    "and track_calo_momentum (GeV), both where the track enters the calorimeter; hit_time (ns), track_d0, track_z0 "
    "(mm) and track_omega (1/mm) only for models that have these inputs. Inputs in 'known' must be known: "
    "finite, a layer not negative. Others may be NaN.",
    "3. Run 'encoder'; values = its outputs.",
    "4. Run 'decoder' with its inputs from values, and add its outputs to values. If truncated[0], limit[0] particles "
    "were decoded before the sequence ended; another number may be given as limit.",
    "5. If 'seed' is empty, the event has no particles. Otherwise run 'refinement' with its inputs from values.",
    "6. Its outputs are the particles: pdg, charge (e), energy and mass (GeV), momentum (GeV), covariance of (px, py, "
    "pz, E) as the lower triangle xx xy yy xz yz zz xt yt zt tt (GeV^2), score (probability of |pdg|), "
    "class_probability (columns: 'classes') and pdg_probability (columns: 'pdg'). hit_link_hit, hit_link_particle and "
    "hit_link_weight list which hit of the input has which fraction of its energy in which particle, sorted by "
    "particle, then by hit; track_link_* the same of tracks.",
)
"""How to use the files, step by step."""


def pointing_export(model: TrainedModel) -> Export:
    """``encoder``, ``decoder`` and ``refinement`` of a model with a pointing network, and how to run them."""
    graphs = pointing_graphs(model, cast(PointingReconstructor, model.reconstructor))
    inputs = tuple(spec.name for spec in graphs["encoder"].inputs)
    return Export(graphs=graphs, how_to=HOW_TO, run=_metadata(model, inputs))


def _metadata(model: TrainedModel, inputs: tuple[str, ...]) -> dict[str, str]:
    """What a host must know besides the graphs."""
    tokeniser = model.tokeniser
    return {
        "format": str(EXPORT_FORMAT),
        "architecture": "pointing",
        "detector": tokeniser.detector.name,
        "b_field": repr(tokeniser.detector.b_field),
        "subdetectors": ",".join(one.name for one in tokeniser.detector.calorimeters),
        "energy_above": repr(tokeniser.config.hit_energy_min),
        "tracks": str(int(bool(tokeniser.config.track_features))),
        "known": ",".join(_known(model, inputs)),
        "classes": ",".join(CLASSES),
        "pdg": ",".join(map(str, tokeniser.pdg.codes)),
    }


def _known(model: TrainedModel, inputs: tuple[str, ...]) -> list[str]:
    """The inputs whose numbers must be known: what cells and momenta are made of, and what features read."""
    recipe = model.tokeniser.config
    needed = {"hit_energy", "hit_position", "hit_subdetector", "track_momentum", "track_charge"}
    for part in ("hits", "tracks"):
        fields = [FEATURES[part][name].field.split(".") for name in recipe.features(part)]
        needed |= {f"{part.removesuffix('s')}_{field}" for _, field, *_ in fields}
    return [name for name in inputs if name in needed]
