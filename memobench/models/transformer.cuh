// All steps of a chunk of one Transformer, by one block, which keeps weights, moments and gradient
// in shared memory. What compiles it for a size (memobench/engine/resident.py) defines
//   D width, H heads of dimension K, W neurons, N vocabulary, B examples at a time, a thread each,
//   RELU where the activation is that and no gelu, and B1, B2, EPS of Adam.
// One layer, two tokens of which the last is read: heads mix it and what the first has beyond it.
// A row is what a feature reads or writes, D numbers: padded to ROW in shared memory, so that four
// are read at a time. No atomics: equal inputs give equal bits.
#if defined(__CUDACC__)
#define DEVICE __device__ __forceinline__
#define SYNC __syncthreads()
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#else
#include <cmath>
#define DEVICE inline
#define SYNC
#define UNROLL
#define NO_UNROLL
#endif

namespace {

constexpr int QUADS = (D + 3) / 4, ROW = 4 * QUADS, HK = H * K;
// Rows, in the order of transformer.py.
constexpr int TOKEN = 0, POSITION = N, UNEMBED = N + 2, QUERY = 2 * N + 2, KEY = QUERY + HK;
constexpr int VALUE = KEY + HK, OUTPUT = VALUE + HK, IN = OUTPUT + HK, OUT = IN + W;
constexpr int ROWS = OUT + W, PARAMS = ROWS * D + W;

// Features whose gradient is taken at a time: tokens, neurons, and those of whole heads.
constexpr int round_up_to_even(int n) { return (n + 1) / 2 * 2; }
constexpr int FU = 32, FW = 16, HEADS = K < 8 ? 8 / K : 1, FH = round_up_to_even(HEADS * K);
constexpr int max_of(int a, int b) { return a > b ? a : b; }
constexpr int COLUMNS = max_of(max_of(FU, 2 * FW), 5 * FH) + 2;
static_assert(H + W <= B * COLUMNS);
// Threads beside another that share the examples of one sum.
constexpr int splits(int n_products, int n_features) {
    return max_of(1, B / (n_products * n_features / 2 * QUADS));
}
constexpr int SU = splits(1, FU), SW = splits(2, FW), SH = splits(5, FH), SB = B / FW;
constexpr int PARTS = max_of(max_of(SU * FU, SW * 2 * FW), SH * 5 * FH) * ROW + SB * FW;
constexpr int FLOATS = ROWS * ROW + W + 3 * PARAMS + B * (3 * ROW + COLUMNS + 1) + PARTS + 8;

struct Shared {
    float *weight, *mean, *square, *gradient, *a, *b, *c, *column, *part, *bias_part;
    int* token;
};

// What a thread keeps of its example: y of the last token, z of the first less y, the stream x
// after heads and `read` after neurons, and gradients.
struct Example {
    float y[D], z[D], x[D], read[D], g[D];
    float most, over_total, loss, right;
    int first, last, label;
    bool counts;
};

#if defined(__CUDACC__)
constexpr int OWN = 1;
#define EACH(i, n) for (int i = threadIdx.x; i < (n); i += B)
DEVICE void load(float* to, const float* row) {
    UNROLL for (int i = 0; i < QUADS; ++i) {
        const float4 v = reinterpret_cast<const float4*>(row)[i];
        const float of[4] = {v.x, v.y, v.z, v.w};
        UNROLL for (int j = 0; j < 4; ++j) if (4 * i + j < D) to[4 * i + j] = of[j];
    }
}
#else
constexpr int OWN = B;
#define EACH(i, n) for (int i = 0; i < (n); ++i)
DEVICE void load(float* to, const float* row) {
    for (int i = 0; i < D; ++i) to[i] = row[i];
}
#endif
#define FOR(i, n) UNROLL for (int i = 0; i < (n); ++i)
#define EXAMPLES(b) EACH(b, B)
#define OWNED(b) own[OWN == 1 ? 0 : (b)]

DEVICE float dot(const float* row, const float* x) {
    float w[D], sum = 0.0f;
    load(w, row);
    FOR(i, D) sum += w[i] * x[i];
    return sum;
}

DEVICE void add(float* x, float factor, const float* row) {
    float w[D];
    load(w, row);
    FOR(i, D) x[i] += factor * w[i];
}

DEVICE void store(float* row, const float* x) {
    FOR(i, ROW) row[i] = i < D ? x[i] : 0.0f;
}

DEVICE float activate(float x) {
#if RELU
    return x > 0.0f ? x : 0.0f;
#else
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
#endif
}

DEVICE float activate_gradient(float x) {
#if RELU
    return x > 0.0f ? 1.0f : 0.0f;
#else
    return 0.5f * (1.0f + erff(x * 0.70710678f)) + x * 0.39894228f * expf(-0.5f * x * x);
#endif
}

// Partial sums over examples of products of columns, F of each product, with rows.
template <int PRODUCTS, int F, int S>
DEVICE void sum_products(const Shared& s, const float* const (&rows)[PRODUCTS]) {
    constexpr int PAIRS = F / 2, EACH_SPLIT = PRODUCTS * PAIRS * QUADS;
    EACH(t, S * EACH_SPLIT) {
        const int split = t / EACH_SPLIT, of = t % EACH_SPLIT, quad = of % QUADS;
        const int pair = of / QUADS % PAIRS, product = of / QUADS / PAIRS;
        const float* row = rows[0];
        FOR(p, PRODUCTS) if (p == product) row = rows[p];
        row += 4 * quad;
        const float* column = s.column + product * F + 2 * pair;
        float sum[2][4] = {};
        for (int b = split; b < B; b += S) {
            float c[2], r[4];
#if defined(__CUDACC__)
            const float2 c2 = *reinterpret_cast<const float2*>(column + b * COLUMNS);
            const float4 r4 = *reinterpret_cast<const float4*>(row + b * ROW);
            c[0] = c2.x, c[1] = c2.y, r[0] = r4.x, r[1] = r4.y, r[2] = r4.z, r[3] = r4.w;
#else
            FOR(i, 2) c[i] = column[b * COLUMNS + i];
            FOR(j, 4) r[j] = row[b * ROW + j];
#endif
            FOR(i, 2) FOR(j, 4) sum[i][j] += c[i] * r[j];
        }
        float* to = s.part + ((split * PRODUCTS + product) * F + 2 * pair) * ROW + 4 * quad;
        FOR(i, 2) FOR(j, 4) to[i * ROW + j] = sum[i][j];
    }
}

// The sum over splits of entry (feature, i) of a product.
template <int PRODUCTS, int F, int S>
DEVICE float whole(const Shared& s, int product, int feature, int i) {
    float sum = 0.0f;
    FOR(split, S) sum += s.part[((split * PRODUCTS + product) * F + feature) * ROW + i];
    return sum;
}

DEVICE void train(
    int lane, float* shared, int n_steps, float* weights, float* means, float* squares,
    const int* counts, const int* examples, const int* begins, int stride, const int* sizes,
    const float* scales, const float* rates, float* losses, float* accuracies
) {
    Shared s;
    s.weight = shared;
    s.a = s.weight + ROWS * ROW, s.b = s.a + B * ROW, s.c = s.b + B * ROW;
    s.part = s.c + B * ROW;
    s.bias_part = s.part + PARTS - SB * FW;
    s.column = s.part + (PARTS + 3) / 4 * 4;
    s.mean = s.column + B * COLUMNS;
    s.square = s.mean + PARAMS;
    s.gradient = s.square + PARAMS;
    float* bias = s.gradient + PARAMS;
    s.token = reinterpret_cast<int*>(bias + W);
    const long long at_lane = (long long)lane * PARAMS;
    auto weight_of = [&](int i) -> float& {
        return i < ROWS * D ? s.weight[i / D * ROW + i % D] : bias[i - ROWS * D];
    };
    EACH(i, ROWS * ROW) s.weight[i] = 0.0f;
    SYNC;
    EACH(i, PARAMS) {
        weight_of(i) = weights[at_lane + i];
        s.mean[i] = means[at_lane + i];
        s.square[i] = squares[at_lane + i];
        s.gradient[i] = 0.0f;
    }
    SYNC;
    // Padding beyond the last head and neuron stays zero.
    int* is_used = reinterpret_cast<int*>(s.column);
    EACH(t, H + W) {
        int used = 0;
        if (t < H) {
            const int rows[4] = {QUERY, KEY, VALUE, OUTPUT};
            FOR(r, 4) for (int i = 0; i < K * ROW; ++i)
                used |= s.weight[(rows[r] + t * K) * ROW + i] != 0.0f;
        } else {
            const int w = t - H;
            used = bias[w] != 0.0f;
            for (int i = 0; i < ROW; ++i)
                FOR(r, 2) used |= s.weight[((r ? IN : OUT) + w) * ROW + i] != 0.0f;
        }
        is_used[t] = used;
    }
    SYNC;
    int n_heads = H, n_neurons = W;
    while (n_heads > 0 && !is_used[n_heads - 1]) --n_heads;
    while (n_neurons > 0 && !is_used[H + n_neurons - 1]) --n_neurons;
    SYNC;
    const int n = sizes[lane], n_features = n_heads * K;
    const float share = 1.0f / n, scale = scales[lane];
    Example own[OWN];

    NO_UNROLL for (int step = 0; step < n_steps; ++step) {
        const int* batch = examples + begins[lane] + (long long)step * stride;
        EXAMPLES(b) OWNED(b).loss = OWNED(b).right = 0.0f;

        NO_UNROLL for (int start = 0; start < n; start += B) {
            // Forward to the logits, an example a thread.
            EXAMPLES(b) {
                Example& e = OWNED(b);
                e.counts = start + b < n;
                const int packed = e.counts ? batch[start + b] : 0;
                e.first = packed & 255, e.last = packed >> 8 & 255, e.label = packed >> 16;
                float position[D];
                load(e.y, s.weight + (TOKEN + e.last) * ROW);
                load(position, s.weight + (POSITION + 1) * ROW);
                FOR(i, D) e.y[i] += position[i];
                load(e.z, s.weight + (TOKEN + e.first) * ROW);
                load(position, s.weight + POSITION * ROW);
                FOR(i, D) e.z[i] += position[i] - e.y[i];
                FOR(i, D) e.x[i] = e.y[i];
                NO_UNROLL for (int h = 0; h < n_features; h += K) {
                    float score = 0.0f, m[D];
                    FOR(k, K)
                        score += dot(s.weight + (QUERY + h + k) * ROW, e.y) *
                                 dot(s.weight + (KEY + h + k) * ROW, e.z);
                    const float attention = 1.0f / (1.0f + expf(-scale * score));
                    FOR(i, D) m[i] = e.y[i] + attention * e.z[i];
                    FOR(k, K)
                        add(e.x, dot(s.weight + (VALUE + h + k) * ROW, m),
                            s.weight + (OUTPUT + h + k) * ROW);
                }
                FOR(i, D) e.read[i] = e.x[i];
                NO_UNROLL for (int w = 0; w < n_neurons; ++w) {
                    const float hidden = dot(s.weight + (IN + w) * ROW, e.x) + bias[w];
                    add(e.read, activate(hidden), s.weight + (OUT + w) * ROW);
                }
                float most = -1e30f, others = -1e30f, of_label = 0.0f, total = 0.0f;
                NO_UNROLL for (int m = 0; m < N; m += 8) {
                    float logit[8], highest = most;
                    FOR(j, 8) {
                        const bool is_there = m + j < N;
                        const float* row = s.weight + (UNEMBED + m + j) * ROW;
                        logit[j] = is_there ? dot(row, e.read) : -1e30f;
                        highest = logit[j] > highest ? logit[j] : highest;
                        if (m + j == e.label) of_label = logit[j];
                        else others = logit[j] > others ? logit[j] : others;
                    }
                    total *= expf(most - highest);
                    FOR(j, 8) total += expf(logit[j] - highest);
                    most = highest;
                }
                if (e.counts) {
                    e.loss += logf(total) + most - of_label;
                    e.right += of_label > others ? 1.0f : 0.0f;
                }
                e.most = most, e.over_total = e.counts ? share / total : 0.0f;
                FOR(i, D) e.g[i] = 0.0f;
                store(s.a + b * ROW, e.read);
            }

            // Back through unembeddings.
            NO_UNROLL for (int m = 0; m < N; m += FU) {
                EXAMPLES(b) {
                    Example& e = OWNED(b);
                    FOR(j, FU) {
                        float d = 0.0f;
                        if (m + j < N) {
                            const float* row = s.weight + (UNEMBED + m + j) * ROW;
                            d = expf(dot(row, e.read) - e.most) * e.over_total;
                            if (m + j == e.label && e.counts) d -= share;
                            add(e.g, d, row);
                        }
                        s.column[b * COLUMNS + j] = d;
                    }
                }
                SYNC;
                sum_products<1, FU, SU>(s, {s.a});
                SYNC;
                EACH(t, FU * D) if (m + t / D < N)
                    s.gradient[(UNEMBED + m) * D + t] += whole<1, FU, SU>(s, 0, t / D, t % D);
            }
            SYNC;

            // Back through neurons.
            EXAMPLES(b) {
                store(s.a + b * ROW, OWNED(b).x);
                store(s.b + b * ROW, OWNED(b).g);
                FOR(i, D) OWNED(b).read[i] = OWNED(b).g[i];
            }
            NO_UNROLL for (int w = 0; w < n_neurons; w += FW) {
                EXAMPLES(b) {
                    Example& e = OWNED(b);
                    FOR(j, FW) {
                        float active = 0.0f, d = 0.0f;
                        if (w + j < n_neurons) {
                            const float* row = s.weight + (IN + w + j) * ROW;
                            const float hidden = dot(row, e.x) + bias[w + j];
                            active = activate(hidden);
                            d = dot(s.weight + (OUT + w + j) * ROW, e.read) *
                                activate_gradient(hidden);
                            add(e.g, d, row);
                        }
                        s.column[b * COLUMNS + j] = d;
                        s.column[b * COLUMNS + FW + j] = active;
                    }
                }
                SYNC;
                sum_products<2, FW, SW>(s, {s.a, s.b});
                EACH(t, SB * FW) {
                    float sum = 0.0f;
                    for (int b = t / FW; b < B; b += SB) sum += s.column[b * COLUMNS + t % FW];
                    s.bias_part[t] = sum;
                }
                SYNC;
                EACH(t, FW * D) if (w + t / D < n_neurons) {
                    s.gradient[(IN + w) * D + t] += whole<2, FW, SW>(s, 0, t / D, t % D);
                    s.gradient[(OUT + w) * D + t] += whole<2, FW, SW>(s, 1, t / D, t % D);
                }
                EACH(t, FW) if (w + t < n_neurons) {
                    float sum = 0.0f;
                    FOR(split, SB) sum += s.bias_part[split * FW + t];
                    s.gradient[ROWS * D + w + t] += sum;
                }
            }
            SYNC;

            // Back through heads; x and read now hold the gradients of y and z.
            EXAMPLES(b) {
                Example& e = OWNED(b);
                store(s.a + b * ROW, e.y);
                store(s.b + b * ROW, e.z);
                store(s.c + b * ROW, e.g);
                FOR(i, D) e.x[i] = e.g[i], e.read[i] = 0.0f;
            }
            NO_UNROLL for (int h = 0; h < n_features; h += HEADS * K) {
                EXAMPLES(b) {
                    Example& e = OWNED(b);
                    float* column = s.column + b * COLUMNS;
                    FOR(j, HEADS) {
                        const int at = h + j * K;
                        if (at < n_features) {
                            float query[K], key[K], score = 0.0f, m[D];
                            FOR(k, K) {
                                query[k] = dot(s.weight + (QUERY + at + k) * ROW, e.y);
                                key[k] = dot(s.weight + (KEY + at + k) * ROW, e.z);
                                score += query[k] * key[k];
                            }
                            const float attention = 1.0f / (1.0f + expf(-scale * score));
                            FOR(i, D) m[i] = e.y[i] + attention * e.z[i];
                            float d_attention = 0.0f;
                            FOR(k, K) {
                                float value[D];
                                load(value, s.weight + (VALUE + at + k) * ROW);
                                const float d = dot(s.weight + (OUTPUT + at + k) * ROW, e.g);
                                float of_z = 0.0f, of_m = 0.0f;
                                FOR(i, D) {
                                    of_z += value[i] * e.z[i];
                                    of_m += value[i] * m[i];
                                    e.x[i] += d * value[i];
                                    e.read[i] += attention * d * value[i];
                                }
                                d_attention += d * of_z;
                                column[2 * FH + j * K + k] = d;
                                column[3 * FH + j * K + k] = attention * d;
                                column[4 * FH + j * K + k] = of_m;
                            }
                            const float ds = scale * d_attention * attention * (1.0f - attention);
                            FOR(k, K) {
                                const float dq = ds * key[k], dk = ds * query[k];
                                add(e.x, dq, s.weight + (QUERY + at + k) * ROW);
                                add(e.read, dk, s.weight + (KEY + at + k) * ROW);
                                column[j * K + k] = dq;
                                column[FH + j * K + k] = dk;
                            }
                        } else {
                            FOR(k, K) FOR(p, 5) column[p * FH + j * K + k] = 0.0f;
                        }
                    }
                    if (HEADS * K < FH) FOR(p, 5) column[p * FH + FH - 1] = 0.0f;
                }
                SYNC;
                sum_products<5, FH, SH>(s, {s.a, s.b, s.a, s.b, s.c});
                SYNC;
                EACH(t, HEADS * K * D) if (h + t / D < n_features) {
                    const int f = t / D, i = t % D;
                    s.gradient[(QUERY + h) * D + t] += whole<5, FH, SH>(s, 0, f, i);
                    s.gradient[(KEY + h) * D + t] += whole<5, FH, SH>(s, 1, f, i);
                    s.gradient[(VALUE + h) * D + t] +=
                        whole<5, FH, SH>(s, 2, f, i) + whole<5, FH, SH>(s, 3, f, i);
                    s.gradient[(OUTPUT + h) * D + t] += whole<5, FH, SH>(s, 4, f, i);
                }
            }
            SYNC;

            // Back to tokens, whose owners look for them; the last two take all.
            EXAMPLES(b) {
                Example& e = OWNED(b);
                FOR(i, D) e.x[i] -= e.read[i];
                store(s.a + b * ROW, e.read);
                store(s.b + b * ROW, e.x);
                s.token[b] = e.first | e.last << 8;
            }
            SYNC;
            EACH(t, (N + 2) * D) {
                const int token = t / D, i = t % D;
                float sum = 0.0f;
                for (int b = 0; b < B; ++b) {
                    if ((s.token[b] & 255) == token || token == N) sum += s.a[b * ROW + i];
                    if (s.token[b] >> 8 == token || token == N + 1) sum += s.b[b * ROW + i];
                }
                s.gradient[TOKEN * D + t] += sum;
            }
            SYNC;
        }

        // Adam, and what was seen.
        const float n_done = (float)(counts[lane] + step + 1), rate = rates[lane * n_steps + step];
        const float unbias = 1.0f / (1.0f - powf(B1, n_done));
        const float unbias_square = 1.0f / (1.0f - powf(B2, n_done));
        EACH(i, PARAMS) {
            const float g = s.gradient[i];
            const float mean = s.mean[i] = B1 * s.mean[i] + (1.0f - B1) * g;
            const float square = s.square[i] = B2 * s.square[i] + (1.0f - B2) * g * g;
            weight_of(i) -= rate * mean * unbias / (sqrtf(square * unbias_square) + EPS);
            s.gradient[i] = 0.0f;
        }
        EXAMPLES(b) {
            s.column[2 * b] = OWNED(b).loss;
            s.column[2 * b + 1] = OWNED(b).right;
        }
        SYNC;
        EACH(t, 2) {
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) sum += s.column[2 * b + t];
            (t ? accuracies : losses)[lane * n_steps + step] = sum * share;
        }
        SYNC;
    }
    EACH(i, PARAMS) {
        weights[at_lane + i] = weight_of(i);
        means[at_lane + i] = s.mean[i];
        squares[at_lane + i] = s.square[i];
    }
}

}  // namespace

#define PARAMETERS                                                                              \
    int n_steps, float *weights, float *means, float *squares, const int *counts,               \
        const int *examples, const int *begins, int stride, const int *sizes, const float *scales, \
        const float *rates, float *seen
#define ARGUMENTS                                                                               \
    n_steps, weights, means, squares, counts, examples, begins, stride, sizes, scales, rates, seen

// Losses of all lanes and steps are seen, and then accuracies.
#if defined(__CUDACC__)
extern "C" __constant__ const int shared_floats = FLOATS;
extern "C" __global__ void __launch_bounds__(B) train_chunk(PARAMETERS) {
    extern __shared__ float4 shared[];
    float* right = seen + (long long)gridDim.x * n_steps;
    train(blockIdx.x, reinterpret_cast<float*>(shared), ARGUMENTS, right);
}
#else
extern "C" const int shared_floats = FLOATS;
extern "C" void train_chunk(int n_lanes, PARAMETERS) {
    float* shared = new float[FLOATS + 64];
    for (int lane = 0; lane < n_lanes; ++lane)
        train(lane, shared, ARGUMENTS, seen + (long long)n_lanes * n_steps);
    delete[] shared;
}
#endif
