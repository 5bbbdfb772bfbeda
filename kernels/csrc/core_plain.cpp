#define DEEPINFER_ISA plain
#define DEEPINFER_NAME "plain"
#define DEEPINFER_TABLE kCorePlain
#include "core_impl.h"
