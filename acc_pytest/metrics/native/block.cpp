// One block of a pair in one pass: float32 lanes, emptied into float64 before they lose digits.
//
// Compiled once for each instruction set, with LANES floats in a vector and BLOCK as the name of the door. A
// block is cut into tiles that stay in the first cache. A tile is widened to float32, which tells its extrema
// and whether every value is finite; then its errors are summed, then its divergence.
#include "block.h"

#include <math.h>
#include <string.h>

// Keeps a product from being fused with the sum that follows: it is rounded as NumPy rounds it.
#if defined __x86_64__
#define KEEP_ROUNDED(values) asm("" : "+v"(values))
#elif defined __aarch64__
#define KEEP_ROUNDED(values) asm("" : "+w"(values))
#else
#define KEEP_ROUNDED(values) asm("" : "+m"(values))
#endif

namespace {

constexpr int CHAIN = 16;               // additions to a float32 lane before it is emptied: 1e-6 at the worst
constexpr int WIDEST = 256;             // columns of a tile
constexpr int TILE = 2048;              // elements of a tile

constexpr float NEAR_ZERO = 0x1p-23f;
constexpr float LARGEST = 1e15f, SMALLEST = 1e-12f;  // squares, products and quotients between keep their digits
constexpr float SMALL = 1.0f / 16;      // up to this |d| four terms of a series are enough
constexpr float STEEP = 16.0f;          // beyond this d, e^d is summed in float64, with an exponent beside it
constexpr float CLOSE = 0.25f;          // up to this |d|^2 / |g|^2 products with mine follow from those with d
constexpr float NARROW = 10.0f;         // softmax needs no shift while golden is within this of zero
constexpr float ROOM = 20.0f;           // how far above the shift golden may be
constexpr double OFFSET = 1e-6;         // float32 loses the spread beside an offset larger than this says
constexpr int32_t INFINITE = 0x7f800000, HALF_INFINITE = 143 << 23;

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint16_t Shorts __attribute__((vector_size(2 * LANES)));

inline Ints lane_numbers() {
    Ints result{};
    for (int i = 0; i < LANES; i++) result[i] = i;
    return result;
}
inline Floats all(float value) { return value - Floats{}; }
inline Floats as_floats(Ints bits) { return (Floats)bits; }
inline Ints as_ints(Floats values) { return (Ints)values; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }
inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }
inline Ints size_bits(Floats values) { return as_ints(values) & 0x7fffffff; }
inline Floats size(Floats values) { return as_floats(size_bits(values)); }

template <class V> inline V load(const void *from) {
    V values;
    memcpy(&values, from, sizeof values);
    return values;
}
inline void store(float *to, Floats values) { memcpy(to, &values, sizeof values); }

template <class V> inline auto folded(V values, bool most) {
    auto result = values[0];
    for (int i = 1; i < LANES; i++)
        if (most ? values[i] > result : values[i] < result) result = values[i];
    return result;
}

template <int COUNT> struct Lanes {
    typedef float Vector __attribute__((vector_size(4 * COUNT)));
    static float total(Vector values) {
        typename Lanes<COUNT / 2>::Vector halves[2];
        memcpy(halves, &values, sizeof values);
        return Lanes<COUNT / 2>::total(halves[0] + halves[1]);
    }
};
template <> struct Lanes<4> {
    typedef float Vector __attribute__((vector_size(16)));
    static float total(Vector values) { return (values[0] + values[2]) + (values[1] + values[3]); }
};
inline float total(Floats values) { return Lanes<LANES>::total(values); }

inline int64_t count(Ints flags) {  // of comparisons, which are -1
    int64_t result = 0;
    for (int i = 0; i < LANES; i++) result -= flags[i];
    return result;
}

// One vector of each type as float32. NaN and infinity of float16 become 65536 and more.
struct Half {
    using Element = uint16_t;
    static Floats widen(const void *from) {
        Ints bits = __builtin_convertvector(load<Shorts>(from), Ints);
        Ints magnitude = (bits & 0x7fff) << 13;
        Ints subnormal = as_ints(as_floats(magnitude + (113 << 23)) - 0x1p-14f);
        Ints shifted = magnitude < (1 << 23) ? subnormal : magnitude + (112 << 23);
        return as_floats(shifted | (bits & 0x8000) << 16);
    }
};
struct Brain {
    using Element = uint16_t;
    static Floats widen(const void *from) {
        return as_floats(__builtin_convertvector(load<Shorts>(from), Ints) << 16);
    }
};
struct Single {
    using Element = float;
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
    if (type == FLOAT16) return {bytes, elements, 2, HALF_INFINITE, widen<Half>};
    if (type == BFLOAT16) return {bytes, elements, 2, INFINITE, widen<Brain>};
    return {bytes, elements, 4, INFINITE, widen<Single>};
}

// e^x for -87 <= x <= 80, to 1e-7 relative: 2^n e^r with |r| <= log(2)/2.
struct Power {
    Floats r, n;
    Ints shift;
};
inline Power reduced(Floats x) {
    constexpr float magic = 0x1.8p23f;
    Floats turned = x * 1.44269504f + magic;
    Floats n = turned - magic;
    return {(x - n * 0.693359375f) + n * 2.12194440e-4f, n, as_ints(turned) << 23};
}
inline Floats times(Floats values, Ints shift) { return as_floats(as_ints(values) + shift); }
// (e^r - 1 - r) / r^2 for |r| <= log(2)/2.
inline Floats bend(Floats r) {
    return ((((r * 1.3901287e-3f + 8.3631463e-3f) * r + 4.1666854e-2f) * r + 1.66665778e-1f) * r + 0.5f);
}
inline Floats exponential(Floats x) {
    Power p = reduced(larger(x, all(-87.0f)));
    return times((p.r * p.r) * bend(p.r) + p.r + 1.0f, p.shift);
}

enum Sum { GOLDEN, DIFFERENCE, ABSOLUTE, RELATIVE, WEIGHT, FIRST, CURVED, SUMS };

class Block {
  public:
    Block(const Request &request, Result &result, float center)
        : _request(request), _result(result), _golden(side_of(request.golden, request.elements, request.golden_type)),
          _mine(side_of(request.mine, request.elements, request.mine_type)), _center(center) {
        _result = Result{};
        _result.peak_at = _result.first_disagreeing = -1;
        _result.identical = request.golden_type == request.mine_type;
        _result.golden_low = _result.mine_low = INFINITY;
        _result.golden_high = _result.mine_high = -INFINITY;
    }

    bool run() {
        int64_t channels = _request.channels, rows = _request.elements / channels;
        if (_request.rows) return tiles(0, rows, channels);
        int64_t whole = _request.elements / WIDEST, rest = _request.elements % WIDEST;
        return tiles(0, whole, WIDEST) && tiles(whole * WIDEST, rest > 0, rest);
    }

    // Whether float32 did for it; fills in what follows from the sums.
    bool finish();
    float center() const { return float(_result.center + _result.first / _result.weight); }
    bool loose() const { return _loose; }

  private:
    const Request &_request;
    Result &_result;
    Side _golden, _mine;
    float _center, _scale = NAN;
    double _curved_scale = 0;
    double _steep = 0;  // the curved sum of what is steep, times e^_curved_scale
    bool _loose = false;
    bool _excluded = false;  // the buffer of mine holds what is kept of this tile
    double _sums[SUMS][LANES] = {};
    Floats _relative_peak{}, _scaled_peak{};
    Tile _tile;

    bool tiles(int64_t start, int64_t rows, int64_t channels);
    bool tile(int64_t start, int64_t row, int64_t column);
    void exclude(int64_t start, Extent &golden, Extent &mine, Extent &kept);
    void disagree(int64_t start, int at, Ints where, Floats g, Ints g_finite, Floats m, Ints m_finite);
    void compare(int64_t start);
    void locate(float peak, int64_t start);
    float floor(float golden_peak, int64_t before);
    void errors(float floor, int64_t row, int64_t start);
    void columns(int64_t column);
    void add_products(double gg, double gd, double dd, int64_t start);
    void shift(float top, int64_t compared);
    template <bool WIDE, bool MASKED> void divergence();
    void steep(int64_t start, bool masked);
    double sum(Sum which) const {
        double result = 0;
        for (double lane : _sums[which]) result += lane;
        return result;
    }
    void empty(Sum which, Floats &lanes) {
        float values[LANES];
        store(values, lanes);
        for (int i = 0; i < LANES; i++) _sums[which][i] += values[i];
        lanes = Floats{};
    }
};

bool Block::tiles(int64_t start, int64_t rows, int64_t channels) {
    for (int64_t row = 0; row < rows;) {
        int64_t high = 0;
        for (int64_t column = 0; column < channels; column += WIDEST) {
            int columns = int(channels - column < WIDEST ? channels - column : WIDEST);
            int padded = (columns + LANES - 1) / LANES * LANES;
            // All tiles of a band are as high as the first, which is the widest.
            if (!high) high = TILE / padded < rows - row ? TILE / padded : rows - row;
            _tile.rows = int(high), _tile.columns = columns, _tile.padded = padded, _tile.stride = channels;
            if (!tile(start + row * channels + column, row, column)) return false;
        }
        row += high;
    }
    return true;
}

// One tile, from the flat position `start`; false where float32 does not do.
bool Block::tile(int64_t start, int64_t row, int64_t column) {
    compare(start);
    Extent g, m, d;
    _golden.widen(start, _tile, nullptr, _tile.golden, g, d);
    _mine.widen(start, _tile, _tile.golden, _tile.difference, m, d);
    Extent kept = g;
    int64_t elements = int64_t(_tile.rows) * _tile.columns, before = _result.compared;
    int buffered = _tile.rows * _tile.padded;
    bool masked = _tile.padded != _tile.columns;
    _excluded = g.bits() >= _golden.infinite || m.bits() >= _mine.infinite;
    if (_excluded) {
        masked = true;
        _mine.widen(start, _tile, nullptr, _tile.mine, m, d);
        exclude(start, g, m, kept);
        d = Extent{};
        for (int i = 0; i < buffered; i += LANES) {
            Floats apart = load<Floats>(_tile.mine + i) - load<Floats>(_tile.golden + i);
            store(_tile.difference + i, apart);
            d.size = larger(size_bits(apart), d.size);
        }
    } else {
        _result.golden_count += elements, _result.mine_count += elements, _result.compared += elements;
        if (masked)
            for (int i = 0; i < buffered; i++) _tile.keep[i] = i % _tile.padded < _tile.columns;
    }
    _result.golden_low = fmin(_result.golden_low, g.least()), _result.golden_high = fmax(_result.golden_high, g.most());
    _result.mine_low = fmin(_result.mine_low, m.least()), _result.mine_high = fmax(_result.mine_high, m.most());
    int64_t compared = _result.compared - before;
    if (!compared) return true;
    float peak = d.peak(), golden_peak = kept.peak();
    if (peak > LARGEST || golden_peak > LARGEST) return false;
    locate(peak, start);
    float near = floor(golden_peak, before);
    _result.near_zero -= buffered - compared;  // zeros, counted with the others
    errors(near, row, start);
    if (_request.rows) columns(column);
    shift(kept.most(), compared);
    float furthest = peak + fabsf(_center);
    if (furthest > STEEP)
        steep(start, masked);
    else if (furthest > SMALL)
        masked ? divergence<true, true>() : divergence<true, false>();
    else
        masked ? divergence<false, true>() : divergence<false, false>();
    return true;
}

// Whether both sides have the same bytes so far.
void Block::compare(int64_t start) {
    if (!_result.identical) return;
    const char *golden = _golden.at(start), *mine = _mine.at(start);
    bool whole = _tile.stride == _tile.columns;
    int64_t pieces = whole ? 1 : _tile.rows, length = (whole ? _tile.rows : 1) * int64_t(_tile.columns);
    for (int64_t i = 0; i < pieces && _result.identical; i++) {
        int64_t at = i * _tile.stride * _golden.width;
        _result.identical = !memcmp(golden + at, mine + at, length * _golden.width);
    }
}

// Counts what is not finite and leaves zeros there, on both sides, that are not kept. `kept` tells of golden's
// values that are.
void Block::exclude(int64_t start, Extent &golden, Extent &mine, Extent &kept) {
    golden = mine = kept = Extent{};
    Ints counts[9] = {}, infinite = Ints{} + _golden.infinite, mine_infinite = Ints{} + _mine.infinite;
    for (int at = 0; at < _tile.rows * _tile.padded; at += LANES) {
        Ints there = lane_numbers() + at % _tile.padded < _tile.columns;
        Floats g = load<Floats>(_tile.golden + at), m = load<Floats>(_tile.mine + at);
        Ints g_size = size_bits(g), m_size = size_bits(m);
        Ints g_finite = (g_size < infinite) & there, m_finite = (m_size < mine_infinite) & there;
        Ints g_nan = (g_size > infinite) & there, m_nan = (m_size > mine_infinite) & there;
        Ints both = g_finite & m_finite, neither = there & ~g_finite & ~m_finite;
        Ints same_nan = g_nan & m_nan, same_inf = neither & ~g_nan & ~m_nan & ((as_ints(g) ^ as_ints(m)) >= 0);
        Ints lost = m_finite & ~g_finite, fresh = g_finite & ~m_finite, changed = neither & ~same_nan & ~same_inf;
        Ints flags[9] = {both, g_finite, m_finite, g_nan, m_nan, same_nan, same_inf, fresh, lost};
        for (int i = 0; i < 9; i++) counts[i] += flags[i];
        golden.add_where(g, g_finite), mine.add_where(m, m_finite), kept.add_where(g, both);
        if (folded(lost | fresh | changed, false)) disagree(start, at, lost | fresh | changed, g, g_finite, m, m_finite);
        store(_tile.golden + at, as_floats(as_ints(g) & both));
        store(_tile.mine + at, as_floats(as_ints(m) & both));
        store(_tile.keep + at, as_floats(as_ints(all(1.0f)) & both));
    }
    Result &r = _result;
    int64_t n[9], elements = int64_t(_tile.rows) * _tile.columns;
    for (int i = 0; i < 9; i++) n[i] = count(counts[i]);
    r.compared += n[0], r.golden_count += n[1], r.mine_count += n[2], r.golden_nan += n[3], r.mine_nan += n[4];
    r.golden_inf += elements - n[1] - n[3], r.mine_inf += elements - n[2] - n[4];
    r.common_nan += n[5], r.common_inf += n[6], r.fresh += n[7], r.lost += n[8];
    r.changed += elements - n[0] - n[5] - n[6] - n[7] - n[8];
}

// Where the sides disagree: the first place, and the sums of what is finite on one side only.
void Block::disagree(int64_t start, int at, Ints where, Floats g, Ints g_finite, Floats m, Ints m_finite) {
    for (int i = 0; i < LANES; i++) {
        if (!where[i]) continue;
        int64_t flat = start + _tile.flat(at + i);
        if (_result.first_disagreeing < 0 || flat < _result.first_disagreeing) _result.first_disagreeing = flat;
        if (g_finite[i]) _result.golden_total += g[i];
        if (m_finite[i]) _result.mine_total += m[i];
    }
}

// The place of the largest error, the first one of several.
void Block::locate(float peak, int64_t start) {
    if (!(peak > 0 && peak >= _result.peak)) return;
    for (int i = 0; i < _tile.rows * _tile.padded; i++)
        if (fabsf(_tile.difference[i]) == peak) {
            int64_t flat = start + _tile.flat(i);
            if (peak > _result.peak || flat < _result.peak_at) _result.peak_at = flat;
            break;
        }
    _result.peak = peak;
}

// The |golden| up to which a tile is near zero: 0 until something is larger than NEAR_ZERO, which then makes all
// before it near zero.
float Block::floor(float golden_peak, int64_t before) {
    bool seen = _result.golden_peak > NEAR_ZERO;
    _result.golden_peak = fmax(_result.golden_peak, golden_peak);
    if (!(_result.golden_peak > NEAR_ZERO)) return 0;
    if (!seen) {
        for (double &lane : _sums[RELATIVE]) lane = 0;
        _relative_peak = Floats{};
        _result.near_zero = before;
    }
    return NEAR_ZERO;
}

void Block::errors(float floor, int64_t row, int64_t start) {
    const Tile &tile = _tile;
    float rtol = _request.rtol, atol = _request.atol;
    int64_t all_rows = _request.elements / _request.channels;
    int vectors = tile.padded / LANES, chained = 0;
    Floats golden{}, difference{}, absolute{}, relative{};
    Floats relative_peak = _relative_peak, scaled_peak = _scaled_peak;
    Ints near{}, beyond{};
    double products[3] = {};
    for (int r = 0; r < tile.rows; r++) {
        double of_row[3] = {};
        for (int first = 0; first < vectors; first += CHAIN) {
            Floats gg{}, gd{}, dd{};
            int last = first + CHAIN < vectors ? first + CHAIN : vectors;
            for (int v = first; v < last; v++) {
                int at = r * tile.padded + v * LANES;
                Floats g = load<Floats>(tile.golden + at), d = load<Floats>(tile.difference + at);
                Floats length = size(g), error = size(d);
                golden += g, difference += d, absolute += error;
                gg += g * g, gd += g * d, dd += d * d;
                Floats allowed = length * rtol;
                KEEP_ROUNDED(allowed);
                beyond += error > allowed + atol;
                Ints zero = length <= floor;
                near += zero;
                Floats quotient = error / length;
                scaled_peak = larger(smaller(quotient, error), scaled_peak);
                quotient = as_floats(as_ints(quotient) & ~zero);
                relative += quotient;
                relative_peak = larger(quotient, relative_peak);
            }
            of_row[0] += total(gg), of_row[1] += total(gd), of_row[2] += total(dd);
            chained += last - first;
            if (chained + vectors > CHAIN) {
                empty(GOLDEN, golden), empty(DIFFERENCE, difference);
                empty(ABSOLUTE, absolute), empty(RELATIVE, relative);
                chained = 0;
            }
        }
        for (int k = 0; k < 3; k++) {
            products[k] += of_row[k];
            if (_request.rows) _request.rows[k * all_rows + row + r] += of_row[k];
        }
    }
    empty(GOLDEN, golden), empty(DIFFERENCE, difference), empty(ABSOLUTE, absolute), empty(RELATIVE, relative);
    _relative_peak = relative_peak, _scaled_peak = scaled_peak;
    _result.near_zero += count(near), _result.beyond += count(beyond);
    add_products(products[0], products[1], products[2], start);
}

// Sums of the products by column.
void Block::columns(int64_t column) {
    const Tile &tile = _tile;
    for (int top = 0; top < tile.rows; top += CHAIN) {
        int bottom = top + CHAIN < tile.rows ? top + CHAIN : tile.rows;
        for (int at = 0; at < tile.padded; at += LANES) {
            Floats products[3] = {};
            for (int r = top; r < bottom; r++) {
                Floats g = load<Floats>(tile.golden + r * tile.padded + at);
                Floats d = load<Floats>(tile.difference + r * tile.padded + at);
                products[0] += g * g, products[1] += g * d, products[2] += d * d;
            }
            int width = tile.columns - at < LANES ? tile.columns - at : LANES;
            for (int k = 0; k < 3; k++) {
                double *to = _request.columns + k * _request.channels + column + at;
                float lanes[LANES];
                store(lanes, products[k]);
                if (width == LANES)
                    for (int i = 0; i < LANES; i++) to[i] += lanes[i];
                else
                    for (int i = 0; i < width; i++) to[i] += lanes[i];
            }
        }
    }
}

// What follows from the products; those with mine of unrelated sides would cancel, so they are summed.
void Block::add_products(double gg, double gd, double dd, int64_t start) {
    _result.golden_squared += gg, _result.golden_difference += gd, _result.difference_squared += dd;
    if (dd <= CLOSE * gg) {
        _result.golden_mine += gg + gd, _result.mine_squared += gg + 2 * gd + dd;
        return;
    }
    Extent m, d;
    if (!_excluded) _mine.widen(start, _tile, nullptr, _tile.mine, m, d);
    double with_golden[LANES] = {}, squared[LANES] = {};
    for (int i = 0; i < _tile.rows * _tile.padded; i += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            double own = _tile.mine[i + lane], other = _tile.golden[i + lane];
            with_golden[lane] += own * other, squared[lane] += own * own;
        }
    for (int lane = 0; lane < LANES; lane++)
        _result.golden_mine += with_golden[lane], _result.mine_squared += squared[lane];
}

// Moves the shift of softmax(golden) up to `top` where weights would overflow, and sets it first.
void Block::shift(float top, int64_t compared) {
    if (isnan(_scale)) {
        _scale = fabsf(top) <= NARROW ? 0 : top;
        _curved_scale = _scale;
        if (!isnan(_center)) return;
        double offset = 0, squares = 0;
        for (int i = 0; i < _tile.rows * _tile.padded; i++) {
            offset += _tile.difference[i];
            squares += double(_tile.difference[i]) * _tile.difference[i];
        }
        // Most of the difference is one common offset.
        _center = 4 * offset * offset > squares * compared ? float(offset / compared) : 0;
    } else if (top > _scale + ROOM) {
        double factor = exp(double(_scale) - top);
        for (int which = WEIGHT; which <= CURVED; which++)
            for (double &lane : _sums[which]) lane *= factor;
        _scale = top;
    }
}

// Sums of w, w d and w (e^d - 1 - d), with weights w = e^(golden - shift) and d measured from the centre.
template <bool WIDE, bool MASKED> void Block::divergence() {
    Floats weight{}, first{}, curved{};
    int vectors = _tile.vectors();
    for (int v = 0; v < vectors; v++) {
        Floats g = load<Floats>(_tile.golden + v * LANES), d = load<Floats>(_tile.difference + v * LANES) - _center;
        Floats w = exponential(g - _scale);
        if (MASKED) w *= load<Floats>(_tile.keep + v * LANES);
        Floats wd = w * d;
        weight += w, first += wd;
        if (WIDE) {
            // With d = n log(2) + r: e^d - 1 - d = 2^n (e^r - 1 - r) + (2^n (1 + r) - (1 + d)).
            Power p = reduced(larger(d, all(-87.0f)));
            Floats two = times(all(1.0f), p.shift);
            Floats rest = two * (1.0f + p.r) - (1.0f + d);
            curved += w * (two * ((p.r * p.r) * bend(p.r)) + rest);
        } else {
            curved += wd * (d * (((d * (1.0f / 120) + 1.0f / 24) * d + 1.0f / 6) * d + 0.5f));
        }
        if (v % CHAIN == CHAIN - 1 || v == vectors - 1) empty(WEIGHT, weight), empty(FIRST, first), empty(CURVED, curved);
    }
}

// The same in float64 where d is large: rounded to float32 it would not do as an exponent.
void Block::steep(int64_t start, bool masked) {
    Extent m, apart;
    if (!_excluded) _mine.widen(start, _tile, nullptr, _tile.mine, m, apart);
    double top = -INFINITY;
    int elements = _tile.rows * _tile.padded;
    for (int i = 0; i < elements; i++)
        if (!masked || _tile.keep[i]) top = fmax(top, double(_tile.mine[i]) - _center);
    if (top > _curved_scale) _steep *= exp(_curved_scale - top), _curved_scale = top;
    for (int i = 0; i < elements; i++) {
        if (masked && !_tile.keep[i]) continue;
        double g = _tile.golden[i], d = double(_tile.mine[i]) - g - _center, w = exp(g - _scale);
        _sums[WEIGHT][i % LANES] += w, _sums[FIRST][i % LANES] += w * d;
        if (d > STEEP)
            _steep += exp(g + d - _curved_scale) - exp(g - _curved_scale) * (1 + d);
        else
            _sums[CURVED][i % LANES] += w * (expm1(d) - d);
    }
}

bool ordinary(double peak) { return peak == 0 || (SMALLEST <= peak && peak <= LARGEST); }

bool Block::finish() {
    Result &r = _result;
    r.golden = sum(GOLDEN), r.difference = sum(DIFFERENCE), r.mine = r.golden + r.difference;
    r.golden_total += r.golden, r.mine_total += r.mine;
    r.absolute = sum(ABSOLUTE), r.relative = sum(RELATIVE);
    r.relative_peak = folded(_relative_peak, true), r.scaled_peak = folded(_scaled_peak, true);
    if (!ordinary(fmax(r.golden_high, -r.golden_low)) && r.golden_count) return false;
    if (!ordinary(fmax(r.mine_high, -r.mine_low)) && r.mine_count) return false;
    if (!ordinary(r.peak) || !isfinite(r.relative)) return false;
    if (!r.compared) return true;
    r.weight = sum(WEIGHT), r.first = sum(FIRST), r.scale = _scale, r.center = _center;
    r.curved = sum(CURVED), r.curved_scale = _scale;
    if (_steep) {
        r.curved_scale = fmax(_curved_scale, _scale);
        r.curved = r.curved * exp(_scale - r.curved_scale) + _steep * exp(_curved_scale - r.curved_scale);
    }
    double n = double(r.compared), mean = r.difference / n, spread = r.difference_squared / n - mean * mean;
    if (_center && spread < OFFSET * r.difference_squared / n && (r.first || r.curved)) return false;
    // The divergence is log(1 + a + b) - a; it loses digits where it is much smaller than what it is made of.
    double a = r.first / r.weight, b = r.curved / r.weight * exp(r.curved_scale - r.scale);
    double parts = fmax(b, fabs(a * (a + b))) / (1 + a + b);
    bool keeps = log1p(a + b) - a >= parts / 4 || fabs(a) <= 0x1p-22 * fabs(r.center);
    _loose = isfinite(b) && !keeps;
    return true;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int BLOCK(const Request &request, Result &result) {
    float center = NAN;
    for (int turn = 0; turn < 2; turn++) {
        Block block(request, result, center);
        if (!block.run() || !block.finish()) return 0;
        if (!block.loose()) return 1;
        center = block.center();
        if (request.rows) {
            memset(request.rows, 0, 3 * (request.elements / request.channels) * sizeof(double));
            memset(request.columns, 0, 3 * request.channels * sizeof(double));
        }
    }
    return 0;
}
