// The doors of the library: which of the kernels this processor runs, and what they were built from.
#include "block.h"

extern "C" {
__attribute__((visibility("default"))) Kernel acc_block_baseline;
#ifdef ACC_X86
__attribute__((visibility("default"))) Kernel acc_block_avx2, acc_block_avx512;
#endif

// The widest instructions that this processor has: "avx512", "avx2" or "baseline".
__attribute__((visibility("default"))) const char *acc_isa() {
#ifdef ACC_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return "avx2";
#endif
    return "baseline";
}

__attribute__((visibility("default"))) const char *acc_digest() { return ACC_DIGEST; }
}
