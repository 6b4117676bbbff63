"""Training: FLOP/s of a step against a plain matrix product on the same machine, and what the losses' masks cost.

    python scripts/bench_training.py [--quick] [--batch 16] [--hits 1000] [--particles 20]

A step is forward, losses, backward and Adam, in float32. Its FLOP are those of linear maps, on the tokens that pass
through them, and of attention between real tokens (a causal one in full). The losses are timed apart, on the same
predictions: as they are, and without any mask or rule of what to ignore. Times are the fastest of several.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from bench_events import add_common_options, network, now, random_batch
from pflow.data.batch import Batch
from pflow.model.translation import TranslationLossConfig
from pflow.model.translation.loss import ParticleLoss
from pflow.model.translation.network import ParticleTransformer


def seconds(run: Callable[[], object], device: str, repeats: int = 5) -> float:
    """Fastest time of `run`, after one run that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = now(device)
        run()
        times.append(now(device) - start)
    return min(times)


def matrix_product(device: str, size: int) -> float:
    """FLOP/s of a product of two square matrices in float32."""
    a, b = (torch.randn(size, size, device=device) for _ in range(2))
    return 2 * size**3 / seconds(lambda: a @ b, device)


def flop_of_step(model: ParticleTransformer, batch: Batch) -> float:
    """Forward products of linear maps and attentions, times 3 for the two products of backward."""
    total = 0.0

    def linear(module: torch.nn.Linear, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        nonlocal total
        total += 2 * inputs[0].shape[:-1].numel() * module.in_features * module.out_features

    maps = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [module.register_forward_hook(linear) for module in maps]
    with torch.no_grad():
        model(batch)
    for hook in hooks:
        hook.remove()
    S = batch.hits.mask.sum(1).double() + 2  # bos and eos
    T = batch.target.mask.shape[1] + 1
    W = model.source.encoder.layers[0].attention.out.in_features
    D = model.target.width  # of the decoder, whose branches share it where there are several
    attention = len(model.source.encoder.layers) * 4 * W * S.square().sum()
    attention += len(model.decoder.layers) * 4 * D * (T * T * len(batch) + T * S.sum())
    return 3 * (total + attention.item())


def without_masks(prediction: dict[str, Tensor], batch: Batch) -> Tensor:
    """The same losses on every position: nothing ignored, nothing masked."""
    target = batch.target
    total = sum(
        cross_entropy(prediction[name][:, :-1].flatten(0, 1), getattr(target, name).flatten() + 3)
        for name in ("charge", "pdg")
    )
    for name in ("energy", "direction"):
        total = total + mse_loss(prediction[name][:, :-1], getattr(target, name))
    return total


def measure(decoder: str, options: argparse.Namespace, peak: float) -> None:
    """One line of the table."""
    model, loss = network(decoder, device=options.device), ParticleLoss(special="flags", config=TranslationLossConfig())
    batch = random_batch(
        events=options.batch, hits=options.hits, particles=options.particles, fill=0.8, device=options.device
    )
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimiser.zero_grad()
        loss(model(batch), batch)["total"].backward()
        optimiser.step()

    whole = seconds(step, options.device, options.repeats)
    rate = flop_of_step(model, batch) / whole
    made = {name: value.detach().requires_grad_() for name, value in model(batch).items()}
    masked = seconds(lambda: loss(made, batch)["total"].backward(), options.device, 20)
    plain = seconds(lambda: without_masks(made, batch).backward(), options.device, 20)
    print(
        f"{decoder:17}{1e3 * whole:9.0f}{len(batch) / whole:11.1f}{rate / 1e9:9.1f}{100 * rate / peak:9.0f}%"
        f"{1e3 * masked:10.2f}{1e3 * plain:9.2f}{100 * (masked - plain) / whole:11.2f}%",
        flush=True,
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help="events")
    parser.add_argument("--hits", type=int, default=1000, help="the most an event has; the least is 80%% of it")
    parser.add_argument("--particles", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.quick:
        options.hits, options.repeats = 200, 3
    torch.set_num_threads(options.threads)
    peak = matrix_product(options.device, 2048 if options.device == "cpu" else 8192)
    print(
        f"device {options.device}, {options.threads} threads, torch {torch.__version__}; "
        f"a plain matrix product: {peak / 1e9:.1f} GFLOP/s\n"
        f"{options.batch} events of {int(0.8 * options.hits)} to {options.hits} hits, {options.particles} particles"
    )
    print(
        f"{'decoder':17}{'ms/step':>9}{'events/s':>11}{'GFLOP/s':>9}{'of peak':>10}"
        f"{'losses ms':>10}{'no mask':>9}{'difference':>12}"
    )
    for decoder in ("vanilla", "multi_projection"):
        measure(decoder, options, peak)


if __name__ == "__main__":
    main(sys.argv[1:])
