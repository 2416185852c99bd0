#include "octavo/operators.h"

#include <stdexcept>
#include <string>

#include "octavo/cpu_features.h"

namespace octavo {

const Operators& choose_operators(const char* tier) {
  const std::string name = tier;
#if defined(OCTAVO_X86_TIERS)
  if (name == "avx512-vnni" || (name.empty() && cpu_has_avx512_vnni())) {
    if (!cpu_has_avx512_vnni()) throw std::invalid_argument("this processor lacks AVX512-VNNI");
    return avx512_operators();
  }
  if (name == "avx2" || (name.empty() && cpu_has_avx2())) {
    if (!cpu_has_avx2()) throw std::invalid_argument("this processor lacks AVX2, FMA or F16C");
    return avx2_operators();
  }
#else
  if (name == "avx512-vnni" || name == "avx2") {
    throw std::invalid_argument("this build has no tier " + name);
  }
#endif
  if (name.empty() || name == "scalar") return scalar_operators();
  throw std::invalid_argument("unknown tier '" + name +
                              "': use avx512-vnni, avx2 or scalar");
}

}  // namespace octavo
