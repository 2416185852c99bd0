// What this processor can run, asked once through cpuid.
#pragma once

namespace octavo {

// F, BW, VL, DQ and VNNI, with the operating system saving the wide registers.
bool cpu_has_avx512_vnni();

// AVX2, FMA and F16C.
bool cpu_has_avx2();

}  // namespace octavo
