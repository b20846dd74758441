"""The linear contrastive loss of the paper's Section 5: its gradient, its minimisers, and distances between encoders.

    L(G) = -tr(G1 S G2^T) + (alpha / 4) ||G G^T - I||_F^2,        G = [G1, G2] is r x (d1 + d2)

S is the sample cross-covariance of the two modalities: 1/n sum_i x_i y_i^T - 1/(n (n-1)) sum_{i != j} x_i y_j^T, which
is unbiased for any n >= 2. Every function takes leading dimensions, so that many trials go at once.
"""

from dataclasses import dataclass

import torch


def cross_covariance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(..., n, d1) and (..., n, d2) -> (..., d1, d2).

    >>> x, y = torch.tensor([[1.0], [2.0], [6.0]]), torch.tensor([[0.0], [3.0], [3.0]])
    >>> cross_covariance(x, y)
    tensor([[3.]])
    """
    n = x.shape[-2]
    return (x.mT @ y - x.sum(-2)[..., :, None] * y.sum(-2)[..., None, :] / n) / (n - 1)


def penalty_gradient(g: torch.Tensor, alpha: float) -> torch.Tensor:
    return alpha * (g @ g.mT @ g - g)


def loss(g: torch.Tensor, s: torch.Tensor, alpha: float) -> torch.Tensor:
    d1 = s.shape[-2]
    signal = ((g[..., :d1] @ s) * g[..., d1:]).sum((-2, -1))
    excess = g @ g.mT - torch.eye(g.shape[-2], dtype=g.dtype)
    return alpha / 4 * excess.square().sum((-2, -1)) - signal


def gradient(g: torch.Tensor, s: torch.Tensor, alpha: float) -> torch.Tensor:
    d1 = s.shape[-2]
    signal = torch.cat([g[..., d1:] @ s.mT, g[..., :d1] @ s], dim=-1)
    return penalty_gradient(g, alpha) - signal


def curvature(g: torch.Tensor, s: torch.Tensor, alpha: float, z: torch.Tensor) -> torch.Tensor:
    """The second derivative of the loss at G in the direction Z (not divided by ||Z||^2)."""
    d1 = s.shape[-2]
    penalty = (g @ z.mT + z @ g.mT).square().sum((-2, -1)) / 2  # tr(Z G^T Z G^T) + tr(Z^T Z G^T G)
    penalty = penalty + ((g @ g.mT) * (z @ z.mT)).sum((-2, -1)) - z.square().sum((-2, -1))
    return alpha * penalty - 2 * ((z[..., :d1] @ s) * z[..., d1:]).sum((-2, -1))


def minimiser(s: torch.Tensor, r: int, alpha: float) -> torch.Tensor:
    """The closed form of the lemma "global minimum", with V = I; every other minimiser is a rotation of it."""
    p, values, q = torch.linalg.svd(s, full_matrices=False)
    scale = ((1 + values[..., :r, None] / alpha) / 2).sqrt()
    return torch.cat([scale * p[..., :r].mT, scale * q[..., :r, :]], dim=-1)


def distance(g: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """min over orthogonal O of ||O G - to||_F: orthogonal Procrustes.

    >>> g = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    >>> round(distance(g, -g[[1, 0]]).item(), 6), round(distance(g, 2 * g).item() ** 2, 6)
    (0.0, 5.0)
    """
    u, _, v = torch.linalg.svd(to @ g.mT)
    return (u @ v @ g - to).square().sum((-2, -1)).sqrt()


def lost_information(g: torch.Tensor, of: torch.Tensor, d1: int) -> torch.Tensor:
    """The larger, over the two modalities, of min over A of ||A G_i - G*_i||_F: what no linear map brings back.

    >>> star = torch.eye(2, 4, dtype=torch.float64)
    >>> round(lost_information(torch.tensor([[3.0, 1.0], [1.0, 1.0]], dtype=torch.float64) @ star, star, 2).item(), 6)
    0.0
    """

    def beyond(mine: torch.Tensor, its: torch.Tensor) -> torch.Tensor:
        basis = torch.linalg.qr(mine.mT).Q
        return (its - its @ basis @ basis.mT).square().sum((-2, -1)).sqrt()

    return torch.maximum(beyond(g[..., :d1], of[..., :d1]), beyond(g[..., d1:], of[..., d1:]))


@dataclass(frozen=True)
class Constants:
    """Of the lemma on the Hessian, by the singular values of S: in a ball of `gamma` around the minimiser the second
    derivative is at most `beta_u`, and at least `beta_l` towards the minimiser."""

    beta_u: float
    beta_l: float
    gamma: float

    @classmethod
    def of(cls, s: torch.Tensor, r: int, alpha: float) -> "Constants":
        values = torch.linalg.svdvals(s)
        first = values[..., 0].max().item()
        gap = (values[..., r - 1] - (values[..., r] if values.shape[-1] > r else 0.0)).min().item()
        gamma = min(1.0, gap / (18 * alpha * (1 + first / alpha) ** 0.5))
        return cls(8 * first + 12 * alpha, gap / 2, gamma)
