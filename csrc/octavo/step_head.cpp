// The end of a step: logits of the wanted tokens, or only what their jobs need of them.
#include <cstring>

#include "octavo/step.h"

namespace octavo {

void Model::run_head(const StepInput& input, float* logits, const LogitJobs* jobs) {
  const size_t hidden = size_t(needs_.hidden);
  const float* x = slot(program_.back().ints[0]);
  for (size_t first = 0; first < input.wanted_count; first += kLogitRows) {
    const size_t left = input.wanted_count - first, rows = left < kLogitRows ? left : kLogitRows;
    for (size_t row = 0; row < rows; ++row) {
      memcpy(head_rows_ + row * hidden, x + size_t(input.wanted[first + row]) * hidden,
             hidden * sizeof(float));
    }
    if (jobs == nullptr) {
      head_block(rows, logits + first * vocabulary(), nullptr);
    } else {
      head_jobs(first, rows, *jobs);
    }
  }
}

// The jobs of the gathered head rows, the first of which is wanted row `first`. Rows whose jobs
// choose among a few most likely tokens leave no logits behind, the others' lie close together.
void Model::head_jobs(size_t first, size_t rows, const LogitJobs& jobs) {
  int32_t needed[kLogitRows], slots[kLogitRows];
  plan_rows(jobs, first, rows, needed);
  int32_t stored = 0;
  for (size_t row = 0; row < rows; ++row) {
    if (needed[row] > 0) tops_->begin(row, needed[row]);
    slots[row] = needed[row] > 0 ? -1 : stored++;
  }
  const LogitSink sink{slots, tops_->tops(), tops_->rows()};
  head_block(rows, logit_rows_, &sink);
  profile_.measure(kSamplingPart, [&] {
    LogitRow made[kLogitRows];
    pool_.parallel_for(int64_t(rows), 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        made[row] = slots[row] < 0 ? tops_->finish(size_t(row))
                                   : LogitRow{logit_rows_ + size_t(slots[row]) * vocabulary(),
                                              vocabulary(), nullptr};
      }
    });
    process_rows(pool_, *sampling_, made, first, rows, jobs);
  });
}

// Logits of the gathered head rows, to y [rows, vocabulary] or where the sink says.
void Model::head_block(size_t rows, float* y, const LogitSink* sink) {
  const Operation& head = program_.back();
  profile_.measure(size_t(Opcode::Logits), [&] {
    operators_.prepare_activations(pool_, head_rows_, needs_.hidden, int64_t(rows), needs_.hidden,
                                   settings_.activations, activations_);
    const LinearTarget target{&matrices_[head.ints[1]], nullptr, y,   needs_.vocabulary,
                              nullptr,                  head.floats[0], sink};
    read_ahead(program_.size());
    operators_.linear(pool_, &target, 1, activations_);
  });
}

}  // namespace octavo
