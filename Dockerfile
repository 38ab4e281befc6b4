# DLRM on GPUs:  docker build -t dlrm .
#                docker run --rm -it --gpus all --ipc=host --ulimit memlock=-1 --cap-add SYS_NICE -v /data:/data dlrm
#
# numactl may not set a memory policy without SYS_NICE, and then fails.
#
# CUDA 12, as TensorFlow 2.21 brings it (12.5): Horovod's CUDA code is compiled against the same major version. The host's driver must be 560 or newer.
#
# No Docker engine has built this file yet. Tried by hand on Debian 12: the names of the system packages, a newer compiler (nvcc 13.0.88) on Horovod's
# CUDA source, and scripts/install on the files copied before it, with DLRM_DEVICE=cpu. Not tried: the GPU build of TensorFlow, NCCL, the RUN lines as
# they stand.
FROM nvidia/cuda:12.6.3-devel-ubuntu24.04

# The packages that scripts/install checks for, Python with venv, git for dllogger, ssh for workers on other machines.
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
        openmpi-bin libopenmpi-dev numactl cmake g++ make libhighwayhash-dev libfarmhash-dev \
        python3 python3-venv python3-dev git openssh-client \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /dlrm

# Only the files that scripts/install reads, so that a change of the code does not build Horovod again. No GPU is visible while an image is built, so
# DLRM_DEVICE names the device. The image also has a static NCCL, which must not be linked in place of TensorFlow's: hence SHARED. The install ends
# with an exchange between two workers on the CPU; Horovod finds the driver's library in the image's compatibility package.
COPY requirements.txt requirements-dev.txt requirements-optional.txt requirements-serving.txt ./
COPY scripts/install scripts/prove_install.py scripts/horovodrun.py scripts/
COPY scripts/horovod_shim scripts/horovod_shim
ENV DLRM_DEVICE=gpu HOROVOD_NCCL_LINK=SHARED PIP_NO_CACHE_DIR=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
RUN LD_LIBRARY_PATH="/usr/local/cuda/compat${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" DLRM_CACHE_DIR=/tmp/dlrm-cache ./scripts/install \
    && rm -rf /tmp/dlrm-cache
# The log writer of NVIDIA's, and what clients of a server and exports to ONNX need.
RUN .venv/bin/python -m pip install --no-deps -r requirements-optional.txt -r requirements-serving.txt

COPY . .
# The operations are built for the processors that the image may run on, not for the one that builds it.
ENV DLRM_OPS_ARCH=x86-64-v3
RUN .venv/bin/python ops/build
# The environment in which exports for Triton are scored.
RUN .venv/bin/python -m serving.stub_environment
ENV PATH=/dlrm/.venv/bin:$PATH
CMD ["bash"]
