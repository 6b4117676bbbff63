"""Where the next particle starts, and whether there is one. Letters: B batch, T particles, S source tokens, W width."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pflow.model.common.attention import absorbed_products
from pflow.model.common.layers import FullyConnected
from pflow.model.pointing.geometry import Scene

__all__ = ["MASKED_LOGIT", "SeedPointer"]

MASKED_LOGIT = -1e4
"""Logit of padding and of tokens that are no seed: finite, so that an event without tokens has gradients."""


class SeedPointer(nn.Module):
    """Probabilities of the next seed and of the end of the sequence.

    Each token has a logit that a particle starts there: the product of state and token, a second such product times the
    token's assigned fraction, and a third times the logarithm of its unassigned energy. The end has a logit of the
    state alone. The probabilities of all tokens and of the end sum to 1.

    Parameters
    ----------
    width
        W of decoder states and memory.
    hidden_width
        Length of the vectors that are multiplied.
    """

    def __init__(self, *, width: int, hidden_width: int) -> None:
        super().__init__()
        self.hidden_width = hidden_width
        self.state = nn.Linear(width, 3 * hidden_width)
        self.token = nn.Linear(width, 3 * hidden_width)
        self.offset = nn.Parameter(torch.empty(3))
        self.eos = FullyConnected((width, width, 1), activation="gelu")

    @torch.no_grad()
    def initialise(self) -> None:
        """Set the initial offsets: small logits, smaller ones for assigned tokens."""
        self.offset.copy_(torch.tensor([-3.0, -3.0, 0.5]))

    def project(self, memory: Tensor) -> Tensor:
        """What is multiplied by states, of a memory float [B, S, W]; float [B, 3, hidden, S]."""
        keys = torch.matmul(self.token.weight, memory.transpose(1, 2)) + self.token.bias[:, None]
        return keys.view(len(memory), 3, self.hidden_width, memory.shape[1])

    def forward(self, state: Tensor, memory: Tensor, scene: Scene, assigned: Tensor) -> Tensor:
        """Log probabilities float [B, T, S + 1] of each token and, last, of the end.

        Parameters
        ----------
        state : float [B, T, W], decoder states
        memory : float [B, S, W], or `project` of it
        scene
            Scene of the batch.
        assigned : float [B, T, S], assigned fraction of each token
        """
        query = self.state(state).unflatten(-1, (3, self.hidden_width)) * self.hidden_width**-0.5  # [B, T, 3, hidden]
        if memory.ndim == 4:
            products = torch.matmul(query.transpose(1, 2), memory) + self.offset[:, None, None]  # [B, 3, T, S]
        else:
            key, shift = self.token.weight.view(3, self.hidden_width, -1), self.token.bias.view(3, -1)
            constant = torch.einsum("btch,ch->bct", query, shift) + self.offset[:, None]
            products = absorbed_products(query, key, memory, constant[..., None])
        plain, of_assigned, of_energy = products.unbind(1)  # [B, T, S] each
        log_unassigned_energy = (scene.token_energy[:, None] * (1.0 - assigned) + 1e-3).log()
        logits = plain + of_assigned * assigned + of_energy * log_unassigned_energy
        logits = logits.masked_fill(~scene.token_mask[:, None], MASKED_LOGIT)
        return torch.cat([logits, self.eos(state)], dim=-1).log_softmax(-1)
