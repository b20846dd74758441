"""What is clipped in a private step: each method is one file of this folder, found by its name.

A method is a class derived from mechanism.py, named METHOD in its file. Its values are `train.methods.NAME` of
params.yaml, `NAME` the name of the file.
"""

from importlib import import_module

from stages import keys
from stages.privacy.mechanism import Mechanism

METHODS: dict[str, type[Mechanism]] = {name: import_module(f"{__name__}.{name}").METHOD for name in keys.METHODS}
