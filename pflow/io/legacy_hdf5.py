"""The HDF5 files of the first paper: one row a hit or track, features and labels side by side.

Groups ``feature`` and ``label`` each hold an Awkward array [event, row, column] taken apart with `ak.to_buffers`: the
form as JSON and the length in the group's attributes, the buffers as datasets. Columns:

=========== ============================================================================================
``feature`` edep [GeV], x, y, z [mm], time [ns], track (1 for a track, 0 for a hit), charge, px, py, pz [GeV]
``label``   hitid, mcid, pdg, charge, mass, px, py, pz [GeV], status
=========== ============================================================================================

The columns are those of the data loader of the paper's code. A hit has charge and momentum 0. A track has energy 0; x,
y, z are where it enters the calorimeter, and px, py, pz its momentum there. ``hitid`` counts hits from 1 and is not
positive for tracks. ``mcid`` is the number of the particle within its event, negative for none; each of its rows
repeats its ``pdg`` to ``status``.
``status`` is the simulator's, not the generator's, so of the truth rules only ``calo`` (the paper's) fits these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import h5py
import numpy as np
import numpy.typing as npt

from pflow.errors import ConfigError, InputError, first_line, nearest, reading
from pflow.event import jagged
from pflow.event.build import make_hits, make_links, make_tracks, make_truth
from pflow.event.events import Events
from pflow.physics.detector import Detector, load_detector
from pflow.physics.kinematics import momentum_at_perigee

__all__ = ["FEATURES", "LABELS", "LegacyReader", "subdetectors"]

FEATURES = ("edep", "x", "y", "z", "time", "track", "charge", "px", "py", "pz")
"""Columns of the group ``feature``."""

LABELS = ("hitid", "mcid", "pdg", "charge", "mass", "px", "py", "pz", "status")
"""Columns of the group ``label``."""

DAMAGED = "cannot be read, damaged file"

Rows = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]


class LegacyReader:
    """An open HDF5 file of the first paper; fulfils `pflow.io.reader.Reader`. The detector is ``ild_g4`` by default.

    Hits have no subdetector in these files: it follows from their position (see `subdetectors`). The momentum of a
    track at its vertex follows from that at the calorimeter, back along the helix to the z axis. Truth particles are
    the distinct ``mcid`` of an event in rising order, so that an index takes the place of the ``mcid``.
    """

    schema = "legacy-hdf5"
    tree = None
    truth_tracks = False
    uuid = ""
    absent: tuple[str, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}

    def __init__(self, path: str | Path, *, detector: Detector | str | Path | None = None) -> None:
        self.path = str(path)
        self.detector = load_detector("ild_g4" if detector is None else detector)
        _calorimeter_indices(self.detector)
        if not Path(path).exists():
            raise InputError("no such file", file=path)
        with reading("expected an HDF5 file of the first paper, cannot open it", file=path):
            self._file = h5py.File(path, "r")
        try:
            self._features = _Table(self._file, "feature", FEATURES, self.path)
            self._labels = _Table(self._file, "label", LABELS, self.path)
            self.num_entries = len(self._features.offsets) - 1
            self._compare_lengths()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._file.close()

    def read(self, start: int, stop: int, *, truth: bool = True) -> Events:
        """Read entries without validating them; see `pflow.io.reader.Reader.read`."""
        stop = min(stop, self.num_entries)
        start = min(start, stop)
        counts = np.diff(self._features.offsets[start : stop + 1])
        column = dict(zip(FEATURES, self._features.rows(start, stop).T, strict=True))
        event = jagged.event_index(counts)
        track = column["track"] > 0.5

        def by_event(values: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> ak.Array:
            return ak.unflatten(values[mask], np.bincount(event[mask], minlength=len(counts)))

        subdetector = subdetectors(column["x"], column["y"], column["z"], self.detector)
        parts: dict[str, Any] = {
            "hits": make_hits(
                energy=by_event(column["edep"], ~track),
                subdetector=by_event(subdetector, ~track),
                **{name: by_event(column[name], ~track) for name in ("x", "y", "z", "time")},
            ),
            "tracks": self._tracks({name: by_event(values, track) for name, values in column.items()}),
        }
        if truth:
            labels = dict(zip(LABELS, self._labels.rows(start, stop).T, strict=True))
            parts["truth"], particle = self._truth(labels, event, counts, start)
            named = particle >= 0
            for name, kind in (("hit_links", ~track), ("track_links", track)):
                source = ak.local_index(by_event(event, kind), axis=1)
                linked = by_event(named, kind)
                parts[name] = make_links(source=source[linked], particle=by_event(particle, kind)[linked])
        entry = np.arange(start, stop, dtype=np.int64)
        return Events(detector=self.detector, path=self.path, entry=entry, event=entry, **parts)

    def _compare_lengths(self) -> None:
        features, labels = np.diff(self._features.offsets), np.diff(self._labels.offsets)
        if len(features) != len(labels):
            message = f"expected as many events as in 'feature', {len(features)}, found {len(labels)}"
            raise InputError(message, file=self.path, field="label")
        for entry in np.flatnonzero(features != labels)[:1]:
            message = f"expected as many rows as in 'feature', {features[entry]}, found {labels[entry]}"
            raise InputError(message, file=self.path, entry=int(entry), field="label")

    def _tracks(self, at_calo: Mapping[str, ak.Array]) -> ak.Array:
        x, y, px, py, charge = (jagged.flat(at_calo[name], np.float64) for name in ("x", "y", "px", "py", "charge"))
        counts = jagged.count(at_calo["x"])
        vertex_px, vertex_py = momentum_at_perigee(x, y, px, py, charge, self.detector.b_field)
        return make_tracks(
            b_field=self.detector.b_field,
            px=ak.unflatten(vertex_px, counts),
            py=ak.unflatten(vertex_py, counts),
            pz=at_calo["pz"],
            charge=at_calo["charge"],
            **{f"calo_{name}": at_calo[name] for name in ("x", "y", "z", "px", "py", "pz")},
        )

    def _truth(self, label: Mapping[str, Rows], event: Index, counts: Index, start: int) -> tuple[ak.Array, Index]:
        """Truth particles [event, particle], and the particle of each row (index in its event, -1 none)."""
        for name in ("mcid", "pdg"):
            wrong = np.flatnonzero(label[name] != np.rint(label[name]))  # NaN too
            if wrong.size:
                raise InputError(
                    f"expected a whole number for {name}, found {label[name][wrong[0]]}",
                    file=self.path,
                    entry=start + int(event[wrong[0]]),
                    field="label",
                )
        mcid = label["mcid"].astype(np.int64)
        named = np.flatnonzero(mcid >= 0)
        pairs = np.stack([event[named], mcid[named]], axis=1)
        distinct, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        n_particles = np.bincount(distinct[:, 0], minlength=len(counts))
        row = named[first]
        particle = np.full(len(mcid), -1)
        particle[named] = inverse.reshape(-1) - jagged.offsets(n_particles)[event[named]]
        columns: dict[str, npt.NDArray[Any]] = {
            name: label[name][row] for name in ("pdg", "charge", "mass", "px", "py", "pz")
        }
        columns["pdg"] = columns["pdg"].astype(np.int64)
        columns["status"] = np.nan_to_num(label["status"][row]).astype(np.int64).astype(np.uint32).view(np.int32)
        return make_truth(**{name: ak.unflatten(values, n_particles) for name, values in columns.items()}), particle


def subdetectors(
    x: npt.NDArray[Any], y: npt.NDArray[Any], z: npt.NDArray[Any], detector: Detector
) -> npt.NDArray[np.int32]:
    """Calorimeter of each hit from its position, mm: index into ``detector.calorimeters``, int32.

    Beyond the front face of the ECAL's endcap (``ecal_inner_z``) a hit is in the endcap, in the HCAL's from
    ``hcal_inner_z``; else in the barrel, in the HCAL's from ``hcal_inner_radius``. Right for cylindrical barrels.
    A `ConfigError` if the detector does not say where its HCAL begins, or lacks one of the four calorimeters.
    """
    index = _calorimeter_indices(detector)
    endcap = np.abs(z) >= detector.ecal_inner_z
    hcal = np.where(endcap, np.abs(z) >= detector.hcal_inner_z, np.hypot(x, y) >= detector.hcal_inner_radius)
    return np.asarray(index[hcal.astype(int), endcap.astype(int)])


def _calorimeter_indices(detector: Detector) -> npt.NDArray[np.int32]:
    """Index of the calorimeters, int32 [ecal or hcal, barrel or endcap]."""
    if detector.hcal_inner_radius is None or detector.hcal_inner_z is None:
        raise ConfigError(
            f"detector '{detector.name}' does not say where its HCAL begins (hcal_inner_radius, hcal_inner_z in mm);"
            " the first paper's files hold no subdetector, so it is needed"
        )
    first: dict[tuple[str, str], int] = {}
    for index, calorimeter in enumerate(detector.calorimeters):
        first.setdefault((calorimeter.kind, calorimeter.region), index)
    try:
        table = [[first[kind, region] for region in ("barrel", "endcap")] for kind in ("ecal", "hcal")]
    except KeyError as error:
        raise ConfigError(f"detector '{detector.name}' has no {' '.join(error.args[0])}") from error
    return np.array(table, dtype=np.int32)


class _Table:
    """Rows of columns of one group, read a range of events at a time; `offsets` of the events, int64 [event + 1].

    Ranges are read from the datasets of [event, row, column] with a fixed number of columns, as the paper's files have
    them; an array of any other form is read as a whole.
    """

    def __init__(self, file: h5py.File, name: str, columns: tuple[str, ...], path: str) -> None:
        self._where: dict[str, Any] = {"file": path, "field": name}
        self._width = len(columns)
        self._data: Any  # numbers, [row, column] or one row after the other
        with reading(DAMAGED, **self._where):
            group = file.get(name)
            if not isinstance(group, h5py.Group):
                raise self._error("no such group; expected groups 'feature' and 'label'", nearest(name, file))
            form, length = self._attributes(group)
            offsets, self._data, width = _in_place(form, group) or self._whole(form, length, group)
            self.offsets: Index = np.asarray(offsets[()], dtype=np.int64)[: length + 1]
        if width != self._width and self._data.size:
            raise self._error(f"expected {self._width} columns ({', '.join(columns)}), found {width}")
        rows = self._data.size // self._width
        rise = (np.diff(self.offsets) >= 0).all()
        if not (len(self.offsets) == length + 1 and rise and self.offsets[0] >= 0 and self.offsets[-1] <= rows):
            raise self._error(f"the offsets do not fit: expected {length + 1} that rise up to at most {rows} rows")

    def rows(self, start: int, stop: int) -> Rows:
        """Rows of the events `start` to `stop` (exclusive), float64 [row, column]."""
        numbers = self._width if self._data.ndim == 1 else 1
        first, last = int(self.offsets[start]) * numbers, int(self.offsets[stop]) * numbers
        with reading(f"events up to {stop} {DAMAGED}", entry=start, **self._where):
            return np.asarray(self._data[first:last], dtype=np.float64).reshape(-1, self._width)

    def _attributes(self, group: h5py.Group) -> tuple[ak.forms.Form, int]:
        found: list[Any] = []
        for name, what, convert in (
            ("form", "an Awkward form as JSON", lambda text: ak.forms.from_json(text)),
            ("length", "a number of events", int),
        ):
            if name not in group.attrs:
                raise self._error(f"attribute '{name}' is missing", nearest(name, group.attrs))
            try:
                found.append(convert(group.attrs[name]))
            except Exception as error:  # Awkward raises errors of many types
                raise self._error(f"attribute '{name}' must be {what}: {first_line(error)}") from error
        if found[1] < 0:
            raise self._error(f"attribute 'length' must be a number of events, found {found[1]}")
        return found[0], found[1]

    def _whole(self, form: ak.forms.Form, length: int, group: h5py.Group) -> tuple[Index, npt.NDArray[Any], int]:
        expected = "expected an Awkward array [event, row, column] of numbers as ak.to_buffers takes it apart"
        try:
            buffers = {key.removeprefix("part0-"): value[()] for key, value in group.items()}
            numbers = {key: value for key, value in buffers.items() if value.dtype.kind in "fiu"}
            array = ak.from_buffers(form, length, numbers)
            flat = ak.to_numpy(ak.to_regular(ak.flatten(array, axis=1), axis=1))
            offsets = jagged.offsets(ak.to_numpy(ak.num(array, axis=1)))
        except Exception as error:  # whatever a form that does not fit its buffers makes Awkward raise
            raise self._error(f"{expected}: {first_line(error)}") from error
        if flat.ndim != 2 or flat.dtype.kind not in "fiu":
            raise self._error(f"{expected}, found {array.type}")
        return offsets, flat, flat.shape[1]

    def _error(self, message: str, suggestions: list[str] | None = None) -> InputError:
        return InputError(message, suggestions=suggestions or (), **self._where)


def _in_place(form: ak.forms.Form, group: h5py.Group) -> tuple[Any, Any, int] | None:
    """Datasets of offsets and numbers, and the number of columns, if the form is the paper's; else None."""
    if not (form.is_list and form.content.is_regular and form.content.content.is_numpy):
        return None
    for prefix in ("", "part0-"):  # Awkward 1
        offsets = group.get(f"{prefix}{form.form_key}-offsets")
        data = group.get(f"{prefix}{form.content.content.form_key}-data")
        if _is_vector(offsets, "iu") and _is_vector(data, "fiu"):
            return offsets, data, int(form.content.size)
    return None


def _is_vector(dataset: Any, kinds: str) -> bool:
    return isinstance(dataset, h5py.Dataset) and dataset.ndim == 1 and dataset.dtype.kind in kinds
