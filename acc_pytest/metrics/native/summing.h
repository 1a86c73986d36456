// `Block`: what is summed of one block, tile by tile, and in which lanes.
#pragma once

#include "block.h"
#include "tile.h"

namespace {

constexpr int CHAIN = 16;  // additions to a float32 lane before it is emptied: 1e-6 at the worst

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

    bool run();

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
    double _g_lever = 1, _d_lever = 1, _products[3];  // of the tile; products are of what these multiply
    Floats _relative_peak{}, _scaled_peak{};
    Tile _tile;

    bool tiles(int64_t start, int64_t rows, int64_t channels);
    bool tile(int64_t start, int64_t row, int64_t column);
    void exclude(int64_t start, Extent &golden, Extent &mine, Extent &kept);
    void disagree(int64_t start, int at, Ints where, Floats g, Ints g_finite, Floats m, Ints m_finite);
    void compare(int64_t start);
    void locate(float peak, int64_t start);
    float floor(float golden_peak, int64_t before);
    template <bool EXACT> void errors(float floor, int64_t row);
    void columns(int64_t column);
    void add_products(int64_t start);
    void shift(float top, int64_t compared);
    template <bool WIDE, bool MASKED> void divergence(float furthest);
    void steep(int64_t start, bool masked);
    double sum(Sum which) const {
        double result = 0;
        for (double lane : _sums[which]) result += lane;
        return result;
    }
    void empty(Sum which, Floats &lanes, double factor = 1) {
        float values[LANES];
        store(values, lanes);
        for (int i = 0; i < LANES; i++) _sums[which][i] += values[i] * factor;
        lanes = Floats{};
    }
};

}  // namespace
