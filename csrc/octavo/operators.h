// The operators of one instruction-set tier as a table of functions, so that the step interpreter
// is compiled once and knows no tier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/attention_types.h"
#include "octavo/gemm_types.h"
#include "octavo/limits_types.h"
#include "octavo/pool.h"
#include "octavo/rope_types.h"

namespace octavo {

struct Operators {
  const char* tier;
  void (*rms_norm)(Pool&, const float* x, const float* weight, float eps, size_t rows,
                   size_t heads, size_t width, float* out);
  void (*rope)(Pool&, const RopeCall&);
  void (*write_kv)(Pool&, const KvWriteCall&);
  void (*attention)(Pool&, const AttentionCall&, const AttentionTask*, size_t count);
  void (*add)(Pool&, const float* a, const float* b, size_t total, float* out);
  void (*silu_mul)(Pool&, const float* gate, const float* up, size_t total, float* out);
  void (*gelu_mul)(Pool&, const float* gate, const float* up, size_t total, float* out);
  // Fused forms: the operator, and prepare_activations of `out`, with their bits.
  void (*rms_norm_prepare)(Pool&, const float* x, const float* weight, float eps, size_t rows,
                           size_t width, float* out, Activations mode, ActivationBuffer& buffer);
  void (*silu_mul_prepare)(Pool&, const float* gate, const float* up, size_t rows, size_t width,
                           float* out, Activations mode, ActivationBuffer& buffer);
  void (*gelu_mul_prepare)(Pool&, const float* gate, const float* up, size_t rows, size_t width,
                           float* out, Activations mode, ActivationBuffer& buffer);
  void (*prepare_activations)(Pool&, const float* x, int64_t ldx, int64_t rows, int64_t width,
                              Activations mode, ActivationBuffer& buffer);
  void (*linear)(Pool&, const LinearTarget* targets, int count, const ActivationBuffer& buffer);
  void (*embed_rows)(Pool&, const PackedWeight& weight, const int32_t* tokens, int64_t rows,
                     float scale, float* out, int64_t ldo);
  LimitLoops limits;
};

const Operators& scalar_operators();
#if defined(OCTAVO_X86_TIERS)
const Operators& avx2_operators();
const Operators& avx512_operators();
#endif

// The best tier of this processor, or the one named ("avx512-vnni", "avx2", "scalar"). An empty
// name means the best. Throws std::invalid_argument for a tier that is unknown or cannot run here.
const Operators& choose_operators(const char* tier);

}  // namespace octavo
