import numpy as np
import pytest

from pflow.event.events import Events
from pflow.event.schema import make_hits, make_links, make_tracker_hits, make_tracks, make_truth
from pflow.physics.detector import load_detector
from pflow.tokens.tokeniser import Tokeniser
from pflow.tokens.tokens import TokenConfig


@pytest.fixture(scope="session")
def events() -> Events:
    """Three events: photons of 5 and 20 GeV; a pi- of 3 GeV with its track and a K+ of 3 GeV; nothing."""
    detector = load_detector("ild_g4")
    return Events(
        detector=detector,
        path="made/by/hand.root",
        entry=[7, 8, 9],
        hits=make_hits(
            energy=[[5.0, 12.0, 8.0], [2.0, 2.5, 0.0], []],
            x=[[1810.0, 0.0, 10.0], [0.0, 1900.0, 1900.0], []],
            y=[[0.0, 1820.0, 1830.0], [1850.0, 0.0, 10.0], []],
            z=[[0.0, 100.0, 120.0], [-500.0, 30.0, 20.0], []],
            time=[[6.0, 6.1, 6.2], [6.5, 6.3, 7.0], []],
            subdetector=[[0, 0, 0], [2, 0, 0], []],
            layer=[[0, 1, 2], [3, 4, 5], []],
        ),
        tracks=make_tracks(
            b_field=detector.b_field,
            px=[[], [0.0], []],
            py=[[], [2.9], []],
            pz=[[], [-0.75], []],
            charge=[[], [-1.0], []],
            calo_x=[[], [5.0], []],
            calo_y=[[], [1805.0], []],
            calo_z=[[], [-480.0], []],
            # Turned by 10 mrad in azimuth, and by 20 mrad towards the transverse plane.
            calo_px=[[], [-2.9 * np.sin(0.01)], []],
            calo_py=[[], [2.9 * np.cos(0.01)], []],
            calo_pz=[[], [-2.9 * np.tan(np.arctan(0.75 / 2.9) - 0.02)], []],
        ),
        tracker_hits=make_tracker_hits(x=[[], [1.0, 2.0], []], y=[[], [17.0, 30.0], []], z=[[], [-4.0, -8.0], []]),
        truth=make_truth(
            pdg=[[22, 22], [-211, 321], []],
            charge=[[0.0, 0.0], [-1.0, 1.0], []],
            mass=[[0.0, 0.0], [0.1395704, 0.493677], []],
            px=[[5.0, 0.0], [0.0, 2.9591], []],
            py=[[0.0, 19.9], [2.9, 0.0], []],
            pz=[[0.0, 2.0], [-0.75, 0.05], []],
        ),
        hit_links=make_links(source=[[0, 1, 2], [0, 1, 2], []], particle=[[0, 1, 1], [0, 1, 1], []]),
        track_links=make_links(source=[[], [0], []], particle=[[], [0], []]),
    ).validate()


@pytest.fixture(scope="session")
def config() -> TokenConfig:
    """Hits with everything the events have, tracks and tracker hits."""
    return TokenConfig(
        hit_features=("log_energy", "x", "y", "z", "time", "ecal"),
        track_features=("log_p", "nx", "ny", "nz", "charge"),
        tracker_hit_features=("x", "y", "z"),
    )


@pytest.fixture(scope="session")
def tokeniser(events: Events, config: TokenConfig) -> Tokeniser:
    return Tokeniser.fit([events[:1], events[1:]], config)
