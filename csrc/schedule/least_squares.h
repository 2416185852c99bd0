// Non-negative least squares of five coefficients, step by step.
#pragma once

#include <array>
#include <cstddef>

namespace octavo {

// Every observation moves each coefficient to its best value beside the others, a few times round
// (sequential coordinate-wise descent, Franc, Hlavac and Navara, CAIP 2005). What was observed
// before counts `forgetting` times as much with each new observation; `ridge` weights pull towards
// the coefficients it began with. The order of all sums is fixed, so results are the same everywhere.
class LeastSquares {
 public:
  static constexpr size_t kCount = 5;
  using Values = std::array<double, kCount>;

  LeastSquares(const Values& theta, const Values& ridge, double forgetting, int sweeps);

  // Learn that `features` times the coefficients should be `target`.
  void observe(const Values& features, double target);
  const Values& theta() const { return theta_; }

 private:
  Values theta_;
  Values ridge_;
  Values pulled_;
  Values moments_{};
  std::array<Values, kCount> gram_{};
  double forgetting_;
  int sweeps_;
};

}  // namespace octavo
