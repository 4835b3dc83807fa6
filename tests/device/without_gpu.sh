#!/usr/bin/env bash
# A command as on a machine with a GPU, where there is none: pycuda itself on a stand-in for CUDA's driver.
#
#     tests/device/without_gpu.sh tests/device/run.sh ../shared/device-wheels
#     tests/device/without_gpu.sh python program.py
#
# It needs a C++ compiler and cuda.h (that of CUDA_HOME, else of /usr/local/cuda). STANDIN_GPUS and STANDIN_MEMORY say
# how many GPUs there are (1), and with how many bytes each (2 GiB). Times mean nothing, and programs of nvcc's own do
# not run. `driver/libcuda.cpp` says what it is strict about.
set -euo pipefail
driver=$(cd "$(dirname "$0")/driver" && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
include=${CUDA_HOME:-/usr/local/cuda}/include
${CXX:-g++} -std=c++17 -O1 -fPIC -Wall -I"$include" -c "$driver/libcuda.cpp" -o "$place/libcuda.o"
${CC:-gcc} -fPIC -c "$driver/missing.c" -o "$place/missing.o"
${CXX:-g++} -shared -Wl,-soname,libcuda.so.1 "$place/libcuda.o" "$place/missing.o" -o "$place/libcuda.so.1" -ldl
mkdir -p "$place/cuda/lib64" "$place/pycuda"
${CXX:-g++} -std=c++17 -O2 -fPIC -Wall -shared "$driver/libcublas.cpp" "$place/libcuda.so.1" \
  -o "$place/cuda/lib64/libcublas.so"
export PYCUDA_CACHE_DIR="$place/pycuda"  # what the stand-in compiles is nothing for a GPU
export PATH="$driver:$PATH" LD_LIBRARY_PATH="$place${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" CUDA_HOME="$place/cuda"
"$@"
