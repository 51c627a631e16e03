// All steps of a chunk of one Transformer: on a GPU by one block, which keeps weights, moments and
// gradient in shared memory, on a CPU by one thread, with an example in each place of its vectors.
// What compiles it for a size (cuda.py and cplusplus.py of memobench/engine) defines
//   D width, LAYERS, in each H heads of dimension K and W neurons, N vocabulary, S tokens, B
//   examples at a time,
//   FULL where heads act on the stream and positions are part of it, COMPRESS where heads act on a
//   map of it to K, RELU where the activation is that and no gelu, WEIGHTED where examples come
//   with weights, and of the optimiser its name, ADAM or MUON, and its numbers and choices.
// A layer takes one place after another, the last layer the last one alone: heads mix its token and
// what those before have beyond it.
// A row is what a feature reads or writes: of the stream, D numbers, or of heads' input, I; padded
// in memory, so that four are read at a time. No atomics: equal inputs give equal bits.
#if defined(__CUDACC__)
#define DEVICE __device__ __forceinline__
#define SYNC __syncthreads()
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#include <cmath>
#include <cstring>
#include <new>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif
#define DEVICE inline __attribute__((always_inline))
#define SYNC
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 64")
#endif
#define NO_UNROLL
#endif

namespace {

// --- Numbers: one of an example on a GPU, of as many examples as a vector has places on a CPU ----

#if defined(__CUDACC__)
constexpr int LANES = 1;
using real = float;
using whole = int;
using mask = bool;
DEVICE real spread(float x) { return x; }
DEVICE real of_bits(whole x) { return __int_as_float(x); }
DEVICE float select(bool is, float a, float b) { return is ? a : b; }
DEVICE float exponential(float x) { return expf(x); }
DEVICE float logarithm(float x) { return logf(x); }
DEVICE float root(float x) { return sqrtf(x); }
DEVICE whole indices() { return 0; }
#else
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float real __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int whole __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
using mask = whole;
DEVICE real spread(float x) { return real{} + x; }
template <typename T>
DEVICE T select(mask is, T a, T b) { return is ? a : b; }
DEVICE real convert(whole x) { return __builtin_convertvector(x, real); }
DEVICE whole convert(real x) { return __builtin_convertvector(x, whole); }
DEVICE whole bits(real x) { return (whole)x; }
DEVICE real of_bits(whole x) { return (real)x; }
DEVICE whole indices() {
    whole x;
    for (int i = 0; i < LANES; ++i) x[i] = i;
    return x;
}
// 2^n e^r with |r| < 0.35, to which eight terms of the series are enough.
DEVICE real exponential(real x) {
    x = select(x > 88.0f, spread(88.0f), select(x < -87.0f, spread(-87.0f), x));
    const real n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;
    const real r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    real sum = spread(1.0f / 5040);
    sum = sum * r + 1.0f / 720, sum = sum * r + 1.0f / 120, sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6, sum = sum * r + 0.5f, sum = sum * r + 1.0f, sum = sum * r + 1.0f;
    return of_bits(bits(sum) + (convert(n) << 23));
}
// n log 2 + log m with m near 1, of which log m = 2 artanh((m - 1) / (m + 1)).
DEVICE real logarithm(real x) {
    const whole n = (bits(x) - 0x3f3504f3) >> 23;
    const real m = of_bits(bits(x) - (n << 23)), s = (m - 1.0f) / (m + 1.0f), t = s * s;
    const real series = 1.0f + t * (1.0f / 3 + t * (1.0f / 5 + t * (1.0f / 7 + t * (1.0f / 9))));
    return convert(n) * 0.69314718f + 2.0f * s * series;
}
DEVICE real root(real x) {
    for (int i = 0; i < LANES; ++i) x[i] = std::sqrt(x[i]);
    return x;
}
// Numbers below the least normal one are zero here, as in XLA's programs: a CPU takes them slowly.
struct WithoutSubnormals {
#if defined(__SSE__)
    const unsigned before = _mm_getcsr();
    WithoutSubnormals() { _mm_setcsr(before | 0x8040); }
    ~WithoutSubnormals() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    unsigned long long before;
    WithoutSubnormals() {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        asm volatile("msr fpcr, %0" : : "r"(before | 1ull << 24));
    }
    ~WithoutSubnormals() { asm volatile("msr fpcr, %0" : : "r"(before)); }
#endif
};
DEVICE float total(real x) {
    float of[LANES];
    std::memcpy(of, &x, sizeof of);
    for (int n = LANES / 2; n > 1; n /= 2) for (int i = 0; i < n; ++i) of[i] += of[i + n];
    return of[0] + of[1];
}
#endif

#define FOR(i, n) UNROLL for (int i = 0; i < (n); ++i)
// A loop over rows: a GPU keeps what they are multiplied with in registers, which have no index.
#if defined(__CUDACC__)
#define ROWS(i, n) FOR(i, n)
#else
#define ROWS(i, n) for (int i = 0; i < (n); ++i)
#endif

// Others, of which there are n.
#define OTHER(p, n) FOR(p, OTHERS) if (p < (n))

// --- Sizes ------------------------------------------------------------------------------------

constexpr int max_of(int a, int b) { return a > b ? a : b; }
constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }
constexpr int I = COMPRESS ? K : D, HK = H * K;
constexpr int RD = round_up(D, 4), RI = round_up(I, 4), ROW = max_of(RD, RI);
// Of an example bytes of its tokens and the next, and its weight's bits.
constexpr int OTHERS = S - 1, WORDS = S / 4 + 1 + WEIGHTED;
// Of wide heads, and of many tokens, products of query and key and of output and value are the
// shorter way.
constexpr bool FOLD = 2 * K > I || S > 2;
// Rows of the stream and of heads' input, in the order of transformer.py; biases follow. Those of
// neurons and heads are of the first layer.
constexpr int TOKEN = 0, UNEMBED = N, INTO = 2 * N, BACK = INTO + COMPRESS * K;
constexpr int IN = BACK + COMPRESS * K, OUT = IN + W, WIDE = IN + 2 * LAYERS * W;
constexpr int POSITION = 0, QUERY = S, KEY = QUERY + HK, VALUE = KEY + HK, OUTPUT = VALUE + HK;
constexpr int INNER = QUERY + 4 * LAYERS * HK, PARAMS = WIDE * D + INNER * I + LAYERS * W;
// The rows from which on an optimiser takes matrices as such.
#if !defined(MUON)
#define ADAM_RATE 1.0f
#define WEIGHT_DECAY 0.0f
constexpr int WIDE_MATRICES = WIDE, INNER_MATRICES = INNER;
#elif defined(ORTHOGONAL_ALL)
constexpr int WIDE_MATRICES = TOKEN, INNER_MATRICES = POSITION;
#else
constexpr int WIDE_MATRICES = INTO, INNER_MATRICES = QUERY;
#endif

// Features whose gradient is taken at a time: tokens, neurons, and those of whole heads.
constexpr int FU = 32, FW = 16, HEADS = K < 8 ? 8 / K : 1, FH = round_up(HEADS * K, 2);
constexpr int FI = round_up(I, 2);
constexpr int COLUMNS = max_of(max_of(FU, 2 * FW), FOLD ? 2 * FI : 4 * FH) + 2;
static_assert(H + W <= B * COLUMNS);

#if defined(__CUDACC__)
// Moments and gradient have no padding.
constexpr int GD = D, GI = I, OWN = 1, ALIGN = 4;
// Threads beside another that share the examples of one sum.
constexpr int splits(int n_products, int n_features, int width) {
    return max_of(1, B / (n_products * n_features / 2 * ((width + 3) / 4)));
}
#define EACH(i, n) for (int i = threadIdx.x; i < (n); i += B)
#define ENTRIES(f, i, rows, width)                                             \
    for (int f##i = threadIdx.x, f = f##i / (width), i = f##i % (width);       \
         f##i < (rows) * (width); f##i += B, f = f##i / (width), i = f##i % (width))
#define EXAMPLES(b) for (int b = threadIdx.x, once = 1; once; once = 0)
#define OWNED(b) own[0]
#define PLACES_OF(b) s.places
#else
constexpr int GD = RD, GI = RI, OWN = B / LANES, ALIGN = 16;
constexpr int splits(int, int, int) { return 1; }
#define EACH(i, n) for (int i = 0; i < (n); ++i)
#define ENTRIES(f, i, rows, width) \
    for (int f = 0; f < (rows); ++f) for (int i = 0; i < (width); ++i)
#define EXAMPLES(b) for (int b = 0; b < s.filled; b += LANES)
#define OWNED(b) own[(b) / LANES]
#define PLACES_OF(b) (s.places + (b) / LANES * EACH_PLACES)
#endif
constexpr int KEPT = WIDE * GD + INNER * GI + LAYERS * W;
constexpr int WEIGHTS = WIDE * RD + INNER * RI + LAYERS * W;
constexpr int parts(int n_products, int n_features, int width) {
    return splits(n_products, n_features, width) * n_products * n_features * ROW;
}
constexpr int PARTS = max_of(
    max_of(parts(1, FU, D), parts(2, FW, D)),
    max_of(max_of(parts(1, FI, I), FOLD ? parts(2, FI, I) : parts(4, FH, I)),
           COMPRESS ? parts(1, FI, D) : 0)
);
// On a CPU the largest matrices that an optimiser takes, one in each place of vectors.
constexpr int SIDE_BY_SIDE =
    LANES > 1 && INNER_MATRICES < INNER ? LANES * ROW * max_of(max_of(K, S), max_of(N, W)) : 0;
constexpr int FOLDS = FOLD ? LAYERS * H : 0, TILE = round_up(I * RI, ALIGN);
constexpr int aligned(int n) { return round_up(n, ALIGN); }

// What is kept of a place of one of several layers: the stream that enters it, what its heads read
// of it, the stream after them and what they `added`; gradients of the first two.
struct Place {
    real stream[D], input[I], after[D], added[COMPRESS ? I : 1], d_stream[D], d_input[I];
};
constexpr int EACH_PLACES = LAYERS > 1 ? LAYERS * S : 0;
constexpr int PLACES = LANES > 1 ? aligned(EACH_PLACES * OWN * (sizeof(Place) / 4)) : 0;

constexpr int FLOATS = aligned(WEIGHTS) + 3 * aligned(KEPT) + 3 * aligned(B * ROW) +
                       aligned(B * COLUMNS) + aligned(PARTS) + aligned(max_of(B, FI)) +
                       (2 * FOLDS + LAYERS + 1 + (FOLD ? 4 : 0)) * TILE + aligned(B) +
                       aligned(SIDE_BY_SIDE) + PLACES;

struct Shared {
    float *weight, *mean, *square, *gradient, *a, *b, *c, *column, *part, *column_part;
    // Products of query and key, and of output and value, of each head; the latter's sum; sums over
    // examples of what comes back times the last token; gradients of a head's products, each also
    // turned.
    float *score_maps, *value_maps, *all_values, *all_back, *map_gradient, *side_by_side;
    int* token;
    Place* places;
    int filled;
    // Of several layers those at hand.
    int layer, place;
};

// What a thread keeps of its examples: y of the last token and z of the others less y, which heads
// read, `added` by heads, the stream x after heads and `read` after neurons, and gradients: g of x,
// dy and dz, and what comes `back` to heads.
// Of whole vectors' length, that none lies in two lines of a cache.
struct alignas(sizeof(real)) Example {
    real y[I], z[OTHERS][I], x[D], read[D], g[D], dy[I], dz[OTHERS][I];
    real added[COMPRESS ? I : 1], back[COMPRESS ? I : 1];
    // Beyond the last example weights are 0.
    real most, over_total, weight, loss, right;
    whole token[S], label;
};

// --- Rows and columns -----------------------------------------------------------------------

DEVICE float* wide(const Shared& s, int row) { return s.weight + row * RD; }
DEVICE float* inner(const Shared& s, int row) { return s.weight + WIDE * RD + row * RI; }
DEVICE float* bias(const Shared& s, int layer) {
    return s.weight + WIDE * RD + INNER * RI + layer * W;
}
DEVICE float* wide_gradient(const Shared& s, int row) { return s.gradient + row * GD; }
DEVICE float* inner_gradient(const Shared& s, int row) {
    return s.gradient + WIDE * GD + row * GI;
}
DEVICE float* bias_gradient(const Shared& s, int layer) {
    return s.gradient + WIDE * GD + INNER * GI + layer * W;
}

// The layer and the place at hand; a compiler knows those of a single layer.
DEVICE int layer_of(const Shared& s) { return LAYERS == 1 ? 0 : s.layer; }
DEVICE int place_of(const Shared& s) { return LAYERS == 1 ? OTHERS : s.place; }
DEVICE int first_place(int layer) { return layer == LAYERS - 1 ? OTHERS : 0; }
// Of that layer a row, given as one of the first layer, and products of maps.
DEVICE int neuron(const Shared& s, int row) { return layer_of(s) * 2 * W + row; }
DEVICE int head(const Shared& s, int row) { return layer_of(s) * 4 * HK + row; }
DEVICE float* score_map(const Shared& s, int h) {
    return s.score_maps + (layer_of(s) * H + h) * TILE;
}
DEVICE float* value_map(const Shared& s, int h) {
    return s.value_maps + (layer_of(s) * H + h) * TILE;
}
DEVICE float* all_values(const Shared& s) { return s.all_values + layer_of(s) * TILE; }

// Where entry i of a vector of parameters is, among rows of given lengths.
template <int OF_D, int OF_I>
DEVICE int slot(int i) {
    if (i < WIDE * D) return i / D * OF_D + i % D;
    i -= WIDE * D;
    if (i < INNER * I) return WIDE * OF_D + i / I * OF_I + i % I;
    return WIDE * OF_D + INNER * OF_I + i - INNER * I;
}

template <int WIDTH>
DEVICE void load(float* to, const float* row) {
#if defined(__CUDACC__)
    UNROLL for (int i = 0; i < (WIDTH + 3) / 4; ++i) {
        const float4 v = reinterpret_cast<const float4*>(row)[i];
        const float of[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int j = 0; j < 4; ++j) if (4 * i + j < WIDTH) to[4 * i + j] = of[j];
    }
#else
    FOR(i, WIDTH) to[i] = row[i];
#endif
}

template <int WIDTH>
DEVICE real dot(const float* row, const real* x) {
    float w[WIDTH];
    load<WIDTH>(w, row);
    real sum = w[0] * x[0];
    UNROLL for (int i = 1; i < WIDTH; ++i) sum += w[i] * x[i];
    return sum;
}

template <int WIDTH>
DEVICE void add(real* x, real factor, const float* row) {
    float w[WIDTH];
    load<WIDTH>(w, row);
    FOR(i, WIDTH) x[i] += factor * w[i];
}

// The rows of tokens.
template <int WIDTH>
DEVICE void look_up(real* x, const float* rows, int stride, whole token) {
#if defined(__CUDACC__)
    load<WIDTH>(x, rows + token * stride);
#else
    float of[WIDTH][LANES];
    for (int lane = 0; lane < LANES; ++lane)
        FOR(i, WIDTH) of[i][lane] = rows[token[lane] * stride + i];
    std::memcpy(x, of, sizeof of);
#endif
}

// Rows of examples, and columns.
template <int WIDTH>
DEVICE void store(float* rows, int b, const real* x) {
#if defined(__CUDACC__)
    FOR(i, (WIDTH + 3) / 4 * 4) rows[b * ROW + i] = i < WIDTH ? x[i] : 0.0f;
#else
    FOR(i, WIDTH) *reinterpret_cast<real*>(rows + i * B + b) = x[i];
#endif
}

DEVICE real& column(const Shared& s, int b, int feature) {
#if defined(__CUDACC__)
    return s.column[b * COLUMNS + feature];
#else
    return *reinterpret_cast<real*>(s.column + feature * B + b);
#endif
}

// Partial sums over examples of products of columns, F of each product, with rows; of an even
// number of features or fewer.
template <int PRODUCTS, int F, int WIDTH>
DEVICE void sum_products(const Shared& s, const float* const (&rows)[PRODUCTS], int n_features) {
#if defined(__CUDACC__)
    constexpr int SPLITS = splits(PRODUCTS, F, WIDTH), PAIRS = F / 2, QUADS = (WIDTH + 3) / 4;
    constexpr int EACH_SPLIT = PRODUCTS * PAIRS * QUADS;
    EACH(t, SPLITS * EACH_SPLIT) {
        const int split = t / EACH_SPLIT, of = t % EACH_SPLIT, quad = of % QUADS;
        const int pair = of / QUADS % PAIRS, product = of / QUADS / PAIRS;
        const float* row = rows[0];
        FOR(p, PRODUCTS) if (p == product) row = rows[p];
        row += 4 * quad;
        const float* columns = s.column + product * F + 2 * pair;
        float sum[2][4] = {};
        for (int b = split; b < B; b += SPLITS) {
            const float2 c2 = *reinterpret_cast<const float2*>(columns + b * COLUMNS);
            const float4 r4 = *reinterpret_cast<const float4*>(row + b * ROW);
            const float c[2] = {c2.x, c2.y}, r[4] = {r4.x, r4.y, r4.z, r4.w};
            FOR(i, 2) FOR(j, 4) sum[i][j] += c[i] * r[j];
        }
        float* to = s.part + ((split * PRODUCTS + product) * F + 2 * pair) * ROW + 4 * quad;
        FOR(i, 2) FOR(j, 4) to[i * ROW + j] = sum[i][j];
    }
#else
    // As many sums side by side as there are registers for.
    constexpr int MOST = LANES == 16 ? 12 : 5, BLOCKS = (WIDTH + MOST - 1) / MOST;
    constexpr int BLOCK = (WIDTH + BLOCKS - 1) / BLOCKS;
    for (int product = 0; product < PRODUCTS; ++product)
        for (int f = 0; f < n_features; f += 2) UNROLL for (int j = 0; j < WIDTH; j += BLOCK) {
            const float *columns = s.column + (product * F + f) * B, *row = rows[product] + j * B;
            real sum[2][BLOCK] = {};
            for (int b = 0; b < s.filled; b += LANES) {
                real c[2];
                FOR(i, 2) c[i] = *reinterpret_cast<const real*>(columns + i * B + b);
                FOR(k, BLOCK) if (j + k < WIDTH) {
                    const real r = *reinterpret_cast<const real*>(row + k * B + b);
                    FOR(i, 2) sum[i][k] += c[i] * r;
                }
            }
            float* to = s.part + (product * F + f) * ROW + j;
            FOR(i, 2) FOR(k, BLOCK) if (j + k < WIDTH) to[i * ROW + k] = total(sum[i][k]);
        }
#endif
}

// The sum over splits of entry (feature, i) of a product.
template <int PRODUCTS, int F, int WIDTH>
DEVICE float summed(const Shared& s, int product, int feature, int i) {
    float sum = 0.0f;
    for (int split = 0; split < splits(PRODUCTS, F, WIDTH); ++split)
        sum += s.part[((split * PRODUCTS + product) * F + feature) * ROW + i];
    return sum;
}

// Sums of columns over examples, in splits on a GPU.
template <int F>
DEVICE void sum_columns(const Shared& s) {
#if defined(__CUDACC__)
    EACH(t, B / F * F) {
        float sum = 0.0f;
        for (int b = t / F; b < B; b += B / F) sum += s.column[b * COLUMNS + t % F];
        s.column_part[t] = sum;
    }
#else
    for (int f = 0; f < F; ++f) {
        real sum = {};
        for (int b = 0; b < s.filled; b += LANES)
            sum += *reinterpret_cast<const real*>(s.column + f * B + b);
        s.column_part[f] = total(sum);
    }
#endif
}

template <int F>
DEVICE float summed_column(const Shared& s, int feature) {
    float sum = 0.0f;
    for (int split = 0; split < (LANES == 1 ? B / F : 1); ++split)
        sum += s.column_part[split * F + feature];
    return sum;
}

// --- A step -----------------------------------------------------------------------------------

// The activation of a neuron, and its derivative.
DEVICE real activate(real x, real* derivative) {
#if RELU
    const auto is_active = x > 0.0f;
    *derivative = select(is_active, spread(1.0f), spread(0.0f));
    return select(is_active, x, spread(0.0f));
#else
    const real bell = exponential(-0.5f * x * x);
#if defined(__CUDACC__)
    const real share = 0.5f * (1.0f + erff(x * 0.70710678f));
#else
    // Abramowitz and Stegun (1964), 7.1.26.
    const real t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * select(x > 0.0f, x, -x));
    const real beyond = 0.5f * bell * t * (0.254829592f + t * (-0.284496736f + t * (
        1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const real share = select(x > 0.0f, 1.0f - beyond, beyond);
#endif
    *derivative = share + x * 0.39894228f * bell;
    return x * share;
#endif
}

template <int WIDTH>
DEVICE real inner_product(const real* x, const real* y) {
    real sum = x[0] * y[0];
    UNROLL for (int i = 1; i < WIDTH; ++i) sum += x[i] * y[i];
    return sum;
}

// Attention to n others, of scores that are less that of the last token.
DEVICE void attend(int n, float scale, const real* score, real* attention) {
    if (S == 2) {
        attention[0] = 1.0f / (1.0f + exponential(-scale * score[0]));
        return;
    }
    real most = spread(0.0f);
    OTHER(p, n) most = select(score[p] > most, score[p], most);
    real sum = exponential(-scale * most);
    OTHER(p, n) sum += attention[p] = exponential(scale * (score[p] - most));
    OTHER(p, n) attention[p] /= sum;
}

// From the gradient of attention that of scores, in its place.
DEVICE void back_through_attention(int n, float scale, const real* attention, real* d) {
    real mean = attention[0] * d[0];
    UNROLL for (int p = 1; p < OTHERS; ++p) if (p < n) mean += attention[p] * d[p];
    OTHER(p, n) d[p] = scale * attention[p] * (d[p] - mean);
}

// The sum of what the others have beyond the last token.
DEVICE void mix(int n, real* mixed, const Example& e, const real* factor) {
    FOR(i, I) mixed[i] = factor[0] * e.z[0][i];
    UNROLL for (int p = 1; p < OTHERS; ++p) if (p < n) FOR(i, I) mixed[i] += factor[p] * e.z[p][i];
}

// What a wide head's scores are products of with z.
DEVICE void look(real* turned, const Example& e, const float* score_map) {
    FOR(i, I) turned[i] = spread(0.0f);
    ROWS(i, I) add<I>(turned, e.y[i], score_map + i * RI);
}

// Products of heads' maps, of this step's weights.
DEVICE void fold(const Shared& s, int n_heads) {
    constexpr int QUADS = RI / 4;
    if (FOLD) {
        EACH(t, n_heads * 2 * I * QUADS) {
            const int quad = t % QUADS, i = t / QUADS % I, h = t / QUADS / I / 2;
            const bool of_values = t / QUADS / I % 2;
            const float* left = inner(s, head(s, (of_values ? OUTPUT : QUERY) + h * K)) + i;
            const float* right = inner(s, head(s, (of_values ? VALUE : KEY) + h * K)) + 4 * quad;
            float sum[4] = {};
            for (int k = 0; k < K; ++k) FOR(j, 4) sum[j] += left[k * RI] * right[k * RI + j];
            float* to = (of_values ? value_map(s, h) : score_map(s, h)) + i * RI + 4 * quad;
            FOR(j, 4) to[j] = sum[j];
        }
        SYNC;
    }
    EACH(t, I * QUADS) {
        const int quad = t % QUADS, i = t / QUADS;
        float sum[4] = {};
        if (FOLD) {
            for (int h = 0; h < n_heads; ++h)
                FOR(j, 4) sum[j] += value_map(s, h)[i * RI + 4 * quad + j];
        } else {
            for (int f = 0; f < n_heads * K; ++f)
                FOR(j, 4)
                    sum[j] += inner(s, head(s, OUTPUT + f))[i] *
                              inner(s, head(s, VALUE + f))[4 * quad + j];
        }
        FOR(j, 4) all_values(s)[i * RI + 4 * quad + j] = sum[j];
    }
    SYNC;
}

// What heads read of a token.
DEVICE void read_token(const Shared& s, const real* token, int place, real* x) {
    float position[I];
    load<I>(position, inner(s, POSITION + place));
    const bool is_placed = !FULL || layer_of(s) == 0;
    ROWS(i, I)
        x[i] = (COMPRESS ? dot<D>(wide(s, INTO + COMPRESS * i), token) : token[i]) +
               (is_placed ? position[i] : 0.0f);
}

// What heads read, and the stream, of one layer.
DEVICE void read_tokens(const Shared& s, Example& e) {
    look_up<D>(e.x, wide(s, TOKEN), RD, e.token[OTHERS]);
    read_token(s, e.x, OTHERS, e.y);
    ROWS(p, S) if (p < OTHERS) {
        real other[D];
        look_up<D>(other, wide(s, TOKEN), RD, e.token[p]);
        read_token(s, other, p, e.z[p]);
        FOR(i, I) e.z[p][i] -= e.y[i];
    }
    if (FULL) FOR(i, D) e.x[i] = e.y[FULL * i];
}

// What heads read at all places of one of several layers.
DEVICE void read_places(const Shared& s, const Example& e, Place* places) {
    ROWS(p, S) {
        Place& at = places[s.layer * S + p];
        if (s.layer == 0) look_up<D>(at.stream, wide(s, TOKEN), RD, e.token[p]);
        read_token(s, at.stream, p, at.input);
        if (FULL && s.layer == 0) FOR(i, D) at.stream[i] = at.input[FULL * i];
    }
}

// What heads read at one place, and the stream there.
DEVICE void read_place(const Shared& s, Example& e, const Place* places) {
    places += s.layer * S;
    FOR(i, I) e.y[i] = places[s.place].input[i];
    ROWS(p, S) if (p < OTHERS) FOR(i, I)
        e.z[p][i] = p < s.place ? places[p].input[i] - e.y[i] : spread(0.0f);
    FOR(i, D) e.x[i] = places[s.place].stream[i];
}

DEVICE void add_heads(const Shared& s, Example& e, int n_heads, float scale) {
    const int n = place_of(s);
    real added[I];
    ROWS(i, I) added[i] = dot<I>(all_values(s) + i * RI, e.y);
    NO_UNROLL for (int h = 0; h < n_heads; ++h) {
        real score[OTHERS], attention[OTHERS];
        if (FOLD) {
            real turned[I], mixed[I];
            look(turned, e, score_map(s, h));
            OTHER(p, n) score[p] = inner_product<I>(turned, e.z[p]);
            attend(n, scale, score, attention);
            mix(n, mixed, e, attention);
            ROWS(i, I) added[i] += dot<I>(value_map(s, h) + i * RI, mixed);
        } else {
            score[0] = spread(0.0f);
            FOR(k, K)
                score[0] += dot<I>(inner(s, head(s, QUERY + h * K + k)), e.y) *
                            dot<I>(inner(s, head(s, KEY + h * K + k)), e.z[0]);
            attend(n, scale, score, attention);
            FOR(k, K)
                add<I>(added, attention[0] * dot<I>(inner(s, head(s, VALUE + h * K + k)), e.z[0]),
                       inner(s, head(s, OUTPUT + h * K + k)));
        }
    }
    ROWS(i, I) {
        if (COMPRESS) {
            e.added[COMPRESS * i] = added[i];
            add<D>(e.x, added[i], wide(s, BACK + COMPRESS * i));
        } else {
            e.x[i] += added[i];
        }
    }
}

DEVICE void add_neurons(const Shared& s, Example& e, int n_neurons) {
    const float* biases = bias(s, layer_of(s));
    FOR(i, D) e.read[i] = e.x[i];
    NO_UNROLL for (int w = 0; w < n_neurons; ++w) {
        real derivative;
        const real sum = dot<D>(wide(s, neuron(s, IN + w)), e.x) + biases[w];
        const real active = activate(sum, &derivative);
        add<D>(e.read, active, wide(s, neuron(s, OUT + w)));
    }
}

// All layers, of which the last reads at the last place alone.
DEVICE void read_layers(
    Shared& s, Example& e, Place* places, int n_heads, int n_neurons, float scale
) {
    NO_UNROLL for (int layer = 0; layer < LAYERS; ++layer) {
        s.layer = layer;
        if (LAYERS == 1) read_tokens(s, e);
        else read_places(s, e, places);
        NO_UNROLL for (int place = first_place(layer); place < S; ++place) {
            s.place = place;
            if (LAYERS > 1) read_place(s, e, places);
            // The first place has no others.
            add_heads(s, e, place_of(s) ? n_heads : 0, scale);
            add_neurons(s, e, n_neurons);
            if (LAYERS > 1) {
                Place* at = places + s.layer * S + s.place;
                FOR(i, D) at->after[i] = e.x[i];
                if (COMPRESS) FOR(i, I) at->added[COMPRESS * i] = e.added[COMPRESS * i];
                if (s.layer < LAYERS - 1) FOR(i, D) at[S].stream[i] = e.read[i];
            }
        }
    }
}

// The loss and its gradient's constants.
DEVICE void compare(const Shared& s, Example& e, float share) {
    real most = spread(-1e30f), others = most, of_label = spread(0.0f), sum = of_label;
    NO_UNROLL for (int m = 0; m < N; m += 8) {
        real logit[8], highest = most;
        FOR(j, 8) if (m + j < N) {
            logit[j] = dot<D>(wide(s, UNEMBED + m + j), e.read);
            highest = select(logit[j] > highest, logit[j], highest);
            const auto is_label = e.label == m + j;
            of_label = select(is_label, logit[j], of_label);
            others = select(!is_label & (logit[j] > others), logit[j], others);
        }
        sum *= exponential(most - highest);
        FOR(j, 8) if (m + j < N) sum += exponential(logit[j] - highest);
        most = highest;
    }
    e.loss += e.weight * (logarithm(sum) + most - of_label);
    e.right += select(of_label > others, e.weight, spread(0.0f));
    e.most = most, e.over_total = e.weight * (share / sum);
}

DEVICE void back_through_unembeddings(const Shared& s, Example* own, float share) {
    EXAMPLES(b) {
        FOR(i, D) OWNED(b).g[i] = spread(0.0f);
        store<D>(s.a, b, OWNED(b).read);
    }
    NO_UNROLL for (int m = 0; m < N; m += FU) {
        const int n_here = N - m < FU ? N - m : FU;
        EXAMPLES(b) {
            Example& e = OWNED(b);
            ROWS(j, FU) {
                if (j < n_here) {
                    const float* row = wide(s, UNEMBED + m + j);
                    real d = exponential(dot<D>(row, e.read) - e.most) * e.over_total;
                    d -= select(e.label == m + j, e.weight * share, spread(0.0f));
                    add<D>(e.g, d, row);
                    column(s, b, j) = d;
                } else if (j < round_up(n_here, 2) || LANES == 1) {
                    column(s, b, j) = spread(0.0f);
                }
            }
        }
        SYNC;
        sum_products<1, FU, D>(s, {s.a}, n_here);
        SYNC;
        ENTRIES(f, i, n_here, D)
            wide_gradient(s, UNEMBED + m + f)[i] += summed<1, FU, D>(s, 0, f, i);
    }
    SYNC;
}

DEVICE void back_through_neurons(const Shared& s, Example* own, int n_neurons) {
    if (!n_neurons) return;
    EXAMPLES(b) {
        store<D>(s.a, b, OWNED(b).x);
        store<D>(s.b, b, OWNED(b).g);
        FOR(i, D) OWNED(b).read[i] = OWNED(b).g[i];
    }
    NO_UNROLL for (int w = 0; w < n_neurons; w += FW) {
        const int n_here = n_neurons - w < FW ? n_neurons - w : FW;
        EXAMPLES(b) {
            Example& e = OWNED(b);
            ROWS(j, FW) {
                real active = spread(0.0f), d = active;
                if (j < n_here) {
                    const float* row = wide(s, neuron(s, IN + w + j));
                    real derivative;
                    active = activate(dot<D>(row, e.x) + bias(s, layer_of(s))[w + j], &derivative);
                    d = dot<D>(wide(s, neuron(s, OUT + w + j)), e.read) * derivative;
                    add<D>(e.g, d, row);
                }
                column(s, b, j) = d;
                column(s, b, FW + j) = active;
            }
        }
        SYNC;
        sum_products<2, FW, D>(s, {s.a, s.b}, n_here);
        sum_columns<FW>(s);
        SYNC;
        ENTRIES(f, i, n_here, D) {
            wide_gradient(s, neuron(s, IN + w + f))[i] += summed<2, FW, D>(s, 0, f, i);
            wide_gradient(s, neuron(s, OUT + w + f))[i] += summed<2, FW, D>(s, 1, f, i);
        }
        EACH(f, n_here) bias_gradient(s, layer_of(s))[w + f] += summed_column<FW>(s, f);
    }
    SYNC;
}

// What comes back to heads.
DEVICE real* back_of(Example& e) { return COMPRESS ? e.back : e.g; }

// Of wide heads, by the gradients of the products of their maps.
DEVICE void back_through_folded(const Shared& s, Example* own, int n_heads, float scale) {
    const int n = place_of(s);
    float *direct = s.map_gradient, *turned = direct + 2 * TILE;
    NO_UNROLL for (int h = 0; h < n_heads; ++h) {
        const float *scores = score_map(s, h), *values = value_map(s, h);
        EXAMPLES(b) {
            Example& e = OWNED(b);
            const real* back = back_of(e);
            real turned[I], from_values[I], score[OTHERS], attention[OTHERS], d[OTHERS], mixed[I];
            look(turned, e, scores);
            OTHER(p, n) score[p] = inner_product<I>(turned, e.z[p]);
            attend(n, scale, score, attention);
            FOR(i, I) from_values[i] = spread(0.0f);
            ROWS(i, I) add<I>(from_values, back[i], values + i * RI);
            OTHER(p, n) d[p] = inner_product<I>(from_values, e.z[p]);
            back_through_attention(n, scale, attention, d);
            OTHER(p, n) FOR(i, I)
                e.dz[p][i] += attention[p] * from_values[i] + d[p] * turned[i];
            mix(n, mixed, e, attention);
            store<I>(s.b, b, mixed);
            mix(n, mixed, e, d);
            store<I>(s.c, b, mixed);
            ROWS(i, I) e.dy[i] += dot<I>(scores + i * RI, mixed);
        }
        SYNC;
        sum_products<2, FI, I>(s, {s.b, s.c}, I);
        SYNC;
        ENTRIES(f, j, 2 * I, I) {
            const int of_values = f < I, i = of_values ? f : f - I;
            float sum = summed<2, FI, I>(s, 1 - of_values, i, j);
            if (of_values) sum += s.all_back[i * RI + j];
            direct[of_values * TILE + i * RI + j] = sum;
            turned[of_values * TILE + j * RI + i] = sum;
        }
        SYNC;
        constexpr int QUADS = RI / 4;
        EACH(t, 4 * K * QUADS) {
            const int quad = t % QUADS, k = h * K + t / QUADS % K, which = t / QUADS / K;
            const int other = which == 0 ? KEY : which == 1 ? QUERY : which == 2 ? OUTPUT : VALUE;
            const float* factor = inner(s, head(s, other + k));
            const float* map = (which % 3 ? direct : turned) + which / 2 * TILE + 4 * quad;
            float sum[4] = {};
            ROWS(i, I) FOR(j, 4) sum[j] += factor[i] * map[i * RI + j];
            float* to = inner_gradient(s, head(s, QUERY + which * HK + k)) + 4 * quad;
            FOR(j, 4) if (4 * quad + j < I) to[j] += sum[j];
        }
    }
}

// Of narrow heads, by their queries, keys and values.
DEVICE void back_through_narrow(const Shared& s, Example* own, int n_heads, float scale) {
    NO_UNROLL for (int h = 0; h < n_heads; h += HEADS) {
        const int n_here = n_heads - h < HEADS ? n_heads - h : HEADS;
        EXAMPLES(b) {
            Example& e = OWNED(b);
            const real* back = back_of(e);
            ROWS(j, HEADS) {
                if (j < n_here) {
                    const int f = (h + j) * K;
                    real query[K], key[K], d_value[K];
                    real score[1] = {}, attention[1], d_score[1] = {};
                    FOR(k, K) {
                        query[k] = dot<I>(inner(s, head(s, QUERY + f + k)), e.y);
                        key[k] = dot<I>(inner(s, head(s, KEY + f + k)), e.z[0]);
                        score[0] += query[k] * key[k];
                    }
                    attend(1, scale, score, attention);
                    FOR(k, K) {
                        const real value = dot<I>(inner(s, head(s, VALUE + f + k)), e.z[0]);
                        const real d = dot<I>(inner(s, head(s, OUTPUT + f + k)), back);
                        d_score[0] += d * value;
                        d_value[k] = attention[0] * d;
                        column(s, b, 2 * FH + j * K + k) = d_value[k];
                        column(s, b, 3 * FH + j * K + k) = attention[0] * value;
                    }
                    back_through_attention(1, scale, attention, d_score);
                    const real d = d_score[0];
                    FOR(k, K) {
                        add<I>(e.dy, d * key[k], inner(s, head(s, QUERY + f + k)));
                        add<I>(e.dz[0], d * query[k], inner(s, head(s, KEY + f + k)));
                        add<I>(e.dz[0], d_value[k], inner(s, head(s, VALUE + f + k)));
                        column(s, b, j * K + k) = d * key[k];
                        column(s, b, FH + j * K + k) = d * query[k];
                    }
                } else {
                    FOR(k, K) FOR(p, 4) column(s, b, p * FH + j * K + k) = spread(0.0f);
                }
            }
            if (HEADS * K < FH) FOR(p, 4) column(s, b, p * FH + FH - 1) = spread(0.0f);
        }
        SYNC;
        sum_products<4, FH, I>(s, {s.a, s.b, s.b, s.c}, n_here * K);
        SYNC;
        ENTRIES(f, i, n_here * K, I) {
            const int at = h * K + f;
            const float* output = inner(s, head(s, OUTPUT + at));
            const float* value = inner(s, head(s, VALUE + at));
            float of_value = summed<4, FH, I>(s, 2, f, i), of_output = summed<4, FH, I>(s, 3, f, i);
            ROWS(j, I) {
                of_value += output[j] * s.all_back[j * RI + i];
                of_output += value[j] * s.all_back[i * RI + j];
            }
            inner_gradient(s, head(s, QUERY + at))[i] += summed<4, FH, I>(s, 0, f, i);
            inner_gradient(s, head(s, KEY + at))[i] += summed<4, FH, I>(s, 1, f, i);
            inner_gradient(s, head(s, VALUE + at))[i] += of_value;
            inner_gradient(s, head(s, OUTPUT + at))[i] += of_output;
        }
    }
}

DEVICE void back_through_heads(const Shared& s, Example* own, int n_heads, float scale) {
    if (COMPRESS) {
        EXAMPLES(b) {
            Example& e = OWNED(b);
            store<D>(s.a, b, e.g);
            FOR(i, FI) column(s, b, i) = i < I ? e.added[i] : spread(0.0f);
            ROWS(i, I) e.back[i] = dot<D>(wide(s, BACK + COMPRESS * i), e.g);
        }
        SYNC;
        sum_products<1, FI, D>(s, {s.a}, I);
        SYNC;
        ENTRIES(f, i, I, D)
            wide_gradient(s, BACK + COMPRESS * f)[i] += summed<1, FI, D>(s, 0, f, i);
        SYNC;
    }
    EXAMPLES(b) {
        Example& e = OWNED(b);
        const real* back = back_of(e);
        store<I>(s.a, b, e.y);
        if (!FOLD) {
            store<I>(s.b, b, e.z[0]);
            store<I>(s.c, b, back);
        }
        FOR(i, FI) {
            column(s, b, i) = i < I ? back[i] : spread(0.0f);
            if (FOLD) column(s, b, FI + i) = i < I ? e.y[i] : spread(0.0f);
        }
        FOR(i, I) e.dy[i] = spread(0.0f);
        ROWS(p, S) if (p < OTHERS) FOR(i, I) e.dz[p][i] = spread(0.0f);
        ROWS(i, I) add<I>(e.dy, back[i], all_values(s) + i * RI);
    }
    SYNC;
    sum_products<1, FI, I>(s, {s.a}, I);
    SYNC;
    // What comes back of the first place goes with the second's, which has heads.
    const bool is_second = LAYERS > 1 && place_of(s) == 1 && first_place(layer_of(s)) == 0;
    ENTRIES(f, i, I, I) {
        float& back = s.all_back[f * RI + i];
        back = summed<1, FI, I>(s, 0, f, i) + (is_second ? back : 0.0f);
    }
    SYNC;
    if (FOLD) back_through_folded(s, own, n_heads, scale);
    else back_through_narrow(s, own, n_heads, scale);
    SYNC;
}

// Of several layers, what a place had and the gradient of the stream that left it.
DEVICE void begin_back(const Shared& s, Example& e, Place* places) {
    read_place(s, e, places);
    places += s.layer * S;
    const Place* at = places + s.place;
    FOR(i, D) e.x[i] = at->after[i];
    if (COMPRESS) FOR(i, I) e.added[COMPRESS * i] = at->added[COMPRESS * i];
    if (s.layer < LAYERS - 1) FOR(i, D) e.g[i] = at[S].d_stream[i];
    if (s.place == first_place(s.layer))
        ROWS(p, S) {
            FOR(i, D) places[p].d_stream[i] = spread(0.0f);
            FOR(i, I) places[p].d_input[i] = spread(0.0f);
        }
}

// The gradients of what it read: of the stream, and of heads' input at places up to it.
DEVICE void end_back(const Shared& s, Example& e, Place* places) {
    places += s.layer * S;
    Place* at = places + s.place;
    FOR(i, D) at->d_stream[i] = e.g[i];
    ROWS(p, S) if (p < OTHERS && p < s.place) FOR(i, I) {
        places[p].d_input[i] += e.dz[p][i];
        e.dy[i] -= e.dz[p][i];
    }
    FOR(i, I) at->d_input[i] += e.dy[i];
}

// From what heads read back to the stream and positions, one place after another; and from the
// first layer's stream to tokens, whose owners look for them.
DEVICE void back_to_stream(const Shared& s, Example* own) {
    const bool is_first = layer_of(s) == 0;
    EXAMPLES(b) {
        Example& e = OWNED(b);
        Place* places = PLACES_OF(b) + layer_of(s) * S;
        if (LAYERS == 1) ROWS(p, S) if (p < OTHERS) FOR(i, I) e.dy[i] -= e.dz[p][i];
        if (FULL && LAYERS == 1) FOR(i, I) e.dy[i] += e.g[FULL * i];
        if (FULL && LAYERS > 1)
            ROWS(p, S) FOR(i, I) places[p].d_input[i] += places[p].d_stream[FULL * i];
    }
    ROWS(p, S) {
        EXAMPLES(b) {
            Example& e = OWNED(b);
            Place* at = PLACES_OF(b) + layer_of(s) * S + p;
            const real* d = p < OTHERS ? e.dz[p % max_of(1, OTHERS)] : e.dy;
            if (LAYERS > 1) d = at->d_input;
            real stream[D];
            FOR(i, D) {
                if (LAYERS > 1 && !FULL) stream[i] = at->d_stream[i];
                else stream[i] = p == OTHERS && !FULL ? e.g[i] : spread(0.0f);
            }
            ROWS(i, I) {
                if (COMPRESS) add<D>(stream, d[i], wide(s, INTO + COMPRESS * i));
                else stream[i] += d[i];
            }
            store<D>(s.a, b, stream);
            FOR(i, FI) column(s, b, i) = i < I ? d[i] : spread(0.0f);
            if (!is_first) FOR(i, D) at->d_stream[i] = stream[i];
            if (COMPRESS) {
                if (LAYERS > 1) FOR(i, D) stream[i] = at->stream[i];
                else look_up<D>(stream, wide(s, TOKEN), RD, e.token[p]);
                store<D>(s.b, b, stream);
            }
#if defined(__CUDACC__)
            s.token[b] = e.token[p];
#else
            std::memcpy(s.token + b, &e.token[p], sizeof(whole));
#endif
        }
        SYNC;
        sum_columns<FI>(s);
        if (COMPRESS) sum_products<1, FI, D>(s, {s.b}, I);
        if (is_first) {
#if defined(__CUDACC__)
            ENTRIES(token, i, N, D) {
                float sum = 0.0f;
                for (int b = 0; b < B; ++b) if (s.token[b] == token) sum += s.a[b * ROW + i];
                wide_gradient(s, TOKEN + token)[i] += sum;
            }
#else
            for (int b = 0; b < s.filled; ++b) {
                float* gradient = wide_gradient(s, TOKEN + s.token[b]);
                FOR(i, D) gradient[i] += s.a[i * B + b];
            }
#endif
        }
        SYNC;
        if (is_first || !FULL)
            EACH(i, I) inner_gradient(s, POSITION + p)[i] += summed_column<FI>(s, i);
        if (COMPRESS)
            ENTRIES(f, i, I, D)
                wide_gradient(s, INTO + COMPRESS * f)[i] += summed<1, FI, D>(s, 0, f, i);
        SYNC;
    }
}

// --- Optimisers ---------------------------------------------------------------------------------

// What a step takes from a weight, by its place among moments.
DEVICE void move(const Shared& s, int i, float rate, float change) {
#if defined(__CUDACC__)
    i = slot<RD, RI>(i);
#endif
    s.weight[i] -= WEIGHT_DECAY > 0.0f ? change + rate * WEIGHT_DECAY * s.weight[i] : change;
}

DEVICE void step_by_adam(const Shared& s, int begin, int end, float n_done, float rate) {
    const float unbias = 1.0f / (1.0f - powf(B1, n_done));
    const float unbias_square = 1.0f / (1.0f - powf(B2, n_done));
    float *means = s.mean + begin, *squares = s.square + begin, *gradient = s.gradient + begin;
    EACH(i, end - begin) {
        const float g = gradient[i];
        const float mean = means[i] = B1 * means[i] + (1.0f - B1) * g;
        const float square = squares[i] = B2 * squares[i] + (1.0f - B2) * g * g;
        const float ahead = rate * ADAM_RATE * mean * unbias;
        move(s, begin + i, rate, ahead / (sqrtf(square * unbias_square) + EPS));
        gradient[i] = 0.0f;
    }
}

#if defined(MUON)
// From gradients of matrices what is orthogonalised, in its place.
DEVICE void look_ahead(const Shared& s, int begin, int end) {
    float *means = s.mean + begin, *gradient = s.gradient + begin;
    EACH(i, end - begin) {
        const float g = (1.0f - MOMENTUM) * gradient[i];
        const float mean = means[i] = MOMENTUM * means[i] + g;
        gradient[i] = NESTEROV ? MOMENTUM * mean + g : mean;
    }
}

// Newton-Schulz in place of matrices of whole rows: a thread takes one on a GPU, on a CPU as many
// as vectors have places. Its maps are of the shorter side.
template <int N_ROWS, int WIDTH, int STRIDE>
DEVICE void orthogonalize(const Shared& s, float* matrices, int n, const float* factors) {
    constexpr bool IS_TALL = N_ROWS > WIDTH;
    constexpr int SIDE = IS_TALL ? WIDTH : N_ROWS, LENGTH = IS_TALL ? N_ROWS : WIDTH;
    constexpr int NEXT = LANES == 1 ? STRIDE : WIDTH;
    EACH(group, (n + LANES - 1) / LANES) {
        float* of_group = matrices + group * LANES * N_ROWS * STRIDE;
        const float* of_factors = factors + group * LANES * N_ROWS * WIDTH;
#if defined(__CUDACC__)
        real *x = of_group, factor = *of_factors;
#else
        const int n_here = n - group * LANES < LANES ? n - group * LANES : LANES;
        real *x = reinterpret_cast<real*>(s.side_by_side), factor = spread(0.0f);
        for (int m = 0; m < n_here; ++m) {
            factor[m] = of_factors[m * N_ROWS * WIDTH];
            for (int r = 0; r < N_ROWS; ++r) FOR(i, WIDTH)
                x[r * WIDTH + i][m] = of_group[(m * N_ROWS + r) * STRIDE + i];
        }
#endif
        auto entry = [=](int i, int k) -> real& {
            return IS_TALL ? x[k * NEXT + i] : x[i * NEXT + k];
        };
        real norm = spread(0.0f);
        for (int k = 0; k < LENGTH; ++k) FOR(i, SIDE) norm += entry(i, k) * entry(i, k);
        norm = 1.0f / (root(norm) + 1e-8f);
        for (int k = 0; k < LENGTH; ++k) FOR(i, SIDE) entry(i, k) *= norm;
        NO_UNROLL for (int step = 0; step < NEWTON_SCHULZ; ++step) {
            real square[SIDE][SIDE], map[SIDE][SIDE], before[SIDE];
            for (int i = 0; i < SIDE; ++i) for (int j = 0; j <= i; ++j) {
                real sum = spread(0.0f);
                for (int k = 0; k < LENGTH; ++k) sum += entry(i, k) * entry(j, k);
                square[i][j] = square[j][i] = sum;
            }
            for (int i = 0; i < SIDE; ++i) for (int j = 0; j <= i; ++j) {
                real sum = spread(0.0f);
                for (int k = 0; k < SIDE; ++k) sum += square[i][k] * square[j][k];
                map[i][j] = map[j][i] = -4.7750f * square[i][j] + 2.0315f * sum;
            }
            for (int k = 0; k < LENGTH; ++k) {
                for (int i = 0; i < SIDE; ++i) before[i] = entry(i, k);
                for (int i = 0; i < SIDE; ++i) {
                    real sum = 3.4445f * before[i];
                    for (int j = 0; j < SIDE; ++j) sum += map[i][j] * before[j];
                    entry(i, k) = sum;
                }
            }
        }
        for (int k = 0; k < LENGTH; ++k) for (int i = 0; i < SIDE; ++i) entry(i, k) *= factor;
#if !defined(__CUDACC__)
        for (int m = 0; m < n_here; ++m) for (int r = 0; r < N_ROWS; ++r) FOR(i, WIDTH)
            of_group[(m * N_ROWS + r) * STRIDE + i] = x[r * WIDTH + i][m];
#endif
    }
}

// Of matrices from a row of the stream, or of heads' input, on.
template <int N_ROWS>
DEVICE void orthogonalize_wide(const Shared& s, int row, int n, const float* factors) {
    factors += row * D;
    if constexpr (N_ROWS > 0)
        orthogonalize<N_ROWS, D, GD>(s, wide_gradient(s, row), n, factors);
}
template <int N_ROWS>
DEVICE void orthogonalize_inner(const Shared& s, int row, int n, const float* factors) {
    factors += WIDE * D + row * I;
    if constexpr (N_ROWS > 0)
        orthogonalize<N_ROWS, I, GI>(s, inner_gradient(s, row), n, factors);
}

DEVICE void step_along(const Shared& s, int begin, int end, float rate) {
    float* change = s.gradient + begin;
    EACH(i, end - begin) {
        move(s, begin + i, rate, rate * change[i]);
        change[i] = 0.0f;
    }
}
#endif

DEVICE void update(const Shared& s, float n_done, float rate, const float* factors) {
#if !defined(MUON)
    step_by_adam(s, 0, KEPT, n_done, rate);
#else
    constexpr int INNERS = WIDE * GD, BIASES = INNERS + INNER * GI;
    constexpr int FIRST_WIDE = WIDE_MATRICES * GD, FIRST_INNER = INNERS + INNER_MATRICES * GI;
    look_ahead(s, FIRST_WIDE, INNERS);
    look_ahead(s, FIRST_INNER, BIASES);
    SYNC;
    orthogonalize_wide<WIDE_MATRICES == TOKEN ? N : 0>(s, TOKEN, 2, factors);
    orthogonalize_wide<COMPRESS * K>(s, INTO, 2, factors);
    orthogonalize_wide<W>(s, IN, 2 * LAYERS, factors);
    orthogonalize_inner<INNER_MATRICES == POSITION ? S : 0>(s, POSITION, 1, factors);
    orthogonalize_inner<K>(s, QUERY, 4 * LAYERS * H, factors);
    SYNC;
    step_along(s, FIRST_WIDE, INNERS, rate);
    step_along(s, FIRST_INNER, BIASES, rate);
    step_by_adam(s, 0, FIRST_WIDE, n_done, rate);
    step_by_adam(s, INNERS, FIRST_INNER, n_done, rate);
    step_by_adam(s, BIASES, KEPT, n_done, rate);
#endif
}

DEVICE Shared lay_out(float* memory) {
    Shared s;
    auto take = [&](int n) {
        float* start = memory;
        memory += aligned(n);
        return start;
    };
    s.weight = take(WEIGHTS);
    s.a = take(B * ROW), s.b = take(B * ROW), s.c = take(B * ROW);
    s.part = take(PARTS), s.column_part = take(max_of(B, FI)), s.column = take(B * COLUMNS);
    s.score_maps = take(FOLDS * TILE), s.value_maps = take(FOLDS * TILE);
    s.all_values = take(LAYERS * TILE), s.all_back = take(TILE);
    s.map_gradient = take(FOLD ? 4 * TILE : 0);
    s.side_by_side = take(SIDE_BY_SIDE);
    s.mean = take(KEPT), s.square = take(KEPT), s.gradient = take(KEPT);
    s.token = reinterpret_cast<int*>(take(B));
    s.places = reinterpret_cast<Place*>(take(PLACES));
    s.layer = s.place = 0;
    return s;
}

DEVICE void train(
    int lane, float* memory, int n_steps, float* weights, float* means, float* squares,
    const int* counts, const int* examples, const int* begins, int stride, const int* sizes,
    const float* scales, const float* rates, const float* factors, float* losses, float* accuracies
) {
    EACH(i, FLOATS) memory[i] = 0.0f;
    SYNC;
    Shared s = lay_out(memory);
    const long long at_lane = (long long)lane * PARAMS;
    EACH(i, PARAMS) {
        s.weight[slot<RD, RI>(i)] = weights[at_lane + i];
        s.mean[slot<GD, GI>(i)] = means[at_lane + i];
        s.square[slot<GD, GI>(i)] = squares[at_lane + i];
    }
    SYNC;
    // Padding beyond the last head and neuron stays zero.
    int* is_used = reinterpret_cast<int*>(s.column);
    EACH(t, H + W) {
        int used = 0;
        for (int layer = 0; layer < LAYERS; ++layer)
            if (t < H) {
                FOR(r, 4) for (int i = 0; i < K * RI; ++i)
                    used |= inner(s, QUERY + (4 * layer + r) * HK + t * K)[i] != 0.0f;
            } else {
                const int w = t - H;
                used |= bias(s, layer)[w] != 0.0f;
                for (int i = 0; i < RD; ++i) FOR(r, 2)
                    used |= wide(s, IN + (2 * layer + r) * W + w)[i] != 0.0f;
            }
        is_used[t] = used;
    }
    SYNC;
    int n_heads = H, n_neurons = W;
    while (n_heads > 0 && !is_used[n_heads - 1]) --n_heads;
    while (n_neurons > 0 && !is_used[H + n_neurons - 1]) --n_neurons;
    SYNC;
    const int n = sizes[lane];
    const float share = WEIGHTED ? 1.0f : 1.0f / n, scale = scales[lane];
    Example own[OWN];
#if defined(__CUDACC__)
    Place places[max_of(1, EACH_PLACES)];
    s.places = places;
#endif

    NO_UNROLL for (int step = 0; step < n_steps; ++step) {
        const int* batch = examples + (begins[lane] + (long long)step * stride) * WORDS;
        NO_UNROLL for (int layer = 0; layer < LAYERS; ++layer) {
            s.layer = layer;
            fold(s, n_heads);
        }
        FOR(i, OWN) own[i].loss = own[i].right = spread(0.0f);
        NO_UNROLL for (int start = 0; start < n; start += B) {
            s.filled = n - start < B ? round_up(n - start, LANES) : B;
            EXAMPLES(b) {
                Example& e = OWNED(b);
                const whole at = indices() + (start + b);
                const mask is_counted = at < n;
                whole packed[WORDS];
#if defined(__CUDACC__)
                FOR(w, WORDS) packed[w] = is_counted ? batch[at * WORDS + w] : 0;
#else
                FOR(w, WORDS) for (int i = 0; i < LANES; ++i)
                    packed[w][i] = is_counted[i] ? batch[at[i] * WORDS + w] : 0;
#endif
                FOR(p, S) e.token[p] = packed[p / 4] >> p % 4 * 8 & 255;
                e.label = packed[S / 4] >> S % 4 * 8 & 255;
                const real weight = WEIGHTED ? of_bits(packed[WORDS - 1]) : spread(1.0f);
                e.weight = select(is_counted, weight, spread(0.0f));
                read_layers(s, e, PLACES_OF(b), n_heads, n_neurons, scale);
                compare(s, e, share);
            }
            back_through_unembeddings(s, own, share);
            NO_UNROLL for (int layer = LAYERS - 1; layer >= 0; --layer) {
                s.layer = layer;
                NO_UNROLL for (int place = first_place(layer); place < S; ++place) {
                    s.place = place;
                    if (LAYERS > 1) EXAMPLES(b) begin_back(s, OWNED(b), PLACES_OF(b));
                    back_through_neurons(s, own, n_neurons);
                    back_through_heads(s, own, place_of(s) ? n_heads : 0, scale);
                    if (LAYERS > 1) EXAMPLES(b) end_back(s, OWNED(b), PLACES_OF(b));
                }
                back_to_stream(s, own);
            }
        }
        const float rate = rates[lane * n_steps + step];
        update(s, (float)(counts[lane] + step + 1), rate, factors + at_lane);
        s.filled = n < B ? round_up(n, LANES) : B;
        EXAMPLES(b) column(s, b, 0) = OWNED(b).loss, column(s, b, 1) = OWNED(b).right;
        SYNC;
        sum_columns<2>(s);
        SYNC;
        EACH(t, 2) (t ? accuracies : losses)[lane * n_steps + step] = summed_column<2>(s, t) * share;
        SYNC;
    }
    EACH(i, PARAMS) {
        weights[at_lane + i] = s.weight[slot<RD, RI>(i)];
        means[at_lane + i] = s.mean[slot<GD, GI>(i)];
        squares[at_lane + i] = s.square[slot<GD, GI>(i)];
    }
}

}  // namespace

#define PARAMETERS                                                                              \
    int n_steps, float *weights, float *means, float *squares, const int *counts,               \
        const int *examples, const int *begins, int stride, const int *sizes, const float *scales, \
        const float *rates, const float *factors, float *seen
#define ARGUMENTS                                                                               \
    n_steps, weights, means, squares, counts, examples, begins, stride, sizes, scales, rates,   \
        factors, seen

// Losses of all lanes and steps are seen, and then accuracies.
#if defined(__CUDACC__)
extern "C" __constant__ const int shared_floats = FLOATS;
extern "C" __global__ void __launch_bounds__(B) train_chunk(PARAMETERS) {
    extern __shared__ float4 shared[];
    float* right = seen + (long long)gridDim.x * n_steps;
    train(blockIdx.x, reinterpret_cast<float*>(shared), ARGUMENTS, right);
}
#else
extern "C" void train_lane(int lane, int n_lanes, PARAMETERS) {
    const WithoutSubnormals here;
    float* memory = static_cast<float*>(::operator new(4 * FLOATS, std::align_val_t(64)));
    train(lane, memory, ARGUMENTS, seen + (long long)n_lanes * n_steps);
    ::operator delete(memory, std::align_val_t(64));
}
#endif
