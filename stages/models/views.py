"""How a record is looked at in a step: how often, and how its image is varied each time.

All of it is inside a record's own clip: its views share one gradient, that of their mean loss, which is clipped as one.
What is drawn for a view depends on the key, the step and the record's own place, and on no other record. So neither
changes the sensitivity or the accounting. Views beyond the first give a record's gradient less of the chance of one
text, one question or one crop, which is noise that the clip would keep; they cost that many passes.

    >>> import numpy as np, torch
    >>> grey = torch.full((1, 3, 4, 4), 0.5)
    >>> Variation(colour=0.2).of(grey, np.ones((1, NUMBERS)))[0, :, 0, 0]
    tensor([0.8000, 0.8000, 0.8000])
"""

from typing import TYPE_CHECKING

from stages.sections import Fraction, Section

if TYPE_CHECKING:  # takes seconds, and params.yaml is read by the fields below
    import numpy as np
    import torch

NUMBERS = 9  # drawn for a view


class Variation(Section):
    """Of an image after its preprocessing. Choose what leaves its texts true: a flip makes "left of" wrong."""

    shift: Fraction | None = None  # of its width and height, at most; the border is repeated
    colour: Fraction | None = None  # each channel times 1 ± this at most, plus at most ± this
    flip: bool = False  # left and right, of every other view

    def of(self, images: "torch.Tensor", draws: "np.ndarray") -> "torch.Tensor":
        """(b, 3, height, width), and (b, NUMBERS) of [0, 1) for them."""
        import torch

        given = torch.from_numpy(draws).to(images)
        if self.shift:
            across, down = ((2 * given[:, i] - 1) * self.shift for i in (0, 1))
            rows, columns = (_moved(by, size) for by, size in zip((down, across), images.shape[2:], strict=True))
            each, channels = (torch.arange(size)[:, None, None] for size in images.shape[:2])
            images = images[each[..., None], channels, rows[:, None, :, None], columns[:, None, None, :]]
        if self.colour:
            by = (self.colour * (2 * given[:, 2:8] - 1)).view(-1, 2, 3, 1, 1)
            images = images * (1 + by[:, 0]) + by[:, 1]
        if self.flip:
            images = torch.where((given[:, 8] < 0.5).view(-1, 1, 1, 1), images.flip(3), images)
        return images


def _moved(by: "torch.Tensor", size: int) -> "torch.Tensor":
    """(b, size): from which row, or column, each one comes."""
    import torch

    moves = (by * size).round().long()[:, None]
    return (torch.arange(size)[None] + moves).clamp(0, size - 1)
