// A tile of a side, widened to float32: its types, its extrema, its place in the buffers.
#pragma once

#include "block.h"
#include "vectors.h"

#if defined __F16C__ || defined __AVX512F__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

namespace {

constexpr int TILE = 2048;  // elements of a tile
constexpr int32_t INFINITE = 0x7f800000;

// One vector of each type as float32; from the bits `infinite` on, |x| is not finite.
struct Half {
    using Element = uint16_t;
#if defined __AVX512F__ && LANES == 16
    static constexpr int32_t infinite = INFINITE;
    static Floats widen(const void *from) { return (Floats)_mm512_cvtph_ps(load<__m256i>(from)); }
#elif defined __F16C__ && LANES == 8
    static constexpr int32_t infinite = INFINITE;
    static Floats widen(const void *from) { return (Floats)_mm256_cvtph_ps(load<__m128i>(from)); }
#elif defined __aarch64__ && LANES == 4
    static constexpr int32_t infinite = INFINITE;
    static Floats widen(const void *from) { return (Floats)vcvt_f32_f16(load<float16x4_t>(from)); }
#else
    static constexpr int32_t infinite = 143 << 23;  // NaN and infinity become 65536 and more
    static Floats widen(const void *from) {
        Ints bits = __builtin_convertvector(load<Shorts>(from), Ints);
        Ints magnitude = (bits & 0x7fff) << 13;
        Ints subnormal = as_ints(as_floats(magnitude + (113 << 23)) - 0x1p-14f);
        Ints shifted = magnitude < (1 << 23) ? subnormal : magnitude + (112 << 23);
        return as_floats(shifted | (bits & 0x8000) << 16);
    }
#endif
};
struct Brain {
    using Element = uint16_t;
    static constexpr int32_t infinite = INFINITE;
    static Floats widen(const void *from) {
        return as_floats(__builtin_convertvector(load<Shorts>(from), Ints) << 16);
    }
};
struct Single {
    using Element = float;
    static constexpr int32_t infinite = INFINITE;
    static Floats widen(const void *from) { return load<Floats>(from); }
};

struct Extent {
    Floats low = all(INFINITY), high = all(-INFINITY);
    Ints size{};
    void add(Floats values) {
        low = smaller(values, low), high = larger(values, high), size = larger(size_bits(values), size);
    }
    void add_where(Floats values, Ints kept) {
        low = smaller(kept ? values : all(INFINITY), low), high = larger(kept ? values : all(-INFINITY), high);
        size = larger(size_bits(values) & kept, size);
    }
    float least() const { return folded(low, false); }
    float most() const { return folded(high, true); }
    int32_t bits() const { return folded(size, true); }
    float peak() const {
        int32_t most = bits();
        float value;
        memcpy(&value, &most, sizeof value);
        return value;
    }
};

// A rectangle of elements: `rows` of `columns`, `stride` apart at the source and `padded` in the buffers, where
// zeros fill up the last vector of a row.
struct Tile {
    int rows, columns, padded;
    int64_t stride;
    alignas(64) float golden[TILE], difference[TILE], mine[TILE], keep[TILE];
    int vectors() const { return rows * padded / LANES; }
    int64_t flat(int at) const { return at / padded * stride + at % padded; }
};

// Widens a side of a tile. With `golden`, `out` gets the difference to it and `errors` how large it is.
template <class T>
void widen(const void *source, const void *stop, const Tile &tile, const float *golden, float *out, Extent &extent,
           Extent &errors) {
    using Element = typename T::Element;
    const Element *from = static_cast<const Element *>(source), *end = static_cast<const Element *>(stop);
    bool whole = tile.stride == tile.columns && tile.padded == tile.columns;
    int rows = whole ? 1 : tile.rows, columns = whole ? tile.rows * tile.columns : tile.columns;
    Extent seen = extent, apart = errors;
    for (int row = 0; row < rows; row++, from += tile.stride, out += tile.padded) {
        int at = 0;
        for (; at + LANES <= columns; at += LANES) {
            Floats values = T::widen(from + at);
            seen.add(values);
            if (golden) {
                values -= load<Floats>(golden + at);
                apart.size = larger(size_bits(values), apart.size);
            }
            store(out + at, values);
        }
        if (at < columns) {
            Element tail[LANES] = {};
            const Element *rest = from + at;
            if (rest + LANES > end) rest = static_cast<const Element *>(memcpy(tail, rest, (columns - at) * sizeof(Element)));
            Ints there = lane_numbers() + at < columns;
            Floats values = as_floats(as_ints(T::widen(rest)) & there);
            seen.add_where(values, there);
            if (golden) {
                values -= load<Floats>(golden + at);
                apart.size = larger(size_bits(values), apart.size);
            }
            store(out + at, values);
        }
        if (golden) golden += tile.padded;
    }
    extent = seen, errors = apart;
}

using Widen = void(const void *, const void *, const Tile &, const float *, float *, Extent &, Extent &);

struct Side {
    const char *data;
    int64_t elements;
    int width;
    int32_t infinite;  // bits of |x| from which on it is not finite
    Widen *function;
    const char *at(int64_t start) const { return data + start * width; }
    void widen(int64_t start, const Tile &tile, const float *golden, float *out, Extent &extent, Extent &errors) const {
        function(at(start), at(elements), tile, golden, out, extent, errors);
    }
};

Side side_of(const void *data, int64_t elements, int32_t type) {
    const char *bytes = static_cast<const char *>(data);
    if (type == FLOAT16) return {bytes, elements, 2, Half::infinite, widen<Half>};
    if (type == BFLOAT16) return {bytes, elements, 2, Brain::infinite, widen<Brain>};
    return {bytes, elements, 4, Single::infinite, widen<Single>};
}

}  // namespace
