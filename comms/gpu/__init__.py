"""Arrays in device memory: found, copied, and exchanged between devices.

* `device_array`: the array, and the protocols of a runtime that copies it.
* `array_interface`: finds arrays by DLPack and the CUDA array interface.
* `cupy_runtime`: the runtime of CUDA devices, through CuPy.
* `pinned_staging`: copies through pinned host memory, ordered by streams.
* `array_place`: reads arguments on the host, and puts results where these lay.
* `cuda_ipc`: exchange between devices of one node by CUDA IPC.
* `nccl`: exchange between devices by NCCL.
* `cuda_aware`: whether the MPI library takes device memory.
"""
