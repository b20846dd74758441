"""What a source of data is: an entry of params.yaml that says how many records it has, and hands them over.

A source is one file of this folder with a class like this one. Its fields are what params.yaml may say of it. It is
found by its name, the value of `source` there; no other file lists it.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from stages.data.rows import Dataset
from stages.sections import Section


class QuickLook(NamedTuple):
    n: int  # training units
    has_labels: bool  # class labels


class Source(Section, ABC):
    """Data are private unless they are declared public, and the test split is public unless it is declared private."""

    section: ClassVar[str] = "prepare"  # of params.yaml; `folders` for files of one's own, whose `path` DVC watches

    source: str  # its name, or names, as a Literal; with a default where the section alone says which source it is
    public: bool = False  # whether a model may be pretrained on it without privacy; nothing private is trained on it
    private_test: bool = False  # scores then stay on this machine: they are neither published nor sent to Prefect

    @abstractmethod
    def quick_look(self) -> QuickLook:
        """What can be said without reading an image; a UserError if the raw data are not there."""

    @abstractmethod
    def load(self) -> Dataset:
        """The rows of both splits, as streams. What can be wrong with the raw data is reported before the first row."""

    @property
    @abstractmethod
    def origin(self) -> object:
        """Equal for two entries that take their records from the same place, whatever part of them each takes.

        Paths overlap where one is in the other. By this no model is pretrained on the private data of the sweep.
        """

    @property
    def has_questions(self) -> bool:
        """Whether images come with questions, in place of captions or labels."""
        return False
