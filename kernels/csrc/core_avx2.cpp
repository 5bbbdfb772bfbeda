#define DEEPINFER_AVX2
#define DEEPINFER_ISA avx2
#define DEEPINFER_NAME "avx2"
#define DEEPINFER_TABLE kCoreAvx2
#include "core_impl.h"
