"""The HDF5 files of the first paper: one row a hit or track, features and labels side by side.

Groups ``feature`` and ``label`` each hold an Awkward array [event, row, column] taken apart with `ak.to_buffers`: the
form as JSON and the length in the group's attributes, the buffers as datasets. Columns:

=========== ============================================================================================
``feature`` edep [GeV], x, y, z [mm], time [ns], track (1 for a track, 0 for a hit), charge, px, py, pz [GeV]
``label``   hitid, mcid, pdg, charge, mass, px, py, pz [GeV], status
=========== ============================================================================================

The columns follow the data loader of the paper's code. A hit has charge and momentum 0. A track has energy 0; x,
y, z are where it enters the calorimeter, and px, py, pz its momentum there. ``hitid`` counts hits from 1 and is not
positive for tracks. ``mcid`` is the number of the particle within its event, negative for none; each of its rows
repeats its ``pdg`` to ``status``. ``status`` is the simulator's, not the generator's, so of the truth rules only
``calo`` (the paper's) fits these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, reading
from pflow.event import jagged
from pflow.event.events import Events
from pflow.event.schema import make_hits, make_tracks, make_truth
from pflow.io.flat import links_of
from pflow.io.root import check_counts
from pflow.physics.arrays import Floats, Index, Mask
from pflow.physics.detector import Detector, load_detector
from pflow.physics.kinematics import perigee

FEATURES = ("edep", "x", "y", "z", "time", "track", "charge", "px", "py", "pz")  # columns of the group ``feature``
LABELS = ("hitid", "mcid", "pdg", "charge", "mass", "px", "py", "pz", "status")  # columns of the group ``label``


class LegacyReader:
    """An open HDF5 file of the first paper; fulfils `pflow.io.open.Reader`. The detector is ``ild_g4`` by default.

    The subdetector of a hit follows from its position, a track's momentum at its vertex from that at the calorimeter,
    back along the helix to the z axis. Truth particles are the distinct ``mcid`` of an event in rising order.
    """

    schema = "legacy-hdf5"
    tree = None
    truth_tracks = False
    uuid = ""
    absent: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    notes: Mapping[str, str] = {}

    def __init__(self, path: str | Path, *, detector: Detector | str | Path | None = None) -> None:
        self.path = str(path)
        self.detector = load_detector("ild_g4" if detector is None else detector)
        subdetectors(none := np.zeros(0), none, none, self.detector)  # refuses a detector that cannot tell them
        if not Path(path).exists():
            raise InputError("no such file", file=path)
        with ExitStack() as stack:  # closes the file after any error here, Ctrl-C too
            with reading("expected an HDF5 file of the first paper, cannot open it", file=path):
                file = stack.enter_context(h5py.File(path, "r"))
            self._features = _Table(file, "feature", FEATURES, self.path)
            self._labels = _Table(file, "label", LABELS, self.path)
            n_rows, n_labels = np.diff(self._features.offsets), np.diff(self._labels.offsets)
            if len(n_rows) != len(n_labels):
                message = f"expected as many events as in 'feature', {len(n_rows)}, found {len(n_labels)}"
                raise InputError(message, file=self.path, field="label")
            text = "expected as many rows as in 'feature', {1}, found {0}"
            check_counts(n_labels, n_rows, text, file=self.path, start=0, field="label")
            self.num_entries = len(n_rows)
            self.close = stack.pop_all().close

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read entries without validating them; see `pflow.io.open.Reader`."""
        counts = np.diff(self._features.offsets[start : stop + 1])
        column = dict(zip(FEATURES, self._features.rows(start, stop).T, strict=True))
        event = jagged.event_index(counts)
        # All columns are of one array of floats, the flag as well.
        track = column["track"] > 0.5

        def by_event(values: npt.NDArray[Any], mask: Mask) -> ak.Array:
            # minlength: the last events may have no such rows.
            return jagged.unflatten(values, np.bincount(event[mask], minlength=len(counts)))

        hit = {name: values[~track] for name, values in column.items()}
        hits = {name: hit[name] for name in ("x", "y", "z", "time")} | {"energy": hit["edep"]}
        hits["subdetector"] = subdetectors(hit["x"], hit["y"], hit["z"], self.detector)
        at_calo = {name: column[name][track] for name in ("x", "y", "z", "px", "py", "pz", "charge")}
        _, _, px, py = perigee(*at_calo.values(), b_field=self.detector.b_field)
        tracks = {f"calo_{name}": values for name, values in at_calo.items() if name != "charge"}
        tracks |= {"px": px, "py": py, "pz": at_calo["pz"], "charge": at_calo["charge"]}
        of_tracks = {name: by_event(values, track) for name, values in tracks.items()}
        parts: dict[str, Any] = {
            "hits": make_hits(**{name: by_event(values, ~track) for name, values in hits.items()}),
            "tracks": make_tracks(b_field=self.detector.b_field, **of_tracks),
        }
        if truth:
            labels = dict(zip(LABELS, self._labels.rows(start, stop).T, strict=True))
            parts["truth"], particle = self._truth(labels, event, counts, start)
            parts["hit_links"] = links_of(by_event(particle[~track], ~track))
            parts["track_links"] = links_of(by_event(particle[track], track))
        entry = np.arange(start, stop, dtype=np.int64)
        return Events(detector=self.detector, path=self.path, entry=entry, event=entry, **parts)

    def _truth(self, label: Mapping[str, Floats], event: Index, counts: Index, start: int) -> tuple[ak.Array, Index]:
        """Truth particles [event, particle], and the particle of each row (index in its event, -1 none)."""
        for name in ("mcid", "pdg"):
            for wrong in np.flatnonzero(label[name] != np.rint(label[name]))[:1]:  # NaN too
                message = f"expected a whole number for {name}, found {label[name][wrong]}"
                raise InputError(message, file=self.path, entry=start + int(event[wrong]), field="label")
        mcid = label["mcid"].astype(np.int64)
        named = np.flatnonzero(mcid >= 0)
        # Numbers of particles begin at 0 in each event, so only with the event they are distinct.
        pairs = np.stack([event[named], mcid[named]], axis=1)
        distinct, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        n_particles = np.bincount(distinct[:, 0], minlength=len(counts))
        row, particle = named[first], np.full(len(mcid), -1)
        # NumPy 2.0 gives the inverse the shape [row, 1].
        particle[named] = inverse.reshape(-1) - jagged.offsets(n_particles)[event[named]]
        columns: dict[str, Any] = {name: label[name][row] for name in ("charge", "mass", "px", "py", "pz")}
        columns["pdg"] = label["pdg"][row].astype(np.int64)
        # The status is a field of 32 bits: where the highest is set, the number may not fit into int32 as it is.
        columns["status"] = np.nan_to_num(label["status"][row]).astype(np.int64).astype(np.uint32).view(np.int32)
        return make_truth(**{name: ak.unflatten(values, n_particles) for name, values in columns.items()}), particle


def subdetectors(x: Floats, y: Floats, z: Floats, detector: Detector) -> npt.NDArray[np.int32]:
    """Calorimeter of each hit from its position, mm: index into ``detector.calorimeters``, int32.

    Beyond the front face of the ECAL's endcap (``ecal_inner_z``) a hit is in the endcap, in the HCAL's from
    ``hcal_inner_z``; else in the barrel, in the HCAL's from ``hcal_inner_radius``. Right for cylindrical barrels.
    A `ConfigError` if the detector does not say where its HCAL begins, or lacks one of the four calorimeters.
    """
    if detector.hcal_inner_radius is None or detector.hcal_inner_z is None:
        needed = "hcal_inner_radius, hcal_inner_z in mm: the first paper's files hold no subdetector"
        raise ConfigError(f"detector '{detector.name}' does not say where its HCAL begins ({needed})")
    # Reversed, as of several calorimeters of one kind and region the first is to remain.
    last_first = reversed(list(enumerate(detector.calorimeters)))
    first = {(calorimeter.kind, calorimeter.region): index for index, calorimeter in last_first}
    try:
        table = [[first[kind, region] for region in ("barrel", "endcap")] for kind in ("ecal", "hcal")]
    except KeyError as error:
        raise ConfigError(f"detector '{detector.name}' has no {' '.join(error.args[0])}") from error
    endcap = np.abs(z) >= detector.ecal_inner_z
    hcal = np.where(endcap, np.abs(z) >= detector.hcal_inner_z, np.hypot(x, y) >= detector.hcal_inner_radius)
    return np.asarray(np.array(table, dtype=np.int32)[hcal.astype(int), endcap.astype(int)])


class _Table:
    """Rows of one group, read a range of events at a time; `offsets` of the events, int64 [event + 1]."""

    def __init__(self, file: h5py.File, name: str, columns: tuple[str, ...], path: str) -> None:
        self._where: dict[str, Any] = {"file": path, "field": name}
        self._width = len(columns)
        expected = f"expected {self._width} columns ({', '.join(columns)}) as ak.to_buffers takes them apart"
        with reading(f"not a group of the first paper's, or damaged; {expected}", **self._where):
            group = file[name]
            form, length = ak.forms.from_json(group.attrs["form"]), int(group.attrs["length"])
            prefix = "part0-" if f"part0-{form.form_key}-offsets" in group else ""  # Awkward 1
            # Awkward's buffers may be longer than the array that uses them.
            self.offsets: Index = np.asarray(group[f"{prefix}{form.form_key}-offsets"], dtype=np.int64)[: length + 1]
            self._data = group[f"{prefix}{form.content.content.form_key}-data"]  # one row after the other
            if form.content.size != self._width or self._data.ndim != 1 or self._data.dtype.kind not in "fiu":
                raise InputError(f"{expected}, found {form.content.type}", **self._where)
        rows = self._data.size // self._width
        rise = (np.diff(self.offsets) >= 0).all()
        if not (length + 1 == len(self.offsets) > 0 and rise and self.offsets[0] >= 0 and self.offsets[-1] <= rows):
            message = f"the offsets do not fit: expected {length + 1} that rise up to at most {rows} rows"
            raise InputError(message, **self._where)

    def rows(self, start: int, stop: int) -> Floats:
        """Rows of the events `start` to `stop` (exclusive), float64 [row, column]."""
        first, last = (int(self.offsets[event]) * self._width for event in (start, stop))
        with reading(f"events up to {stop} cannot be read, damaged file", entry=start, **self._where):
            return np.asarray(self._data[first:last], dtype=np.float64).reshape(-1, self._width)
