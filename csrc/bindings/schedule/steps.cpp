// The native module of what the scheduler does in every step.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <utility>

#include "schedule/key_order.h"
#include "schedule/least_squares.h"
#include "schedule/row_columns.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace octavo {
namespace {

template <class Number>
using View = nb::ndarray<nb::numpy, Number, nb::ndim<1>>;

Numbers rows_of(const RowColumns& columns, const RowNumbers& rows) {
  for (const int64_t row : rows) {
    if (row < 0 || row >= columns.rows()) throw std::out_of_range("there is no such row");
  }
  return rows;
}

int64_t row_of(const RowColumns& columns, int64_t row) {
  if (row < 0 || row >= columns.rows()) throw std::out_of_range("there is no such row");
  return row;
}

int64_t integer_of(nb::handle item) {
  const long long number = PyLong_AsLongLong(item.ptr());
  if (number == -1 && PyErr_Occurred()) nb::raise_python_error();
  return number;
}

std::vector<int64_t> integers_of(nb::handle iterable) {
  std::vector<int64_t> numbers;
  for (nb::handle item : nb::iter(iterable)) numbers.push_back(integer_of(item));
  return numbers;
}

// A column as a numpy array on the memory of `columns`, which it keeps alive.
template <class Number>
auto column(std::vector<Number> RowColumns::* member) {
  return [member](nb::handle_t<RowColumns> self) {
    std::vector<Number>& values = nb::cast<RowColumns&>(self).*member;
    return View<Number>(values.data(), {values.size()}, self);
  };
}

// The `DecodeRows` columns of all rows of `chosen` but those in `out`, and the places of `wanted`.
nb::tuple decodes(const RowColumns& columns, const std::vector<RowNumbers>& chosen, nb::set out,
                  nb::list request_ids, const RowNumbers& wanted) {
  std::vector<uint8_t> is_out(columns.rows());
  for (nb::handle row : out) is_out[row_of(columns, integer_of(row))] = true;
  std::vector<int64_t> rows, starts, tokens, table_starts;
  for (const RowNumbers& part : chosen) {
    for (const int64_t row : rows_of(columns, part)) {
      if (is_out[row]) continue;
      rows.push_back(row);
      starts.push_back(columns.computed[row]);
      tokens.push_back(columns.last_token[row]);
      table_starts.push_back(columns.room[row] / columns.page_tokens());
    }
  }
  if (request_ids.size() < size_t(columns.rows())) throw std::out_of_range("ids are missing");
  nb::object names = nb::steal(PyTuple_New(Py_ssize_t(rows.size())));
  if (!names.is_valid()) nb::raise_python_error();
  for (size_t place = 0; place < rows.size(); ++place) {
    nb::object name = request_ids[size_t(rows[place])];
    PyTuple_SET_ITEM(names.ptr(), Py_ssize_t(place), name.release().ptr());
  }
  nb::list places;
  if (!wanted.empty()) {
    std::vector<int64_t> place_of(columns.rows(), -1);
    for (size_t place = 0; place < rows.size(); ++place) place_of[rows[place]] = int64_t(place);
    for (const int64_t row : wanted) places.append(place_of[row_of(columns, row)]);
  }
  return nb::make_tuple(rows, names, starts, tokens, table_starts, places);
}

// One call of `make` for each plain row, with the fields of an `EngineOutput`.
nb::list outputs_of(const RowColumns& columns, const PlainStep& taken, Numbers rows,
                    const std::vector<int64_t>& tokens, nb::tuple request_ids, nb::list logprobs,
                    nb::handle make) {
  nb::list outputs;
  for (const size_t place : taken.plain) {
    nb::tuple span = nb::make_tuple(tokens[place]);
    nb::int_ cached(columns.cached_tokens[rows[place]]);
    nb::object id = request_ids[place];
    nb::object logprob = place < logprobs.size() ? nb::object(logprobs[place]) : nb::none();
    PyObject* fields[] = {id.ptr(), span.ptr(), logprob.ptr(), Py_None, cached.ptr()};
    nb::object output = nb::steal(PyObject_Vectorcall(make.ptr(), fields, 5, nullptr));
    if (!output.is_valid()) nb::raise_python_error();
    outputs.append(std::move(output));
  }
  return outputs;
}

nb::tuple take(RowColumns& columns, const RowNumbers& rows, const std::vector<int64_t>& starts,
               nb::tuple request_ids, const std::vector<int64_t>& tokens, nb::list logprobs,
               int64_t step, double now, size_t classes, nb::handle make) {
  const Numbers numbers(rows);
  const size_t count = numbers.count;
  if (starts.size() != count || request_ids.size() != count || tokens.size() != count ||
      (logprobs.size() && logprobs.size() != count)) {
    throw std::invalid_argument("columns of one step are equally long");
  }
  for (const int64_t row : numbers) {
    if (!columns.plain[row_of(columns, row)]) continue;
    if (columns.lane[row] < 0 || columns.lane[row] >= int64_t(classes)) {
      throw std::out_of_range("there is no such class");
    }
    if (columns.computed[row] < 0) throw std::out_of_range("a row has computed less than nothing");
  }
  const PlainStep taken = columns.take(numbers, Numbers(starts), Numbers(tokens), step, now, classes);
  std::vector<std::pair<size_t, int64_t>> others;
  for (const size_t place : taken.others) others.push_back({place, tokens[place]});
  return nb::make_tuple(outputs_of(columns, taken, numbers, tokens, request_ids, logprobs, make),
                        others, taken.page_ends, taken.gaps, taken.gaps_missed);
}

nb::tuple theta_of(const LeastSquares& fit) {
  const LeastSquares::Values& theta = fit.theta();
  return nb::make_tuple(theta[0], theta[1], theta[2], theta[3], theta[4]);
}

void bind_fit(nb::module_& module) {
  using Fit = LeastSquares;
  nb::class_<Fit>(module, "LeastSquares")
      .def(nb::init<const Fit::Values&, const Fit::Values&, double, int>(), "theta"_a, "ridge"_a,
           "forgetting"_a, "sweeps"_a)
      .def("observe",
           [](Fit& self, const Fit::Values& features, double target) {
             self.observe(features, target);
             return theta_of(self);
           },
           "features"_a, "target"_a)
      .def_prop_ro("theta", theta_of);
}

KeyOrder::Key order_key(nb::tuple key) {
  KeyOrder::Key numbers;
  if (key.size() != numbers.size()) throw std::invalid_argument("a key has four numbers");
  for (size_t at = 0; at < numbers.size(); ++at) numbers[at] = integer_of(key[at]);
  return numbers;
}

void bind_order(nb::module_& module) {
  nb::class_<KeyOrder>(module, "KeyOrder")
      .def(nb::init<>())
      .def("__len__", &KeyOrder::size)
      .def("add",
           [](KeyOrder& self, nb::tuple key, int64_t row) { self.add(order_key(key), row); },
           "key"_a, "row"_a)
      .def("remove", [](KeyOrder& self, nb::tuple key) { self.remove(order_key(key)); }, "key"_a)
      .def("row", &KeyOrder::row, "place"_a)
      .def("rows", &KeyOrder::rows);
}

void bind_columns(nb::module_& module) {
  using Columns = RowColumns;
  nb::class_<Columns>(module, "RowColumns")
      .def(nb::init<int64_t, int64_t>(), "rows"_a, "page_tokens"_a)
      .def_prop_ro("lane", column(&Columns::lane))
      .def_prop_ro("computed", column(&Columns::computed))
      .def_prop_ro("room", column(&Columns::room))
      .def_prop_ro("plain", column(&Columns::plain))
      .def_prop_ro("served_step", column(&Columns::served_step))
      .def_prop_ro("token_seconds", column(&Columns::token_seconds))
      .def("seat",
           [](Columns& self, int64_t row, int64_t computed, int64_t end, int64_t cached,
              double since_seconds, nb::handle stops) {
             self.seat(row_of(self, row), computed, end, cached, since_seconds, integers_of(stops));
           },
           "row"_a, "computed"_a, "end_tokens"_a, "cached_tokens"_a, "token_seconds"_a,
           "stop_ids"_a)
      .def("set_decoding",
           [](Columns& self, int64_t row, int64_t rank, int64_t token, bool is_plain, double gap) {
             self.set_decoding(row_of(self, row), rank, token, is_plain, gap);
           },
           "row"_a, "rank"_a, "last_token"_a, "is_plain"_a, "gap_seconds"_a)
      .def("decoding",
           [](const Columns& self, int64_t rank) {
             const RowNumbers rows = self.decoding(rank);
             return nb::make_tuple(rows, self.past(rows));
           },
           "rank"_a)
      .def("past", [](const Columns& self, const RowNumbers& rows) { return self.past(rows_of(self, rows)); },
           "rows"_a)
      .def("count_unserved_since",
           [](const Columns& self, const RowNumbers& rows, double seconds) {
             return self.count_unserved_since(rows_of(self, rows), seconds);
           },
           "rows"_a, "seconds"_a)
      .def("without_room",
           [](const Columns& self, const RowNumbers& rows) { return self.without_room(rows_of(self, rows)); },
           "rows"_a)
      .def("run_within",
           [](const Columns& self, const RowNumbers& rows, double each, double per_past, double seconds) {
             const Columns::Run run =
                 self.run_within(rows_of(self, rows), each, per_past, seconds);
             return nb::make_tuple(run.count, run.past, run.seconds);
           },
           "rows"_a, "each"_a, "per_past"_a, "seconds"_a)
      .def("decodes", &decodes, "chosen"_a, "out"_a, "request_ids"_a, "wanted"_a)
      .def("take", &take, "rows"_a, "starts"_a, "request_ids"_a, "tokens"_a,
           "logprobs"_a, "step"_a, "now_seconds"_a, "classes"_a, "make"_a)
      .def("fetch",
           [](const Columns& self, int64_t row, int64_t first) {
             if (first < 0) throw std::out_of_range("there is no such token");
             return self.fetch(row_of(self, row), first);
           },
           "row"_a, "first"_a);
}

}  // namespace
}  // namespace octavo

NB_MODULE(_steps, module) {
  module.doc() = "The native half of octavo.schedule; cost and rows are the way to use it.";
  // Compiled modules keep what they have made until the process is gone.
  nb::set_leak_warnings(false);
  octavo::bind_fit(module);
  octavo::bind_order(module);
  octavo::bind_columns(module);
}
