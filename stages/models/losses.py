"""The CLIP loss of a batch, equation (1) of the paper. It is not a sum over records: every pair is in every term."""

import torch
import torch.nn.functional as F


def clip_loss(model: torch.nn.Module, images: torch.Tensor, texts: list[str], tokenize) -> torch.Tensor:
    """-1/b sum_i log softmax_j(s_ij / tau)_ii - 1/b sum_i log softmax_j(s_ji / tau)_ii."""
    # Equal texts have equal features: each distinct one is encoded once, which leaves the gradient as it is.
    distinct = list(dict.fromkeys(texts))
    index = torch.tensor([distinct.index(t) for t in texts], device=images.device)
    image_features = model.encode_image(images, normalize=True)  # (b, d)
    text_features = model.encode_text(tokenize(distinct).to(images.device), normalize=True)[index]  # (b, d)
    similarity = model.logit_scale.exp() * image_features @ text_features.T  # (b, b)
    own = torch.arange(len(texts), device=images.device)
    return F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)
