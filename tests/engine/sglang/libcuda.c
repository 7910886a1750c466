/* A stand-in for the NVIDIA driver's library.
 *
 * SGLang's kernels are linked against libcuda.so.1 and ask for these names while they are being imported, also where
 * the engine then runs on a CPU and calls none of them. 100 is CUDA_ERROR_NO_DEVICE: should one be called after all,
 * it says so. The true signatures do not matter, as nothing is read and nothing is written. */

#define NO_DEVICE 100
#define ANSWERS_NO_DEVICE(name) int name(void) { return NO_DEVICE; }

ANSWERS_NO_DEVICE(cuInit)
ANSWERS_NO_DEVICE(cuDriverGetVersion)
ANSWERS_NO_DEVICE(cuGetErrorString)
ANSWERS_NO_DEVICE(cuGetProcAddress_v2)
ANSWERS_NO_DEVICE(cuPointerGetAttribute)
ANSWERS_NO_DEVICE(cuStreamCreate)
ANSWERS_NO_DEVICE(cuCtxPushCurrent_v2)
ANSWERS_NO_DEVICE(cuCtxPopCurrent_v2)
ANSWERS_NO_DEVICE(cuCtxFromGreenCtx)
ANSWERS_NO_DEVICE(cuGreenCtxCreate)
ANSWERS_NO_DEVICE(cuGreenCtxDestroy)
ANSWERS_NO_DEVICE(cuGreenCtxGetDevResource)
ANSWERS_NO_DEVICE(cuDeviceGetDevResource)
ANSWERS_NO_DEVICE(cuDevSmResourceSplitByCount)
ANSWERS_NO_DEVICE(cuDevResourceGenerateDesc)
