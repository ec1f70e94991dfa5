// Random bits for stochastic rounding from a counter: a pure function of (seed, step, tensor,
// element), so that the bits do not depend on machine, grid, block or thread count, and a resumed
// run repeats them.
//
// mix() is the 32-bit finaliser "lowbias32" (constants found by exhaustive search, bias 0.17: C.
// Wellons, "Prospecting for hash functions", 2018). It costs an AVX2 Adam step 4 %, where
// Philox4x32-7 costs 27 % and Philox4x32-10 41 %; its uniformity, its correlation over element,
// step and tensor, and the bias of a rounded mean are tested against Philox4x32-10.
#pragma once
#include <fp8amp/numerics/formats.h>

namespace fp8amp::numerics {

FP8AMP_HD std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

// One key per (seed, step, tensor, purpose). `purpose` separates the streams of one tensor: first
// moment, second moment, master weight.
FP8AMP_HD std::uint32_t random_key(std::uint64_t seed, std::uint32_t step, std::uint32_t tensor,
                                   std::uint32_t purpose = 0) {
  const std::uint32_t s = mix(std::uint32_t(seed)) ^ mix(std::uint32_t(seed >> 32) + 0x9e3779b9u);
  return mix(mix(mix(s ^ tensor) ^ step) + purpose * 0x85ebca6bu);
}

// 20 random bits for one element. Elements i and i + 8 of each 16 share one 32-bit word (its low
// and its high 20 bits): the 8 shared bits are the least significant of the one and the most
// significant of the other. Eight neighbours use eight words, which is one vector of lanes on a CPU
// and one 128-bit access of a GPU thread.
//
// A word gives a second draw for another rounding of the same elements, for a tenth of the price of
// another word: the word times a multiplier of good spectral value (G. Steele and S. Vigna,
// "Computationally easy, spectrally good multipliers", 2022). That the two draws are independent is
// tested as the rest.
enum class Draw : std::uint8_t { kFirst, kSecond };
FP8AMP_HD std::uint32_t second_word(std::uint32_t word) { return word * 0x915f77f5u; }

FP8AMP_HD std::uint32_t random_word(std::uint32_t key, std::uint64_t word) {
  return mix(std::uint32_t(word) ^ mix(key ^ std::uint32_t(word >> 32)));
}
FP8AMP_HD std::uint32_t random_bits(std::uint32_t key, std::uint64_t element,
                                    Draw draw = Draw::kFirst) {
  const std::uint32_t word = random_word(key, element / 16 * 8 + element % 8),
                      w = draw == Draw::kSecond ? second_word(word) : word;
  return element / 8 % 2 ? w >> 12 : w & 0xfffffu;
}

}  // namespace fp8amp::numerics
