#include "schedule/least_squares.h"

namespace octavo {

LeastSquares::LeastSquares(const Values& theta, const Values& ridge, double forgetting, int sweeps)
    : theta_(theta), ridge_(ridge), forgetting_(forgetting), sweeps_(sweeps) {
  for (size_t i = 0; i < kCount; ++i) pulled_[i] = ridge[i] * theta[i];
}

void LeastSquares::observe(const Values& features, double target) {
  for (size_t i = 0; i < kCount; ++i) {
    for (size_t j = 0; j < kCount; ++j) {
      gram_[i][j] = forgetting_ * gram_[i][j] + features[i] * features[j];
    }
    moments_[i] = forgetting_ * moments_[i] + features[i] * target;
  }
  for (int sweep = 0; sweep < sweeps_; ++sweep) {
    for (size_t i = 0; i < kCount; ++i) {
      const Values& row = gram_[i];
      double every = row[0] * theta_[0];
      for (size_t j = 1; j < kCount; ++j) every += row[j] * theta_[j];
      const double right = moments_[i] + pulled_[i];
      const double best = (right - (every - row[i] * theta_[i])) / (row[i] + ridge_[i]);
      theta_[i] = best > 0.0 ? best : 0.0;
    }
  }
}

}  // namespace octavo
