// StepRows as Python sees it. compute/kernels/cpu/rows.py is the way to use it.
#include <nanobind/stl/vector.h>

#include <cstring>
#include <typeinfo>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "octavo/step_rows.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Column = std::vector<int64_t>;
using Ids = std::vector<int32_t>;

// `job` has the bytes of one JOB of compute/sample/params.py.
void seat(StepRows& self, int64_t row, nb::bytes job, Ids bias_ids, std::vector<float> bias_values,
          Ids stop_ids, Ids prompt, Ids output, int64_t prompt_tokens, int64_t min_tokens) {
  RowSettings settings;
  require(job.size() == sizeof settings.job, "a job has another size");
  memcpy(&settings.job, job.c_str(), sizeof settings.job);
  settings.bias_ids = std::move(bias_ids);
  settings.bias_values = std::move(bias_values);
  settings.stop_ids = std::move(stop_ids);
  settings.prompt = std::move(prompt);
  settings.output = std::move(output);
  settings.prompt_tokens = prompt_tokens;
  settings.min_tokens = min_tokens;
  self.seat(row, std::move(settings));
}

// Each of `chunks` is (row, start, tokens, draws, targets, top).
std::vector<ChunkRow> chunks_of(nb::list chunks) try {
  std::vector<ChunkRow> rows;
  for (nb::handle item : chunks) {
    const nb::tuple fields = nb::cast<nb::tuple>(item);
    require(fields.size() == 6, "a chunk has six fields");
    rows.push_back(ChunkRow{nb::cast<int64_t>(fields[0]), nb::cast<int64_t>(fields[1]),
                            nb::cast<Ids>(fields[2]), nb::cast<bool>(fields[3]),
                            nb::cast<Ids>(fields[4]), nb::cast<int32_t>(fields[5])});
  }
  return rows;
} catch (const std::bad_cast&) {
  throw std::invalid_argument("a chunk has a field of another type, or a number that is too large");
}

bool has_only_a_token(const LogitJob& job, const LogitResult& result) {
  return job.kind == kDrawJob && job.top < 0 && result.status == kLogitsUsable;
}

// (seconds, the token of each draw, whether `answers` has more to say)
nb::tuple run(StepRows& self, Model& model, const Column& rows, const Column& starts,
              const Column& tokens, nb::list chunks) {
  require(rows.size() == starts.size() && rows.size() == tokens.size(),
          "the columns of decoding rows differ in length");
  self.gather(DecodeColumns{rows.data(), starts.data(), tokens.data(), rows.size()},
              chunks_of(chunks));
  const StepInput input = self.input();
  const LogitJobs jobs = self.jobs();
  if (const char* wrong = check_jobs(jobs, input.wanted_count, model.vocabulary())) {
    throw std::invalid_argument(wrong);
  }
  const double seconds = timed([&] { model.run(input, jobs); });
  self.remember();
  nb::list drawn;
  bool has_more = false;
  for (size_t i = 0; i < jobs.count; ++i) {
    if (jobs.jobs[i].kind == kDrawJob) drawn.append(jobs.results[i].token);
    has_more |= !has_only_a_token(jobs.jobs[i], jobs.results[i]);
  }
  return nb::make_tuple(seconds, drawn, has_more);
}

// (is a draw, has log-probabilities, token, log-probability, status, ids and log-probabilities of
// the alternatives) of each job of the latest step.
nb::list answers(StepRows& self) {
  const LogitJobs jobs = self.jobs();
  nb::list answers;
  for (size_t i = 0; i < jobs.count; ++i) {
    const LogitJob& job = jobs.jobs[i];
    const LogitResult& result = jobs.results[i];
    nb::list ids, logprobs;
    for (int32_t at = 0; at < job.top && result.status == kLogitsUsable; ++at) {
      ids.append(jobs.top_ids[job.top_begin + at]);
      logprobs.append(jobs.top_logprobs[job.top_begin + at]);
    }
    answers.append(nb::make_tuple(job.kind == kDrawJob, job.top >= 0, result.token, result.logprob,
                                  int(result.status), ids, logprobs));
  }
  return answers;
}

}  // namespace

void bind_rows(nb::module_& module) {
  nb::class_<StepRows>(module, "StepRows")
      .def(nb::init<size_t, size_t, size_t>(), nb::arg("rows"), nb::arg("table_width"),
           nb::arg("vocabulary"))
      .def("seat", seat)
      .def("vacate", &StepRows::vacate)
      .def("append", &StepRows::append)
      .def("run", run)
      .def("answers", answers);
}

}  // namespace octavo
