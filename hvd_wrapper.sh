#!/usr/bin/env bash
# The wrapper of NVIDIA's launch lines: horovodrun -np 8 sh hvd_wrapper.sh python main.py
# There it gives each worker its GPU by CUDA_VISIBLE_DEVICES. Here workers take their GPUs themselves, so it only starts the command.
exec "$@"
