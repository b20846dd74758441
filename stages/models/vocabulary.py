"""A WordPiece vocabulary of its own for a small BLIP, from public texts. Words it does not know are spelled."""

import json
import string
from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]")  # the last two are BLIP's


def learn(texts: Iterable[str], size: int, most_tokens: int) -> dict[str, bytes]:
    """Files of a tokenizer with at most `size` tokens."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    alphabet = [*string.ascii_lowercase, *string.digits, *".,'-?!"]
    letters = [*alphabet, *(f"##{c}" for c in string.ascii_lowercase + string.digits)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *letters],  # as such they are there whatever the texts are
        continuing_subword_prefix="##",
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(set(texts)), trainer)
    # Letters were given as special tokens to be kept; in the file they are ordinary ones.
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in SPECIAL]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": most_tokens}
    facts |= {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": (json.dumps(facts, indent=2) + "\n").encode(),
    }
