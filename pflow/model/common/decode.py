"""Writing the particles of events, one after the other.

The encoder runs once, the memory's keys and values are projected once, those of past tokens are kept, and events that
are finished leave the batch. Letters: B batch, T particles, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import Tensor

from pflow.data.batch import Batch
from pflow.model.common.cache import Compaction
from pflow.model.translation.embed import TargetTokens
from pflow.model.translation.network import ParticleTransformer
from pflow.model.translation.special import SAMPLE

__all__ = ["GeneratedParticles", "Sampler", "generate"]


@dataclasses.dataclass(frozen=True)
class GeneratedParticles:
    """Particles as written; T is the longest event's number of them.

    Parameters
    ----------
    charge, pdg : int64 [B, T], physical indices from 0
    energy : float32 [B, T], log10(E / GeV), normalised
    direction : float32 [B, T, 3], unit vector
    score : float32 [B, T], probability of the chosen `pdg` among the physical classes
    mask : bool [B, T], True = real particle
    truncated : bool [B], True = `max_particles` were written and the event had not ended
    pdg_probability : float32 [B, T, V] or None, probability of each physical `pdg`
    energy_sigma : float32 [B, T] or None, standard deviation of ln E
    direction_sigma : float32 [B, T] or None, that of each of the two angles in the tangent plane, rad
    hit_fraction : float32 [B, T, N] or None, share of each hit of the readout that the particle has taken
    track_fraction : float32 [B, T, K] or None, the same of each track
    """

    charge: Tensor
    pdg: Tensor
    energy: Tensor
    direction: Tensor
    score: Tensor
    mask: Tensor
    truncated: Tensor
    pdg_probability: Tensor | None = None
    energy_sigma: Tensor | None = None
    direction_sigma: Tensor | None = None
    hit_fraction: Tensor | None = None
    track_fraction: Tensor | None = None


class Sampler:
    """How a class is chosen from logits: the most probable, or drawn at a temperature.

    Draws are made for all events of a batch at each step, those that are finished included, so that the tokens of one
    do not depend on when others end.

    Parameters
    ----------
    temperature
        Logits are divided by it before drawing; None: the most probable class.
    generator
        Source of randomness, of any device; torch's global one where None.
    batch
        B.

    Raises
    ------
    ValueError
        If `temperature` is not positive, or `generator` comes without it.
    """

    def __init__(self, *, temperature: float | None, generator: torch.Generator | None, batch: int) -> None:
        if temperature is not None and not 0.0 < temperature < float("inf"):
            raise ValueError(f"temperature: {temperature} is not a positive number")
        if generator is not None and temperature is None:
            raise ValueError("generator: the most probable classes are chosen without one; give a temperature to draw")
        self._temperature = temperature
        self._generator = generator
        self._batch = batch

    @property
    def draws(self) -> bool:
        """Whether classes are drawn."""
        return self._temperature is not None

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Choose for the events `rows` int64 [B'] of the batch, from `logits` [B', V]; int64 [B']."""
        if self._temperature is None:
            return logits.argmax(-1)
        device = logits.device if self._generator is None else self._generator.device
        uniform = torch.rand(self._batch, logits.shape[-1], generator=self._generator, device=device)
        uniform = uniform.clamp(min=torch.finfo(uniform.dtype).tiny).to(logits.device)
        gumbel = -torch.log(-torch.log(uniform))  # the largest of logits + Gumbel noise is a draw from their softmax
        return (logits.float() / self._temperature + gumbel[rows]).argmax(-1)


@torch.inference_mode()
def generate(
    model: ParticleTransformer,
    batch: Batch,
    *,
    max_particles: int,
    temperature: float | None = None,
    generator: torch.Generator | None = None,
) -> GeneratedParticles:
    """Write the particles of each event of `batch`.

    Parameters
    ----------
    model
        In evaluation mode.
    batch
        On the model's device; its target, if any, is not looked at.
    max_particles
        The most particles an event may have.
    temperature
        Draw classes from the softmax of logits divided by it; None: take the most probable (deterministic).
    generator
        Source of randomness for drawing; torch's global one where None.

    Returns
    -------
    GeneratedParticles

    Raises
    ------
    ValueError
        If `max_particles` or `temperature` is not positive, `generator` comes without a temperature, or the model is in
        training mode.
    """
    if max_particles < 1:
        raise ValueError(f"max_particles: {max_particles} is not positive")
    if model.training:
        raise ValueError("model: it is in training mode; call model.eval() first")
    size = len(batch)
    device = batch.hits.mask.device
    choice = Sampler(temperature=temperature, generator=generator, batch=size)
    written = _empty(size, max_particles, device)
    rows = torch.arange(size, device=device)  # which event each row of the shrinking batch is
    tokens = TargetTokens.bos(size, device)
    state = model.start(model.encode(batch), max_particles + 1)
    longest = 0
    for position in range(max_particles + 1):
        prediction = model.step(tokens, state)
        pick = model.special.pick(prediction, functools.partial(choice, rows=rows))
        if position == max_particles:
            written.truncated[rows] = ~pick.ended
            break
        new = {
            "charge": pick.charge,
            "pdg": pick.pdg,
            "energy": prediction["energy"],
            "direction": prediction["direction"],
            "score": pick.score,
        }
        if bool(pick.ended.any()):
            compaction = Compaction.of(~pick.ended)
            if compaction.size == 0:
                break
            rows = compaction.apply(rows)
            state.compact(compaction)
            new = {name: compaction.apply(value) for name, value in new.items()}
        for name, value in new.items():
            getattr(written, name)[rows, position] = value
        written.mask[rows, position] = True
        longest = position + 1
        tokens = TargetTokens(
            charge=new["charge"][:, None],
            pdg=new["pdg"][:, None],
            energy=new["energy"][:, None],
            direction=new["direction"][:, None],
            kind=torch.full_like(new["pdg"], SAMPLE)[:, None],
        )
    return _first(written, longest)


def _empty(size: int, length: int, device: torch.device) -> GeneratedParticles:
    return GeneratedParticles(
        charge=torch.zeros(size, length, dtype=torch.int64, device=device),
        pdg=torch.zeros(size, length, dtype=torch.int64, device=device),
        energy=torch.zeros(size, length, device=device),
        direction=torch.zeros(size, length, 3, device=device),
        score=torch.zeros(size, length, device=device),
        mask=torch.zeros(size, length, dtype=torch.bool, device=device),
        truncated=torch.zeros(size, dtype=torch.bool, device=device),
    )


def _first(written: GeneratedParticles, length: int) -> GeneratedParticles:
    names = ("charge", "pdg", "energy", "direction", "score", "mask")
    return dataclasses.replace(written, **{name: getattr(written, name)[:, :length].clone() for name in names})
