// The native module, put together from its parts.
#include "bindings/bindings.h"

NB_MODULE(_native, module) {
  module.doc() = "Kernels of the CPU back end; octavo.compute.kernels.cpu is the way to use them.";
  octavo::bind_model(module);
  octavo::bind_rows(module);
  octavo::bind_operators(module);
  octavo::bind_gemm(module);
  octavo::bind_attention(module);
  octavo::bind_sampling(module);
  octavo::bind_timing(module);
}
