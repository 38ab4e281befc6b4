"""The hidden folder that a writer of records fills before it publishes them."""

from pathlib import Path
from types import TracebackType
from typing import TypeVar

from dataloading.feature_spec import FeatureSpec
from dataloading.tf_raw import copy_vocabularies
from utils.scratch import Scratch

Self = TypeVar("Self", bound="InHiddenFolder")


class InHiddenFolder:
    """A context manager that removes the writer's hidden folder at its end; the writer itself makes it, as `_scratch`."""

    _scratch: Scratch

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._scratch.remove()

    @property
    def folder(self) -> Path:
        """The hidden folder; other files placed here are published with the records."""
        return self._scratch.folder

    def copy_vocabularies(self, spec: FeatureSpec) -> None:
        """Publish `spec`'s vocabularies with the records, if there are any."""
        copy_vocabularies(spec, self.folder)
