"""The configuration of a run: all options together."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

from utils.config.data import DataConfig
from utils.config.device import DeviceConfig
from utils.config.learning import OptimizerConfig, RegularisationConfig, ScheduleConfig
from utils.config.option import options_of
from utils.config.options import EVAL, TRAIN, ModelConfig, TrainingConfig
from utils.config.per_feature import FeatureConfig
from utils.config.placement import PlacementConfig
from utils.config.ranking import RankingConfig
from utils.config.run import RunConfig
from utils.config.serving import ExportConfig


@dataclass(frozen=True)
class Config:
    """All options of a run.

    `given` names the flags given on the command line or in the configuration file, `in_file` those that come from the file.
    """

    run: RunConfig
    data: DataConfig
    features: FeatureConfig
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    regularisation: RegularisationConfig
    training: TrainingConfig
    ranking: RankingConfig
    placement: PlacementConfig
    device: DeviceConfig
    export: ExportConfig
    given: frozenset[str] = frozenset()
    in_file: frozenset[str] = frozenset()
    file: str | None = None
    legacy: tuple[str, ...] = ()  # warnings about NVIDIA's flags
    names: Mapping[str, str] = field(default_factory=dict)  # the user's names of flags, by their names here

    def __post_init__(self):
        options, plateau = self.training, self.schedule.reduces_on_plateau
        needing = [*options.need_evaluations, *(["--lr_schedule plateau"] if plateau else [])]
        if self.run.mode == TRAIN and needing and not options.evals_per_epoch and options.test_freq is None:
            raise ValueError(f"{needing[0]} needs evaluations, and --evals_per_epoch 0 turns them off; drop one of them, or add --test_freq")

        if self.run.mode == TRAIN and self.model.batch_norm and self.data.batch_size == 1:
            raise ValueError("--batch_norm --batch_size 1: one sample has no variance to normalise by; give at least 2 samples")
        if self.run.untrained and self.run.mode == EVAL and options.restore_checkpoint_path is not None:
            raise ValueError("--untrained and --restore_checkpoint_path exclude each other; drop one of them")
        if self.features.embedding_sizes_file is not None and "embedding_dim" in self.given:
            raise ValueError("--embedding_sizes_file and --embedding_dim set the same option; drop one of them")
        warmup = self.schedule.deep_warmup_epochs
        if self.run.mode == TRAIN and warmup is not None and warmup > options.epochs and not plateau:
            which, advice = f"--deep_warmup_epochs {warmup:g}", ""
            if "deep_warmup_epochs" not in self.given:
                which, advice = f"{which} (the default)", f"; give --deep_warmup_epochs, 0 to {options.epochs}"
            raise ValueError(f"{which}: expected at most --epochs {options.epochs}{advice}")

    def flat(self) -> dict[str, Any]:
        """Return the values of all options, by their flags' names."""
        values: dict[str, Any] = {}
        for name in PARTS:
            values |= asdict(getattr(self, name))
        return values


PARTS: Mapping[str, type] = {part.name: part.type for part in fields(Config) if is_dataclass(part.type)}  # groups of options, by name
GROUPS = tuple(PARTS.values())
OPTIONS = options_of(GROUPS)  # all options, by name
