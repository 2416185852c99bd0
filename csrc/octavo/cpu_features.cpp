#include "octavo/cpu_features.h"

namespace octavo {

#if defined(__x86_64__) && defined(__GNUC__)

bool cpu_has_avx512_vnni() {
  __builtin_cpu_init();
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}

bool cpu_has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

#else

bool cpu_has_avx512_vnni() { return false; }
bool cpu_has_avx2() { return false; }

#endif

}  // namespace octavo
