#define DEEPINFER_AVX512
#define DEEPINFER_ISA avx512
#define DEEPINFER_NAME "avx512"
#define DEEPINFER_TABLE kCoreAvx512
#include "core_impl.h"
