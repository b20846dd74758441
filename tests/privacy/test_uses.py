"""The walk through autograd's graph takes no row of one record for that of another, and says where it has no rule."""

import pytest
import torch

from stages.privacy import onepass
from stages.privacy.uses import Unknown


def test_a_scaled_sum_has_no_rule():
    class Scaled:
        def features(self, parameters, records, merge):
            return {"x": torch.add(records["x"], parameters["p"], alpha=2.0)}

        def loss(self, parameters, features, present):
            return features["x"].sum()

    with pytest.raises(Unknown, match="scaled"):
        onepass.learned(Scaled(), {"p": torch.zeros(4, requires_grad=True)}, {"x": torch.ones(6, 4)})


class Toy(torch.nn.Module):
    """A layer in front of features of which the loss weighs each differently."""

    def __init__(self, layer: torch.nn.Module, use):
        super().__init__()
        self.layer, self._use = layer, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._use(self.layer, x)


class OfToy:
    one_by_one = bf16 = False

    def __init__(self, model: Toy):
        self._model = model

    def features(self, parameters, records, merge):
        return {"f": torch.func.functional_call(self._model, dict(parameters), (records["x"],))}

    def loss(self, parameters, features, present):
        each = torch.tanh(features["f"].flatten(1) * torch.arange(1.0, 1 + features["f"][0].numel())).sum(1)
        return torch.where(present, each, 0.0).sum()


class Scale(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def flat_norm(layer, x):
    return layer(x.reshape(-1, 2)).view(len(x), 3, 2)


def looks(layer, x):
    return layer(x) if (x > -100).all() else layer(x) * 1


IMAGES, ROWS, TOKENS = (6, 3, 2), (6, 6), (6, 5)
TOYS = {
    "a norm that becomes a sequence of one": (torch.nn.LayerNorm(6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a scale that becomes a sequence of one": (Scale(6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a layer that becomes a sequence of one": (torch.nn.Linear(6, 6), lambda f, x: f(x).view(len(x), 1, 6), ROWS, True),
    "a table, words first": (torch.nn.Embedding(11, 4), lambda f, x: f(x.T).mean(0), TOKENS, True),
    "a layer, words first": (torch.nn.Linear(2, 3), lambda f, x: f(x.transpose(0, 1)).transpose(0, 1), IMAGES, True),
    "a norm of flat rows": (torch.nn.LayerNorm(2), flat_norm, IMAGES, False),
    "records turned around inside": (torch.nn.Linear(6, 6), lambda f, x: f(x.flip(0)).flip(0), ROWS, False),
    "windows": (torch.nn.Linear(2, 2), lambda f, x: f(x.reshape(-1, 1, 2)).reshape(len(x), 3, 2), IMAGES, False),
    "a convolution over records": (
        torch.nn.Conv2d(2, 3, 1),
        lambda f, x: f(x.permute(1, 2, 0)[..., None])[..., 0].permute(2, 0, 1),
        IMAGES,
        False,
    ),
    "a look at the records": (torch.nn.Linear(6, 6), looks, ROWS, False),
}


@pytest.mark.parametrize("name", TOYS)
def test_no_unit_has_a_part_of_another(name):
    """Where the walk through the graph could take rows of one record for those of another, it must see it."""
    layer, use, shape, is_known = TOYS[name]
    generator = torch.Generator().manual_seed(0)
    some = [torch.randn(shape, generator=generator) for _ in range(2)]
    if shape == TOKENS:
        some = [torch.randint(11, shape, generator=generator) for _ in range(2)]
    other = torch.cat([some[0][:2], some[1][2:]])
    model = Toy(layer, use)
    objective, parameters = OfToy(model), dict(model.named_parameters())
    if not is_known:
        with pytest.raises(Unknown):
            onepass.learned(objective, parameters, {"x": some[0]})
        return
    known, present = onepass.learned(objective, parameters, {"x": some[0]}), torch.ones(3, 2, dtype=torch.bool)
    made = [
        onepass.gradients(objective, parameters, {"x": x.reshape(3, 2, *shape[1:])}, present, known)[0]
        for x in (some[0], other)
    ]
    alone = objective.loss(parameters, objective.features(parameters, {"x": some[0][:2]}, False), present[0])
    for key, expected in zip(parameters, torch.autograd.grad(alone, list(parameters.values())), strict=True):
        first, second = (each[key].whole(each[key].block(0, each[key].rows))[0] for each in made)
        assert torch.equal(first, second), key
        assert torch.allclose(first, expected, atol=1e-5), key
