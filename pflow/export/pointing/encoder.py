"""The encoder's graph: from hits and tracks to what the decoder and the refinement read.

Letters: N hits, K tracks, S tokens (cells, then tracks), M items (hits, then tracks), W width, H heads, D = W / H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pflow.checkpoint.load import Model
from pflow.data.batch import Batch, Readout, TokenSet
from pflow.export.attention_scan import attend_by_scan
from pflow.export.pointing.cells import Hits, merge_hits
from pflow.model.pointing.config import PointingDecodingConfig
from pflow.model.pointing.decoder import N_CHARGE
from pflow.model.pointing.decoder_steps_one_event import StepWeights
from pflow.model.pointing.geometry import IS_TRACK, ITEM_FEATURES, LAYER, Scene, make_scene
from pflow.model.pointing.network import PointingNetwork
from pflow.tokens.features import FEATURES
from pflow.tokens.readout import entry_of_tracks
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["EncoderGraph", "scene_of"]

SCENE = (
    *(f"token_{name}" for name in ("position", "unit", "axis", "energy", "is_track", "momentum", "charge")),
    *(f"item_{name}" for name in ("energy", "weight", "position", "unit", "token", "features")),
)
"""Fields of a scene that are outputs."""


TRACK_FIELDS = ("momentum", "charge", "calo_position", "calo_momentum")
"""Fields of tracks that the network reads in any case; others where a feature needs them."""


class EncoderGraph(nn.Module):
    """From the arrays of `inputs` to `outputs`, by position.

    Parameters
    ----------
    model
        With a `pflow.model.pointing.PointingReconstructor`.
    network
        Its network, in evaluation mode, on the CPU.
    decoding
        Its largest number of particles.
    """

    def __init__(self, model: Model, network: PointingNetwork, decoding: PointingDecodingConfig) -> None:
        super().__init__()
        recipe = model.tokeniser.config
        self.tokeniser = model.tokeniser
        self.network, self.decoding = network, decoding
        self.weights = StepWeights(network)
        times = ("time",) if "time" in recipe.hit_features else ()
        self.hit_fields = ("energy", "position", "subdetector", "layer", *times)
        names = recipe.track_features
        self.track_fields = (*TRACK_FIELDS, *(one for one in ("d0", "z0", "omega") if one in names)) if names else ()
        self.inputs = (*(f"hit_{name}" for name in self.hit_fields), *(f"track_{name}" for name in self.track_fields))
        self.outputs: tuple[str, ...] = ()
        for layer in network.encoder.stack.layers:
            layer.attention.attend_nearby = attend_by_scan

    def forward(self, *arrays: Tensor) -> tuple[Tensor, ...]:
        """Encode."""
        values = self.values(dict(zip(self.inputs, arrays, strict=True)))
        self.outputs = tuple(values)
        return tuple(values.values())

    def values(self, arrays: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs by name."""
        tokeniser = self.tokeniser
        hit_index = (arrays["hit_energy"] > tokeniser.config.hit_energy_min).nonzero().squeeze(1)  # [N]
        kept = {name: arrays[f"hit_{name}"].index_select(0, hit_index) for name in self.hit_fields}
        subdetector, layer = kept["subdetector"].long(), kept["layer"].long()
        hits = Hits(kept["energy"], kept["position"], kept.get("time"), subdetector, layer)
        cells = merge_hits(hits, tokeniser.config.merge, tokeniser.detector)
        tracks = {name: arrays[f"track_{name}"] for name in self.track_fields}
        features = {"hits": _features("hits", cells.hits._asdict(), tokeniser)}
        if tracks:
            features["tracks"] = _features("tracks", tracks, tokeniser)
        batch = _batch(features, _readout(hits, cells.cell_of, tracks))
        scene = make_scene(batch, n_subdetectors=self.network.n_subdetectors)
        states = self.network.encoder.of_event(features["hits"], features.get("tracks"), scene.token_unit[0])
        for_steps = self._for_steps(scene, states)
        return {
            "hit_index": hit_index,
            "states": states,
            **{name: getattr(scene, name)[0] for name in SCENE},
            **for_steps,
            **{f"initial_{name}": value for name, value in self._first_step(scene, states, for_steps).items()},
        }

    def _for_steps(self, scene: Scene, states: Tensor) -> dict[str, Tensor]:
        """What all decoder steps read of the event."""
        layers = self.weights.layers
        width = states.shape[1] // layers[0].heads
        weight = torch.cat([part for one in layers for part in (one.key_weight, one.value_weight)])
        heads = torch.matmul(states, weight.t()).view(-1, weight.shape[0] // width, width).transpose(0, 1)
        names = [f"memory_{part}_{i}" for i in range(len(layers)) for part in ("key", "value")]
        memory = zip(names, torch.split(heads, layers[0].heads), strict=True)  # [H, S, D] each
        unit, momentum = scene.item_unit[0], scene.token_momentum[0].double()
        theta = torch.atan2(torch.hypot(unit[:, 0], unit[:, 1]), unit[:, 2])
        token = scene.item_token[0]
        features = scene.item_features[0].double()
        is_track = features[:, IS_TRACK : IS_TRACK + 1]
        subdetector = features[:, ITEM_FEATURES:]
        track_momentum = momentum[token] * is_track
        # Columns of `item_sums`: energy of hits, momentum of tracks, number of hits, momentum (3), number of tracks,
        # charge, position (3), 1, and by subdetector whether the item is in it, then its layer if it is.
        sums = [
            scene.item_energy[0].double()[:, None],
            track_momentum.square().sum(1, keepdim=True).sqrt(),
            1.0 - is_track,
            track_momentum,
            is_track,
            scene.token_charge[0].double()[token][:, None] * is_track,
            scene.item_position[0].double(),
            torch.ones_like(is_track),
            subdetector,
            features[:, LAYER : LAYER + 1] * subdetector,
        ]
        pointer = self.network.decoder.pointer
        order = torch.cumsum(torch.ones_like(token), 0) - 1
        first_track = (~scene.token_is_track[0]).long().sum(0, keepdim=True)
        tracks = scene.token_is_track[0].nonzero().squeeze(1)
        n_hits = (is_track[:, 0] == 0).long().sum(0, keepdim=True)
        # With a track that is never open: an empty axis ends onnxruntime.
        none = torch.zeros_like(first_track)
        of_tracks = {
            "first_track": first_track,  # its token, if there is one
            "track_items": torch.cat([tracks - first_track + n_hits, none]),
            "track_tokens": torch.cat([tracks, none]),
            "track_limits": torch.cat([torch.full_like(tracks, 0.5, dtype=torch.float32), none.float() + 2.0]),
        }
        return {
            **of_tracks,
            "limit": self._limit(n_hits, torch.ones_like(tracks).sum(0, keepdim=True)),
            **dict(memory),
            "pointer_keys": pointer.token(states).view(-1, 3, pointer.hidden_width).transpose(0, 1),
            "item_logits": self.network.assignment.pair_logits.items(states[None], scene)[0],
            "item_direction": unit.double().t(),  # [3, M]
            "item_geometry": torch.cat([scene.item_position[0], unit, theta[:, None] / 0.003], dim=1),
            "item_sums": torch.cat(sums, dim=1),
            "item_order": order,
            # One of the items of each token: the last of several.
            "token_item": torch.zeros_like(scene.token_energy[0], dtype=torch.int64).scatter(0, token, order),
            "token_inverse_energy": 1.0 / scene.token_energy[0].clamp(min=1e-9),
            "token_frame": self._frames(scene),
            "token_codes": self._codes(scene),
            "nothing": torch.zeros_like(scene.item_energy[0]),
            "item_square": scene.item_weight[0].square(),
        }

    def _limit(self, n_hits: Tensor, n_tracks: Tensor) -> Tensor:
        """Largest number of particles, int64 [1]; see `pflow.model.pointing.config.PointingDecodingConfig.limits`."""
        smallest, hits_per_particle = self.decoding.max_particles, self.decoding.hits_per_particle
        by_size = n_tracks + n_hits // hits_per_particle if hits_per_particle else torch.zeros_like(n_tracks)
        return by_size.clamp(min=smallest)

    def _frames(self, scene: Scene) -> Tensor:
        """What a step reads of the token of its seed, float [S, F]; see `pflow.export.pointing.step.frame_widths`.

        Columns: n axes [n, 7], flattened; minus the products [n] of these with the token's own geometry; its unit
        vector [3]. An axis is multiplied with the ``item_geometry`` of an item: position (3), unit vector (3), polar
        angle (1) in units of 3 mrad. The product less that of the token is, one axis after the other

        - the distance along the shower's axis, mm;
        - with `delta_features`, the difference in polar angle in units of 3 mrad, and the arc in azimuth in units of 10
          mrad;
        - the components of the distance across the shower's axis, mm (3);
        - the components of the difference of the unit vectors (3).
        """
        position, unit, axis = scene.token_position[0], scene.token_unit[0], scene.token_axis[0]
        x, y, z = torch.split(unit, 1, dim=1)
        rho, none = torch.hypot(x, y), torch.zeros_like(unit)
        null = none[:, :1]
        axes = [torch.cat([axis, none, null], dim=1)]  # [S, 7] each
        if self.network.assignment.pair_logits.delta_features:
            unit_of_arc = 0.01 * rho.clamp(min=1e-3)
            axes.append(torch.cat([none, none, null + 1.0], dim=1))
            axes.append(torch.cat([none, -y / unit_of_arc, x / unit_of_arc, null, null], dim=1))
        across = torch.eye(3) - axis[:, :, None] * axis[:, None]  # [S, 3, 3]
        both = torch.eye(7)[:6] * torch.ones_like(null)[..., None]  # [S, 6, 7]
        across = torch.cat([functional.pad(across, (0, 4)), both[:, 3:]], dim=1)
        axes_of = torch.cat([torch.stack(axes, dim=1), across], dim=1)  # [S, n, 7]
        origin = torch.cat([position, unit, torch.atan2(rho, z) / 0.003], dim=1)
        projected = (axes_of * origin[:, None]).sum(2)
        return torch.cat([axes_of.flatten(1), -projected, unit], dim=1)

    def _codes(self, scene: Scene) -> Tensor:
        """What seed and code determine of a particle, float [S, V, F]; see `pflow.export.pointing.particle`.

        Columns, in the order of `Particle.chosen` where they are of its numbers:

        - whether energy and direction (4) are those of the seed's track, and whether the charge (`N_CHARGE`) is known,
          as that of the track or as neutral;
        - the values of these: ln(E / GeV) (1), unit vector (3), and for each charge whether it is that (`N_CHARGE`);
        - the code (V), as 0 and 1;
        - whether the seed is a track (1).
        """
        momentum = scene.token_momentum[0][:, None]  # [S, 1, 3]
        is_track = scene.token_is_track[0].float()[:, None, None]
        p = momentum.square().sum(2, keepdim=True).sqrt()
        head = self.network.head
        energy = (p.square() + head.get_buffer("masses")[:, None].square()).sqrt().clamp(min=1e-6)  # [S, V, 1]
        charged = head.get_buffer("charged").float()[:, None]
        by_track = is_track * (p > 0).float() * charged  # [S, V, 1]
        charge = by_track * scene.token_charge[0].sign()[:, None, None]
        known = torch.maximum(by_track, 1.0 - charged)
        signs = torch.tensor([-1.0, 0.0, 1.0])
        fields = [
            by_track.expand(-1, -1, 4),
            known.expand(-1, -1, N_CHARGE),
            energy.log(),
            (momentum / p.clamp(min=1e-12)).expand(-1, head.n_pdg, -1),
            (charge == signs).float(),
            torch.eye(head.n_pdg).expand(p.shape[0], -1, -1),
            is_track.expand(-1, head.n_pdg, -1),
        ]
        return torch.cat(fields, dim=2)

    def _first_step(self, scene: Scene, states: Tensor, memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state before the first decoder step, with empty keys and values. No output may be a constant."""
        first, layers = states[:1], range(len(self.weights.layers))
        return {
            "embedded": torch.zeros_like(first) + self.network.decoder.bos,
            **{f"past_key_{i}": memory[f"memory_key_{i}"][:, :0] for i in layers},
            **{f"past_value_{i}": memory[f"memory_value_{i}"][:, :0] for i in layers},
            "unassigned": torch.ones_like(scene.item_energy[0]),
            "assigned_energy": torch.zeros_like(scene.token_energy[0]),
            "empty_steps": torch.zeros_like(first[:, 0], dtype=torch.int64),
        }


def scene_of(values: Mapping[str, Tensor]) -> Scene:
    """The scene of one event from the encoder's outputs."""
    fields: dict[str, Any] = {name: values[name][None] for name in SCENE}
    fields |= {"token_mask": torch.ones_like(fields["token_is_track"])}
    fields |= {"item_mask": torch.ones_like(fields["item_energy"], dtype=torch.bool)}
    return Scene.of(**fields, n_hits=values["hit_index"].shape[0])


def _features(part: str, fields: Mapping[str, Tensor | None], tokeniser: Tokeniser) -> Tensor:
    """Normalised features of hits or tracks, float [N, F]."""
    columns: dict[str, Any] = {}
    for name, values in fields.items():
        if values is not None and values.ndim == 2:
            axes = ("px", "py", "pz") if name.endswith("momentum") else "xyz"
            columns |= {f"{name}.{axis}": values[:, i].double() for i, axis in enumerate(axes)}
        else:
            columns[name] = values
    scale = tokeniser.scales[part]
    computed = [FEATURES[part][name].compute(columns, tokeniser.detector) for name in scale.names]
    return torch.stack(list(scale.normalised(computed)), dim=1).float()


def _batch(features: Mapping[str, Tensor], readout: Readout) -> Batch:
    """A batch of one event without padding."""
    sets: dict[str, Any] = {
        part: TokenSet(values[None], torch.ones_like(values[None, :, 0], dtype=torch.bool), full=True)
        for part, values in features.items()
    }
    return Batch(**sets, readout=readout)


def _readout(hits: Hits, token: Tensor, tracks: Mapping[str, Tensor]) -> Readout:
    """The readout of one event, see `pflow.tokens.readout`."""
    null = hits.position[:0]
    momentum, position = tracks.get("momentum", null), tracks.get("calo_position", null)
    at_calorimeter = tracks.get("calo_momentum", null)
    charge = tracks.get("charge", null[:, 0])
    position, direction = entry_of_tracks(momentum, position, at_calorimeter)
    return Readout(
        energy=hits.energy[None],
        position=hits.position[None],
        subdetector=hits.subdetector[None],
        layer=hits.layer[None],
        token=token[None],
        mask=torch.ones_like(hits.energy[None], dtype=torch.bool),
        track_momentum=momentum[None],
        track_charge=charge[None],
        track_position=position[None],
        track_direction=direction.float()[None],
        track_mask=torch.ones_like(charge[None], dtype=torch.bool),
    )
