import math
from dataclasses import replace
from functools import partial

import pytest

from pflow.errors import ConfigError
from pflow.event.augment import Disturbance, Overlay
from pflow.event.merge import Merge
from pflow.event.move import Variation
from pflow.metrics.match import HitMatching, Matching
from pflow.physics.detector import Calorimeter, Layers, load_detector
from pflow.tokens.features import Normaliser
from pflow.tokens.particles import Calibration, Curve, PdgVocabulary, Response
from pflow.tokens.tokens import TokenConfig
from pflow.train.module import ParticleFlow

CELLS = partial(Merge, ecal_mm=10.0, hcal_mm=60.0)
CALORIMETER = partial(Calorimeter, **{"name": "x", "kind": "ecal", "region": "barrel"})
HCAL = partial(CALORIMETER, kind="hcal")
CLD = load_detector("cld")
DETECTOR, TRUTH_TRACKS = partial(replace, CLD), partial(replace, CLD.truth_tracks)
SCALE = partial(Normaliser, names=("x",), transforms=("identity",), mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Overlay, {"frequencies": [2, -1]}, "frequencies must be"),
        (Overlay, {"frequencies": [0.0]}, "frequencies must be"),
        (Overlay, {"cone": 4.0}, "cone must be"),
        (Overlay, {"frequencies": 2}, "frequencies must be"),
        (Overlay, {"max_hits": -1}, "max_hits must be"),
        *((Variation, {"sides": sides}, "detector: sides must be") for sides in ((2,), ())),
        *((Variation, {name: (2.0, 1.0)}, f"detector: {name} must be") for name in ("scale", "endcap")),
        (Variation, {"endcap": (0.0, 1.0)}, "detector: endcap must be"),
        (Variation, {"probability": 1.5}, "detector: probability must be"),
        (Variation, {"coarser": (0,)}, "detector: coarser must be"),
        (Variation, {"ecal_threshold": -1.0}, "detector: ecal_threshold must be"),
        (Disturbance, {"dead_cells": 1.5}, "dead_cells"),
        (Disturbance, {"energy_scale": -0.1}, "energy_scale"),
        (Disturbance, {"noise_hits": math.nan}, "noise_hits"),
        (CELLS, {"ecal_mm": 0.0}, "ecal_mm must be a length"),
        (CELLS, {"ecal_mm": "20"}, "ecal_mm must be a length in mm above 0, found '20'"),
        (CELLS, {"layers": 10**30}, "layers must be a whole number from 1 to 65535"),
        (CELLS, {"hcal_mm": math.inf}, "hcal_mm must be a length"),
        (CELLS, {"layers": 1.5}, "layers must be a whole number"),
        (CELLS, {"ecal_sizes": [5.0, 0.0]}, "ecal_sizes must be lengths in mm above 0"),
        (TokenConfig, {"merge": CELLS(ecal_sizes=[5.0])}, "ecal_sizes needs the hit feature token_size"),
        (Matching, {"cost": "best"}, "no matching cost 'best'"),
        *((Matching, {"cut": cut}, "cut must be a number above 0") for cut in (0.0, -1.0, math.inf, math.nan, "0.5")),
        *((HitMatching, {"min_overlap": overlap}, "above 0 and at most 1") for overlap in (0.0, 1.5)),
        (CALORIMETER, {"sim_time_window": (10.0, -1.0)}, "calorimeter 'x': sim_time_window"),
        (CALORIMETER, {"sim_time_window": (1.0,)}, "calorimeter 'x': sim_time_window"),
        (CALORIMETER, {"sim_deep_scale": (20.0,)}, "calorimeter 'x': sim_deep_scale"),
        *((HCAL, {"hadron_scale": n}, "hadron_scale must be from 0.3 to 3 .*, found") for n in (0.0, 79.0, math.inf)),
        (HCAL, {"electron_scale": 1.1}, "electron_scale is for an ECAL, not for kind 'hcal'"),
        (CALORIMETER, {"electron_scale": 5.0}, "electron_scale must be from 0.3 to 3, found 5.0"),
        (CALORIMETER, {"hadron_scale": 0.8}, "hadron_scale is for an HCAL, not for kind 'ecal'"),
        (CALORIMETER, {"kind": "tracker"}, "kind 'tracker' is not one of"),
        (CALORIMETER, {"region": "forward"}, "region 'forward' is not one of"),
        *((CALORIMETER, {"inner_radius": size}, "inner_radius must be a length in mm above 0") for size in (-1.0, 0.0)),
        (CALORIMETER, {"cell_size": math.nan}, "cell_size must be a length"),
        (CALORIMETER, {"sides": -3}, "sides must be at least 3, or 0 for a cylinder, found -3"),
        *((DETECTOR, {"b_field": field}, "b_field must be a field in T, not 0") for field in (0.0, math.nan, math.inf)),
        (CALORIMETER, {"region": "endcap", "inner_radius": 1.0}, "'endcap' begins at inner_z, found inner_radius"),
        (CALORIMETER, {"inner_z": 1.0}, "'barrel' begins at inner_radius, found inner_z"),
        (DETECTOR, {"hcal_inner_z": 100.0}, "hcal_inner_z must be above the face of the ECAL, 2307 mm, found 100"),
        (DETECTOR, {"ecal_inner_radius": 2200.0}, "2200 mm, and ecal_barrel begins at inner_radius 2150 mm"),
        (DETECTOR, {"ecal_inner_z": 230.7}, "ecal_inner_z is 230.7 mm, and ecal_endcap begins at inner_z 2307 mm"),
        (DETECTOR, {"hcal_inner_radius": 2500.0}, "2500 mm, and hcal_barrel begins at inner_radius 2400 mm"),
        (DETECTOR, {"ecal_outer_radius": 2000.0}, "ecal_outer_radius must be at least ecal_inner_radius, 2150 mm"),
        (DETECTOR, {"phi_symmetry": 8}, "phi_symmetry 8 does not divide the 12 sides of ecal_barrel"),
        (
            CALORIMETER,
            {"layers": (Layers(count=1, pitch=5.0, radiation_lengths=0.5, interaction_lengths=0.25),)},
            "0.5 interaction lengths per radiation length, expected 0.01 to 0.3",
        ),
        (Layers, {"count": 0, "pitch": 5.0}, "count must be above 0"),
        (DETECTOR, {"calorimeters": ()}, "has no calorimeters"),
        (DETECTOR, {"calorimeters": CLD.calorimeters[:1] * 2}, "names a calorimeter twice"),
        (DETECTOR, {"ecal_inner_radius": 0.0}, "must be a length in mm above 0"),
        (DETECTOR, {"ecal_inner_z": -1}, "must be a length in mm above 0"),
        (DETECTOR, {"phi_symmetry": 0}, "must be at least 1"),
        (TRUTH_TRACKS, {"inverse_pt": (1e-5,)}, "inverse_pt"),
        (TRUTH_TRACKS, {"angle": (1e-3, -1.0)}, "angle"),
        (TRUTH_TRACKS, {"impact": (0.1, 0.1, 0.1)}, "impact"),
        (TRUTH_TRACKS, {"sides": 2}, "sides"),
        (TokenConfig, {"rule": "stabel"}, "nearest matches: stable"),
        (TokenConfig, {"order": "enrgy"}, "nearest matches: energy"),
        (TokenConfig, {"hit_features": ("log_enrgy",)}, "nearest matches: log_energy"),
        (TokenConfig, {"hit_features": ()}, "at least one feature"),
        (TokenConfig, {"e_min": -1.0}, "e_min must be"),
        (TokenConfig, {"hit_energy_min": math.nan}, "hit_energy_min must be"),
        (TokenConfig, {"merge": {"ecal_mm": 10.0}}, "hcal_mm"),
        (TokenConfig, {"merge": {"ecal": 10.0}}, "merge: unknown field 'ecal' .*ecal_mm"),
        (TokenConfig, {"merge": 10.0}, "merge: expected a mapping"),
        (SCALE, {"transforms": ("log",)}, "nearest matches: log10"),
        (SCALE, {"mean": (math.nan,)}, "deviations above 0"),
        *((SCALE, {"std": (std,)}, "deviations above 0") for std in (0.0, -1.0)),
        (Calibration, {"energy": {"photn": Curve((0.0,), (0.0,))}}, "no uncertainty curve 'photn'"),
        (Curve, {"log_sigma": (0.0, 0.0), "log_factor": (0.0, 0.0)}, "expected increasing log_sigma"),
        (Curve, {"log_sigma": (0.0,), "log_factor": (0.0, 1.0)}, "expected increasing log_sigma"),
        (Curve, {"log_sigma": (), "log_factor": ()}, "expected increasing log_sigma"),
        (Response, {"log_energy": (0.0, 0.0), "log_factor": (0.0, 0.0)}, "expected increasing log_energy"),
        (PdgVocabulary, {"codes": (), "counts": ()}, "at least one"),
        (PdgVocabulary, {"codes": (22, 11), "counts": (1, 1)}, "increasing"),
        (PdgVocabulary, {"codes": (-22, 1), "counts": (1, 1)}, "increasing"),
        (PdgVocabulary, {"codes": (22,), "counts": ()}, "with a count each"),
        (ParticleFlow, {"lr": 0.0}, "expected lr > 0"),
        (ParticleFlow, {"weight_decay": -1.0}, "weight_decay"),
        (ParticleFlow, {"warmup": 1.0}, "warmup"),
        (ParticleFlow, {"final_lr": 2.0}, "final_lr"),
    ],
)
def test_options_that_cannot_work_are_errors_that_name_them(kind, options, message):
    with pytest.raises(ConfigError, match=message):
        kind(**options)
