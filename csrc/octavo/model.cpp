// Loading of a model and the checks and tables in front of a step.
#include <stdexcept>
#include <string>
#include <utility>

#include "octavo/pack.h"
#include "octavo/step.h"

namespace octavo {
namespace {

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

void require(bool condition, const char* message) {
  if (!condition) fail(message);
}

// Hands out 64-byte aligned parts of one buffer; the first pass, without memory, measures.
class Carver {
 public:
  explicit Carver(uint8_t* base) : base_(base) {}

  template <class Element>
  Element* take(size_t count) {
    Element* part = base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + used_);
    used_ += (count * sizeof(Element) + 63) / 64 * 64;
    return part;
  }

  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

const char* describe(PackStatus status) {
  switch (status) {
    case PackStatus::UnknownType: return "the format is not supported";
    case PackStatus::BadShape: return "the width is no multiple of the format's block";
    case PackStatus::WrongSize: return "the number of bytes does not fit the shape";
    case PackStatus::Ok: break;
  }
  return "ok";
}

}  // namespace

Model::Model(const Operators& operators, const ModelSettings& settings)
    : operators_(operators), settings_(settings), pool_(settings.threads) {
  require(settings.max_tokens > 0 && settings.max_tokens <= (size_t(1) << 20),
          "max_tokens must be from 1 to 1048576");
  require(settings.layers > 0 && settings.kv_heads > 0, "layers and kv_heads must be positive");
  require(is_head_dim(settings.head_dim), "head_dim must be a multiple of 16 up to 256");
}

int32_t Model::add_matrix(const void* rows, size_t bytes, int ggml_type, int64_t channels,
                          int64_t width) {
  PackedWeight packed;
  const PackStatus status =
      pack(pool_, arena_, rows, bytes, ggml_type, channels, width, packed);
  require(status == PackStatus::Ok, describe(status));
  matrices_.push_back(packed);
  return int32_t(matrices_.size()) - 1;
}

void Model::set_knobs(int32_t matrix, const LinearKnobs& knobs) {
  require(matrix >= 0 && size_t(matrix) < matrices_.size(), "no such matrix");
  const std::lock_guard<std::mutex> between_steps(mutex_);
  matrices_[size_t(matrix)].knobs = knobs;
}

int32_t Model::add_vector(const float* values, size_t count) {
  require(count > 0, "a vector is empty");
  vectors_.emplace_back(values, values + count);
  return int32_t(vectors_.size()) - 1;
}

int32_t Model::add_rotation(Rotation rotation) {
  require(rotation.dims > 0 && rotation.dims % 2 == 0 && rotation.dims <= settings_.head_dim,
          "a rotation has an even number of dimensions that fits a head");
  require(rotation.frequencies.size() == size_t(rotation.dims) / 2, "one frequency a pair");
  rotations_.push_back(std::move(rotation));
  return int32_t(rotations_.size()) - 1;
}

size_t Model::weight_bytes() const {
  size_t bytes = arena_.used_bytes();
  for (const auto& vector : vectors_) bytes += vector.size() * sizeof(float);
  return bytes;
}

void Model::set_program(std::vector<Operation> program) {
  require(program_.empty(), "the program is already set");
  ProgramLimits limits;
  limits.layers = settings_.layers;
  limits.kv_heads = settings_.kv_heads;
  limits.head_dim = settings_.head_dim;
  for (const auto& matrix : matrices_) limits.matrices.push_back({matrix.channels, matrix.width});
  for (const auto& vector : vectors_) limits.vectors.push_back(int64_t(vector.size()));
  for (const auto& rotation : rotations_) limits.rotations.push_back(rotation.dims);
  needs_ = check_program(program, limits);
  plan_workspace();
  program_ = std::move(program);
}

void Model::plan_workspace() {
  const size_t tokens = settings_.max_tokens;
  const int32_t heads = needs_.most_heads > 0 ? needs_.most_heads : settings_.kv_heads;
  attention_floats_ =
      (attention_scratch_floats(heads, settings_.kv_heads, settings_.head_dim) + 15) / 16 * 16;
  slots_.resize(needs_.slot_widths.size());
  rotation_tables_.resize(rotations_.size());
  workspace_ = HugeBuffer(lay_out_workspace(nullptr, tokens, kLogitRows));
  sampling_ = std::make_unique<SampleWorkspace>(pool_.threads(), size_t(needs_.vocabulary));
  tops_ = std::make_unique<TopTable>(pool_.threads(), kLogitRows, kMostTop);
  tasks_.reserve(2 * tokens * size_t(settings_.kv_heads));
}

// Parts for a step of `tokens` tokens, the head taking `rows` rows at a time; the bytes of all, which
// never fall when either grows. They lie close together from `base` on, so that a small step has a
// few huge pages and not the first one of each part. Those that are seldom used up come last.
size_t Model::lay_out_workspace(uint8_t* base, size_t tokens, size_t rows) {
  Carver carver(base);
  token_slots_ = carver.take<int32_t>(tokens);
  token_positions_ = carver.take<int32_t>(tokens);
  for (size_t i = 0; i < rotations_.size(); ++i) {
    rotation_tables_[i] = carver.take<float>(tokens * table_width(rotations_[i]));
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i] = carver.take<float>(tokens * size_t(needs_.slot_widths[i]));
  }
  activations_.memory_bytes = activation_bytes(int64_t(tokens > rows ? tokens : rows),
                                               needs_.linear_width, settings_.activations);
  activations_.memory = carver.take<uint8_t>(activations_.memory_bytes);
  head_rows_ = carver.take<float>(rows * size_t(needs_.hidden));
  attention_scratch_ = carver.take<float>(attention_floats_ * size_t(pool_.threads()));
  logit_rows_ = carver.take<float>(rows * size_t(needs_.vocabulary));
  split_ = carver.take<float>(kSplitFloats);
  return carver.used();
}

size_t Model::page_bytes(int32_t page_tokens) const {
  require(is_page_size(page_tokens), "a page has 16, 32, 64, 128 or 256 tokens");
  return KvGeometry{settings_.layers, settings_.kv_heads, settings_.head_dim, page_tokens,
                    settings_.kv_format}
      .page_bytes();
}

void Model::check_places(const std::vector<KvPlace>& places, int32_t window_tokens) const {
  require(places.size() == size_t(settings_.layers), "every layer has a place in a group");
  for (const KvPlace& place : places) {
    require(place.group >= 0 && place.group < settings_.layers && place.index >= 0 &&
                place.index < settings_.layers,
            "a layer's place is out of range");
  }
  for (const Operation& operation : program_) {
    if (operation.code != Opcode::Attention || places[operation.ints[2]].group == 0) continue;
    require(operation.ints[4] > 0 && operation.ints[4] <= window_tokens,
            "a layer sees more than the window of its group");
  }
}

void Model::allocate_kv(int32_t pages, int32_t page_tokens, std::vector<KvPlace> places,
                        int32_t window_tokens) {
  require(pages > 0, "the cache needs at least one page");
  check_places(places, window_tokens);
  int32_t groups = 0, layers = 0;
  for (const KvPlace& place : places) {
    groups = place.group < groups ? groups : place.group + 1;
    layers = place.index < layers ? layers : place.index + 1;
  }
  const size_t bytes = page_bytes(page_tokens) / settings_.layers * layers;
  require(size_t(pages) <= (size_t(1) << 46) / bytes, "the cache is too large for this machine");
  const std::lock_guard<std::mutex> between_steps(mutex_);
  cache_ = KvCache{};
  kv_memory_ = HugeBuffer();  // the old cache goes before the new one comes
  kv_memory_ = HugeBuffer(bytes * size_t(pages));
  cache_.geometry = KvGeometry{layers, settings_.kv_heads, settings_.head_dim, page_tokens,
                               settings_.kv_format};
  cache_.base = static_cast<uint8_t*>(kv_memory_.data());
  cache_.pages = pages;
  places_ = std::move(places);
  groups_ = groups;
  window_tokens_ = window_tokens;
  token_pages_.resize(size_t(groups) * settings_.max_tokens);
}

void Model::check_pages(int32_t first, int32_t count) const {
  require(first >= 0 && count >= 0 && first <= cache_.pages - count, "no such pages");
}

size_t Model::discard_kv(int32_t first, int32_t count) {
  const std::lock_guard<std::mutex> between_steps(mutex_);
  check_pages(first, count);
  const size_t bytes = cache_.geometry.page_bytes();
  return kv_memory_.discard(size_t(first) * bytes, size_t(count) * bytes);
}

void Model::populate_kv(int32_t first, int32_t count) {
  check_pages(first, count);
  const size_t bytes = cache_.geometry.page_bytes();
  kv_memory_.populate(size_t(first) * bytes, size_t(count) * bytes);
}

size_t Model::discard_workspace() {
  const std::lock_guard<std::mutex> between_steps(mutex_);
  return workspace_.discard(0, workspace_.bytes());
}

// Messages are put together only when something is wrong: this runs for every token of every step.
void Model::check(const StepInput& input) const {
  require(!program_.empty(), "the model has no program");
  require(cache_.base != nullptr, "the model has no KV cache: call allocate_kv");
  require(input.token_count > 0 && input.rows > 0, "the batch is empty");
  if (input.token_count > settings_.max_tokens) {
    fail("the batch has " + std::to_string(input.token_count) + " tokens, more than " +
         std::to_string(settings_.max_tokens));
  }
  for (size_t i = 0; i < input.token_count; ++i) {
    if (input.tokens[i] < 0 || input.tokens[i] >= needs_.embedding_rows) {
      fail("tokens[" + std::to_string(i) + "] is not in the vocabulary");
    }
  }
  require(input.row_starts[0] == 0 &&
              size_t(input.row_starts[input.rows]) == input.token_count,
          "row_starts must run from 0 to the number of tokens");
  for (size_t row = 0; row < input.rows; ++row) check_row(input, row);
  for (size_t i = 0; i < input.wanted_count; ++i) {
    if (input.wanted[i] < 0 || size_t(input.wanted[i]) >= input.token_count) {
      fail("wanted[" + std::to_string(i) + "] is not a token of the batch");
    }
  }
}

void Model::check_row(const StepInput& input, size_t row) const {
  const auto fail_row = [row](const std::string& message) {
    fail("row " + std::to_string(row) + message);
  };
  const int64_t page_tokens = cache_.geometry.page_tokens;
  const int64_t count = int64_t(input.row_starts[row + 1]) - input.row_starts[row];
  if (count <= 0 || size_t(input.row_starts[row + 1]) > input.token_count) {
    fail_row(" is empty or out of order");
  }
  if (input.past[row] < 0) fail_row(" has a negative past");
  const int64_t length = input.past[row] + count;
  if (length > int64_t(input.table_width / groups_) * page_tokens) {
    fail_row(" is longer than its page table");
  }
  for (int32_t group = 0; group < groups_; ++group) {
    const int32_t* table = input.tables + row * input.table_width + group;
    const int64_t unseen = group == 0 ? 0 : int64_t(input.past[row]) + 1 - window_tokens_;
    for (int64_t page = unseen > 0 ? unseen / page_tokens : 0; page * page_tokens < length;
         ++page) {
      const int32_t id = table[page * groups_];
      if (id < 0 || id >= cache_.pages) {
        fail_row(" has page " + std::to_string(id) + " of " + std::to_string(cache_.pages));
      }
    }
  }
}

void Model::place_tokens(const StepInput& input) {
  const int32_t page_tokens = cache_.geometry.page_tokens;
  for (size_t row = 0; row < input.rows; ++row) {
    const int32_t* table = input.tables + row * input.table_width;
    for (int32_t i = input.row_starts[row]; i < input.row_starts[row + 1]; ++i) {
      const int32_t position = input.past[row] + (i - input.row_starts[row]);
      token_positions_[i] = position;
      const int32_t* pages = table + size_t(position / page_tokens) * groups_;
      for (int32_t group = 0; group < groups_; ++group) {
        token_pages_[size_t(group) * settings_.max_tokens + i] = pages[group];
      }
      token_slots_[i] = position % page_tokens;
    }
  }
}

void Model::fill_rotations(const StepInput& input) {
  for (size_t index = 0; index < rotations_.size(); ++index) {
    const Rotation& rotation = rotations_[index];
    float* table = rotation_tables_[index];
    pool_.parallel_for(int64_t(input.token_count), 16, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        fill_rotation(rotation, token_positions_[i], table + size_t(i) * table_width(rotation));
      }
    });
  }
}

}  // namespace octavo
