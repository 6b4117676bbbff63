"""Autoregressive decoding of a translation network with random weights: with caches, and with every step anew.

Without caches each step encodes and decodes all of the batch again (`benchmarks.uncached`). The network never emits
<eos>, so that every event gets exactly `--particles` particles.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.timing import fastest
from benchmarks.uncached import generate_naively
from pflow.data.collate import collate
from pflow.io.open import read_events
from pflow.model.api import DecodingConfig, ModelInputs
from pflow.model.translation import TranslationNetworkConfig, TranslationReconstructor
from pflow.model.translation.special import EOS
from pflow.tokens.recipe import Recipe
from pflow.tokens.tokeniser import Tokeniser

__all__ = ["add_options", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", help="events with truth")
    parser.add_argument("--events", type=int, default=16, help="decoded together (default: %(default)s)")
    parser.add_argument("--particles", type=int, nargs="+", default=[5, 20, 80], help="default: %(default)s")
    parser.add_argument("--decoder", default="vanilla", choices=["vanilla", "multi_projection"])
    parser.add_argument("--runs", type=int, default=2, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch (default: %(default)s)")


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    events = read_events(args.file, entry_stop=args.events)
    tokeniser = Tokeniser.fit([events], Recipe())
    tokens = tokeniser.encode(events)
    batch = collate([tokens[i] for i in range(len(tokens))])
    torch.manual_seed(0)
    n_projections = 2 if args.decoder == "multi_projection" else None
    config = TranslationNetworkConfig(decoder=args.decoder, n_projections=n_projections)
    model = TranslationReconstructor(ModelInputs(**tokeniser.model_inputs), network=config).eval()
    with torch.no_grad():
        model.network.heads.classifiers["charge"][-1].bias[EOS] = -1e9
    print(f"{args.decoder}, {len(events)} events of up to {batch.hits.mask.shape[1]} hits, {args.threads} threads")
    print(f"{'particles':>9} {'cached [ms an event]':>21} {'uncached':>10} {'ratio':>6}")
    for n in args.particles:
        cached = fastest(args.runs, model.generate, batch, decoding=DecodingConfig(max_particles=n)) / len(events)
        uncached = fastest(1, generate_naively, model.network, batch, max_particles=n) / len(events)
        print(f"{n:9} {cached:21.1f} {uncached:10.1f} {uncached / cached:6.1f}", flush=True)
