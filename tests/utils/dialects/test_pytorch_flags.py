"""The flags of NVIDIA's DLRM for PyTorch keep their meaning, and a message states the name used here."""

import pytest

from utils.config.ineffective import warnings
from utils.dialects.command_line import UsageError, parse
from utils.dialects.pytorch_flags import translated

SYNTHETIC = ("--dataset_type", "synthetic")


@pytest.mark.parametrize(
    ("words", "expected", "note"),
    [
        (["--lr", "3"], ["--learning_rate", "3"], "--lr is --learning_rate here"),
        (["--lr=3"], ["--learning_rate", "3"], "--lr is --learning_rate here"),
        (["-lr", "3"], ["--learning_rate", "3"], "--lr is --learning_rate here"),
        (["--dataset", "D"], ["--dataset_path", "D"], "--dataset is --dataset_path here"),
        (["--mode", "test"], ["--mode", "eval", "--untrained"], "--mode test is --mode eval --untrained here"),
        (["--mode=inference_benchmark"], ["--mode", "inference"], "--mode inference_benchmark is --mode inference here"),
        (["--dataset_type", "synthetic_gpu"], ["--dataset_type", "synthetic"], "--dataset_type synthetic_gpu is --dataset_type synthetic here"),
        (["-shuffle"], ["--shuffle_batch_order", "true"], "--shuffle is --shuffle_batch_order here"),
        (["--noshuffle"], ["--shuffle_batch_order", "false"], "--shuffle is --shuffle_batch_order here"),
        (["--hash_indices"], ["--out_of_range", "hash"], "--hash_indices true is --out_of_range hash here"),
        (["--nohash_indices"], [], "--hash_indices false is the default here"),
        (["--base_device", "cpu"], ["--cpu"], "--base_device cpu is --cpu here"),
        (["--interaction_op", "cat"], ["--interaction", "cat"], "--interaction_op cat is --interaction cat here"),
        (["--interaction", "dot_custom_cuda"], ["--interaction", "dot"], "--interaction dot_custom_cuda is --interaction dot here"),
        (["--nofp16"], ["--noamp"], "--fp16 false is --noamp here"),
        (["--fp16"], ["--amp"], "--fp16 true is --amp here"),
        (["--synthetic_dataset"], ["--dataset_type", "synthetic"], "--synthetic_dataset true is --dataset_type synthetic here"),
        (["--noself_interaction"], [], "--self_interaction false is the default here"),
        (["--output_dir", "/tmp"], [], "--output_dir has no effect: checkpoints go to --save_checkpoint_path"),
        (["--base_device", "cuda"], [], "--base_device cuda is the default here"),
        (["--freeze_embeddings=true"], ["--embedding_trainable", "false"], "--freeze_embeddings true is --embedding_trainable false here"),
        (["--embedding_type", "joint_fused"], [], "--embedding_type has no effect: there is one embedding implementation"),
        (["--cuda_graphs"], [], "--cuda_graphs has no effect: --xla compiles the dense layers"),
        (["--Adam_MLP_optimizer"], ["--optimizer", "adam", "--embedding_optimizer", "sgd"], "--Adam_MLP_optimizer true is --optimizer adam here"),
        (
            ["--batch_size", "100", "--synthetic_dataset_num_entries", "250"],
            ["--batch_size", "100", "--synthetic_dataset_train_batches", "3"],
            "--synthetic_dataset_num_entries 250 is --synthetic_dataset_train_batches 3 here",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_each_flag_is_translated_with_a_note(words, expected, note):
    assert translated(words) == (expected, [note])


def test_own_flags_are_unchanged():
    words = ["--learning_rate", "3", "--cpu", "--mode", "eval", "--amp=true", "--noamp", "-h", "word", "--top_mlp_dims", "-5,1"]
    assert translated(words) == (words, [])
    with pytest.raises(UsageError, match="argument --mode: expected one argument"):
        parse([*SYNTHETIC, "--mode"], "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lr", "1", "--learning_rate", "2"], "--lr and --learning_rate set the same option; drop one of them"),
        (["--freeze_mlps"], "--freeze_mlps is not supported"),
        (["--self_interaction"], "--self_interaction is not supported"),
        (["--interaction_op", "sum"], "--interaction_op sum: expected dot or cuda_dot or cat"),
        (["--lr"], "--lr: expected a value"),
        (["--base_device", "tpu"], "--base_device tpu: expected cpu or cuda"),
        (["--synthetic_dataset_num_entries", "x"], "--synthetic_dataset_num_entries x: expected a positive number of samples"),
        (["--num_numerical_features", "3", "--synthetic_dataset_numerical_features", "4"], "set the same option; drop one of them"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_flags_are_rejected(words, message):
    with pytest.raises(UsageError, match=message):
        parse([*SYNTHETIC, *words], "")


def test_nvidias_command_lines():
    config = parse(
        "--mode train --dataset D --amp --cuda_graphs --seed 0 --lr 28 --warmup_steps 6400 --hash_indices --save_checkpoint_path C "
        "--top_mlp_sizes 1024,512,1 --bottom_mlp_sizes 512,128 --test_batch_size 131072 --nooptimized_mlp".split(),
        "",
    )
    assert (config.data.dataset_path, config.data.out_of_range, config.data.valid_batch_size) == ("D", "hash", 131072)
    assert (config.schedule.learning_rate, config.model.top_mlp_dims, config.model.bottom_mlp_dims) == (28, (1024, 512, 1), (512, 128))
    assert {line.split()[0] for line in config.legacy} >= {"--dataset", "--lr", "--hash_indices", "--cuda_graphs", "--optimized_mlp"}
    config = parse("--mode inference_benchmark --dataset D --load_checkpoint_path C --inference_benchmark_steps 20".split(), "")
    assert (config.run.mode, config.training.restore_checkpoint_path, config.training.inference_benchmark_steps) == ("inference", "C", 20)


def test_decay_start_step_none_starts_decay_after_warm_up():
    options = parse([*SYNTHETIC, "--warmup_steps", "60", "--decay_start_step", "none"], "").schedule
    assert options.decay_start_step is None and options.decay_from == 60
    assert parse([*SYNTHETIC, "--warmup_steps", "60"], "").schedule.decay_from == 48000


@pytest.mark.parametrize("flag", ["row_slice_threshold", "data_parallel_input"])
def test_flags_of_newer_versions_are_noted(flag):
    assert any(line.startswith(f"--{flag} has no effect: ") for line in parse([*SYNTHETIC, f"--{flag}", "1"], "").legacy)


def test_negated_flags_without_effect_are_accepted():
    config = parse([*SYNTHETIC, "--nouse_mde_embeddings", "--noconcat_embedding"], "")
    assert [line.split()[0] for line in config.legacy] == ["--use_mde_embeddings", "--concat_embedding"]


def test_max_steps_beside_inference_benchmark_steps_is_warned_about():
    config = parse([*SYNTHETIC, "--mode", "inference", "--max_steps", "3", "--inference_benchmark_steps", "4"], "")
    assert warnings(config) == ["--max_steps has no effect with --inference_benchmark_steps"]
