// Keys of pages: chained hashes of everything that their content depends on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/key_map.h"

namespace octavo {

// Key of the page of `tokens` that follows the page of key `parent`: BLAKE2b (RFC 7693) of 32 bytes,
// personalised, over the parent's key and the tokens as little-endian 32-bit integers.
PageKey child_key(const PageKey& parent, const int32_t* tokens, size_t count);

}  // namespace octavo
