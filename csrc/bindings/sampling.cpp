#include "bindings/sampling.h"

#include <nanobind/stl/array.h>

#include <vector>

#include "octavo/philox.h"
#include "octavo/pool.h"

namespace nb = nanobind;

namespace octavo {

LogitJobs jobs_from_arrays(const JobBytes& jobs, const JobIds& ids, const JobValues& bias_values,
                           const ResultBytes& results, const TopIds& top_ids,
                           const TopLogprobs& top_logprobs, size_t rows, size_t vocabulary) {
  if (jobs.size() % sizeof(LogitJob) != 0 ||
      reinterpret_cast<uintptr_t>(jobs.data()) % alignof(LogitJob) != 0 ||
      reinterpret_cast<uintptr_t>(results.data()) % alignof(LogitResult) != 0) {
    throw std::invalid_argument("jobs and results must be arrays of whole, aligned records");
  }
  LogitJobs view;
  view.jobs = reinterpret_cast<const LogitJob*>(jobs.data());
  view.count = jobs.size() / sizeof(LogitJob);
  view.ids = ids.data();
  view.id_count = ids.size();
  view.bias_values = bias_values.data();
  view.bias_count = bias_values.size();
  view.results = reinterpret_cast<LogitResult*>(results.data());
  view.top_ids = top_ids.data();
  view.top_logprobs = top_logprobs.data();
  view.top_count = top_ids.size();
  if (results.size() != view.count * sizeof(LogitResult) ||
      top_logprobs.size() != view.top_count) {
    throw std::invalid_argument("results or alternatives do not fit the jobs");
  }
  if (const char* wrong = check_jobs(view, rows, vocabulary)) throw std::invalid_argument(wrong);
  return view;
}

namespace {

using Logits = Array<float, 2>;

// Draws and scores rows of logits that something else computed.
class Sampler {
 public:
  Sampler(size_t vocabulary, int threads)
      : pool_(checked_threads(vocabulary, threads)), workspace_(threads, vocabulary) {}

  void sample(const Logits& logits, const JobBytes& jobs, const JobIds& ids,
              const JobValues& bias_values, const ResultBytes& results, const TopIds& top_ids,
              const TopLogprobs& top_logprobs) {
    if (logits.shape(1) != workspace_.vocabulary()) {
      throw std::invalid_argument("the rows of logits are not as wide as the vocabulary");
    }
    const LogitJobs view = jobs_from_arrays(jobs, ids, bias_values, results, top_ids, top_logprobs,
                                            logits.shape(0), workspace_.vocabulary());
    nb::gil_scoped_release unlocked;
    const size_t vocabulary = logits.shape(1);
    std::vector<LogitRow> rows(logits.shape(0));
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i] = {logits.data() + i * vocabulary, vocabulary, nullptr};
    }
    process_rows(pool_, workspace_, rows.data(), 0, rows.size(), view);
  }

 private:
  static int checked_threads(size_t vocabulary, int threads) {
    if (threads < 1 || threads > 1024) throw std::invalid_argument("threads: 1 to 1024");
    if (vocabulary < 1 || vocabulary >= (1u << 22)) {
      throw std::invalid_argument("the vocabulary must have 1 to 2^22 - 1 tokens");
    }
    return threads;
  }

  Pool pool_;
  SampleWorkspace workspace_;
};

}  // namespace

void bind_sampling(nb::module_& module) {
  nb::class_<Sampler>(module, "Sampler")
      .def(nb::init<size_t, int>(), nb::arg("vocabulary"), nb::arg("threads"))
      .def("sample", &Sampler::sample, nb::arg("logits"), nb::arg("jobs"), nb::arg("ids"),
           nb::arg("bias_values"), nb::arg("results"), nb::arg("top_ids"),
           nb::arg("top_logprobs"));
  module.def("philox4x32_10", &philox4x32_10, nb::arg("counter"), nb::arg("key"));
}

}  // namespace octavo
