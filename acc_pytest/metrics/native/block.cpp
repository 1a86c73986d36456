// One block of a pair in one pass: float32 lanes, emptied into float64 before they lose digits.
//
// Compiled once for each instruction set, with LANES floats in a vector and BLOCK as the name of the door. A
// block is cut into tiles that stay in the first cache. A tile is widened to float32, which tells its extrema
// and whether every value is finite; then its errors are summed, then its divergence.
#include "divergence.h"
#include "errors.h"
#include "nonfinite.h"

namespace {

constexpr int WIDEST = 256;                          // columns of a tile
// Beside a largest value from SMALLEST on a million flushed numbers are 1e-8; squares and products have levers.
constexpr float LARGEST = 1e15f, SMALLEST = 1e-24f;
constexpr double OFFSET = 1e-6, FEW = 0.0144;        // float32 loses a spread this small beside a common offset

bool Block::run() {
    int64_t channels = _request.channels, rows = _request.elements / channels;
    if (_request.rows) return tiles(0, rows, channels);
    int64_t whole = _request.elements / WIDEST, rest = _request.elements % WIDEST;
    return tiles(0, whole, WIDEST) && tiles(whole * WIDEST, rest > 0, rest);
}

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
    _g_lever = lever(golden_peak), _d_lever = lever(peak), _products[0] = _products[1] = _products[2] = 0;
    {
        Flushed flushed;
        near > 0 && _request.atol >= PLAIN ? errors<false>(near, row) : errors<true>(near, row);
        if (_request.rows) columns(column);
    }
    add_products(start);
    shift(kept.most(), compared);
    float furthest = peak + fabsf(_center);
    if (furthest > STEEP) {
        steep(start, masked);
        return true;
    }
    // A weight is of the order of 1 at least once, beside which a million products of 2^-126 are nothing.
    Flushed flushed;
    if (furthest > SMALL)
        masked ? divergence<true, true>(furthest) : divergence<true, false>(furthest);
    else
        masked ? divergence<false, true>(furthest) : divergence<false, false>(furthest);
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

// log(1 + a + b) - a
double divergence_of(double a, double b) {
    double x = a + b;
    if (fabs(x) < 1e-3) return b - x * x * (1.0 / 2 - x * (1.0 / 3 - x * (1.0 / 4 - x / 5)));
    return log1p(x) - a;
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
    // Each d was rounded by up to 2^-25 of it: n of them, by chance of either sign, say less the fewer they are.
    if (_center && spread < fmax(OFFSET, FEW / n) * r.difference_squared / n && (r.first || r.curved)) return false;
    // The divergence is log(1 + a + b) - a; it loses digits where it is much smaller than what it is made of.
    double a = r.first / r.weight, b = r.curved / r.weight * exp(r.curved_scale - r.scale);
    double parts = fmax(b, fabs(a * (a + b))) / (1 + a + b);
    bool keeps = divergence_of(a, b) >= parts / 4 || fabs(a) <= 0x1p-22 * fabs(r.center);
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
