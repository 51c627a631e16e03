// All steps of a chunk of one model, by one block; see resident.py, which defines D, H, N, B, G.
// Of two tokens the last is read: heads mix it and what the other has beyond it, which is `apart`.
// Letters: D width, H heads in G groups of GH, N vocabulary, B batch.
#if defined(__CUDA_ARCH__)
#define SYNC __syncthreads()
#define UNROLL _Pragma("unroll")
    const int thread = threadIdx.x, n_threads = blockDim.x;
#else
#define SYNC
#define UNROLL
    const int thread = 0, n_threads = 1;
#endif
#define EACH(i, n) for (int i = thread; i < (n); i += n_threads)
#define FOR(i, n) UNROLL for (int i = 0; i < (n); ++i)
    constexpr int DD = D * D, HDD = H * DD, GH = H / G, SPLITS = 4, SHARE = B / SPLITS;
    constexpr int TOKEN = 0, POSITION = N * D, QUERY = POSITION + 2 * D, KEY = QUERY + HDD;
    constexpr int VALUE = KEY + HDD, OUTPUT = VALUE + HDD, UNEMBED = OUTPUT + HDD;
    constexpr int P = UNEMBED + N * D;
    constexpr int ROW = (D + 3) / 4 * 4;  // So that rows are read four numbers at a time.

    // The tile of the kernel, which Warp has placed right before what comes next.
    float* weight = (float*)((char*)wp::tile_shared_storage_t::alloc(0) - FLOATS * sizeof(float));
    float *mean = weight + P, *square = mean + P;
    float *qk_HIJ = square + P, *ov_HJI = qk_HIJ + HDD, *ov_JI = ov_HJI + HDD, *d_alone = ov_JI + DD;
    int* token = (int*)(d_alone + DD);
    float* free = (float*)(token + B);
    float *own = free, *apart = own + ROW * B, *d_added = apart + D * B, *rest = d_added + ROW * B;
    float *d_logit = rest, *read = d_logit + N * B, *lost = read + D * B, *right = lost + B;
    float *d_score = rest, *attention = d_score + H * B;
    float *d_other = attention + H * B, *d_last = d_other + D * B;
    float *part = free, *d_product = free + SPLITS * 2 * HDD, *gradient = free;
#if !defined(__CUDA_ARCH__)
    static float apart_of_all[SPLITS * 2 * HDD];  // A single thread reads on while it writes.
    part = apart_of_all;
#endif

    const long long begins = (long long)lane * P;
    EACH(i, P) {
        weight[i] = weights.data[begins + i];
        mean[i] = means.data[begins + i];
        square[i] = squares.data[begins + i];
    }
    SYNC;
    for (int step = 0; step < n_steps; ++step) {
        const int at = lane * n_steps + step;
        const float n_done = (float)(first_step + step + 1), rate = rates.data[at];
        const float unbias = 1.0f / (1.0f - wp::pow(0.9f, n_done));
        const float unbias_square = 1.0f / (1.0f - wp::pow(0.999f, n_done));
        auto adam = [&](int i, float g) {
            mean[i] = 0.9f * mean[i] + 0.1f * g;
            square[i] = 0.999f * square[i] + 0.001f * g * g;
            weight[i] -= rate * mean[i] * unbias / (sqrtf(square[i] * unbias_square) + 1e-8f);
        };

        // The products of every head's maps, of which alone logits depend.
        EACH(t, 2 * HDD) {
            const bool is_value = t >= HDD;
            const int of = t % HDD, head = of / DD * DD, i = of / D % D, j = of % D;
            float sum = 0.0f;
            if (is_value)
                FOR(k, D) sum += weight[VALUE + head + D * k + i] * weight[OUTPUT + head + D * j + k];
            else
                FOR(k, D) sum += weight[KEY + head + D * k + i] * weight[QUERY + head + D * k + j];
            (is_value ? ov_HJI : qk_HIJ)[of] = is_value ? sum : SCALE * sum;
        }
        EACH(b, B) token[b] = batch.data[at * B + b];
        SYNC;
        EACH(t, DD) {
            float sum = 0.0f;
            for (int h = 0; h < H; ++h) sum += ov_HJI[h * DD + t];
            ov_JI[t] = sum;
        }
        SYNC;

        // Forward to the loss, and back to what heads add: an example a thread.
        EACH(b, B) {
            const int first = token[b] & 255, last = token[b] >> 8 & 255, label = token[b] >> 16;
            float x[D], y[D], z[D];
            FOR(d, D) {
                x[d] = weight[TOKEN + D * last + d];
                y[d] = x[d] + weight[POSITION + D + d];
                z[d] = weight[TOKEN + D * first + d] + weight[POSITION + d] - y[d];
            }
            FOR(j, D) FOR(i, D) x[i] += y[j] * ov_JI[D * j + i];
            for (int h = 0; h < H; ++h) {
                const float *qk = qk_HIJ + DD * h, *ov = ov_HJI + DD * h;
                float score = 0.0f;
                FOR(i, D) {
                    float sum = 0.0f;
                    FOR(j, D) sum += qk[D * i + j] * y[j];
                    score += z[i] * sum;
                }
                const float a = 1.0f / (1.0f + expf(-score));
                FOR(j, D) {
                    const float az = a * z[j];
                    FOR(i, D) x[i] += az * ov[D * j + i];
                }
            }
            float logit[N], most = -1e30f, of_label = 0.0f, total = 0.0f;
            FOR(n, N) {
                float sum = 0.0f;
                FOR(d, D) sum += weight[UNEMBED + D * n + d] * x[d];
                logit[n] = sum;
                most = logit[n] > most ? logit[n] : most;
                if (n == label) of_label = logit[n];
            }
            FOR(n, N) {
                logit[n] = expf(logit[n] - most);
                total += logit[n];
            }
            lost[b] = logf(total) + most - of_label;
            right[b] = of_label >= most ? 1.0f : 0.0f;
            float g[D] = {};
            const float share = 1.0f / (total * B);  // A division of each would spill registers.
            FOR(n, N) {
                const float d = logit[n] * share - (n == label ? 1.0f / B : 0.0f);
                d_logit[N * b + n] = d;
                FOR(i, D) g[i] += d * weight[UNEMBED + D * n + i];
            }
            FOR(d, D) {
                own[ROW * b + d] = y[d];
                apart[D * b + d] = z[d];
                d_added[ROW * b + d] = g[d];
                read[D * b + d] = x[d];
            }
        }
        SYNC;
        EACH(t, N * D) {
            const int n = t / D, d = t % D;
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) sum += d_logit[N * b + n] * read[D * b + d];
            adam(UNEMBED + t, sum);
        }
        EACH(t, 2) {
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) sum += (t ? right : lost)[b];
            (t ? accuracy : loss).data[at] = sum / B;
        }
        SYNC;

        // Back through heads: an example a thread.
        EACH(b, B) {
            float y[D], z[D], g[D], dy[D], dz[D] = {};
            FOR(d, D) {
                y[d] = own[ROW * b + d];
                z[d] = apart[D * b + d];
                g[d] = d_added[ROW * b + d];
            }
            FOR(j, D) {
                dy[j] = 0.0f;
                FOR(i, D) dy[j] += ov_JI[D * j + i] * g[i];
            }
            for (int h = 0; h < H; ++h) {
                const float *qk = qk_HIJ + DD * h, *ov = ov_HJI + DD * h;
                float query[D], score = 0.0f, da = 0.0f;
                FOR(i, D) {
                    query[i] = 0.0f;
                    FOR(j, D) query[i] += qk[D * i + j] * y[j];
                    score += z[i] * query[i];
                }
                const float a = 1.0f / (1.0f + expf(-score));
                FOR(j, D) {
                    float sum = 0.0f;
                    FOR(i, D) sum += ov[D * j + i] * g[i];
                    da += z[j] * sum;
                    dz[j] += a * sum;
                }
                const float ds = da * a * (1.0f - a);
                FOR(i, D) {
                    const float dsz = ds * z[i];
                    dz[i] += ds * query[i];
                    FOR(j, D) dy[j] += dsz * qk[D * i + j];
                }
                d_score[H * b + h] = ds;
                attention[H * b + h] = a;
            }
            FOR(d, D) {
                d_other[D * b + d] = dz[d];
                d_last[D * b + d] = dy[d] - dz[d];
            }
        }
        SYNC;
        EACH(t, N * D) {
            const int n = t / D, d = t % D;
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) {
                if ((token[b] & 255) == n) sum += d_other[D * b + d];
                if ((token[b] >> 8 & 255) == n) sum += d_last[D * b + d] + d_added[ROW * b + d];
            }
            adam(TOKEN + t, sum);
        }
        EACH(t, 2 * D) {
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) sum += (t < D ? d_other + t : d_last + t - D)[D * b];
            adam(POSITION + t, sum);
        }
        EACH(t, DD) {
            float sum = 0.0f;
            for (int b = 0; b < B; ++b) sum += own[ROW * b + t / D] * d_added[ROW * b + t % D];
            d_alone[t] = sum;
        }
        // The gradient of the products, in registers: GH heads and a row a thread, of its share.
        EACH(t, SPLITS * 64) {
            const int split = t / 64, of = t % 64, row = of % D, group = of / D % G;
            const bool is_value = of >= D * G, is_used = of < 2 * D * G;
            const float* left = (is_value ? attention : d_score) + GH * group;
            const float* factor = is_value ? d_added : own;
            float sum[GH][D] = {};
            if (is_used)
                for (int b = split * SHARE; b < (split + 1) * SHARE; ++b) {
                    float x[D];
                    FOR(j, D) x[j] = apart[D * b + row] * factor[ROW * b + j];
                    FOR(k, GH) FOR(j, D) sum[k][j] += left[H * b + k] * x[j];
                }
            SYNC;
            float* to = part + (2 * split + is_value) * HDD + GH * group * DD + D * row;
            if (is_used) FOR(k, GH) FOR(j, D) to[k * DD + j] = sum[k][j];
        }
        SYNC;
        EACH(t, 2 * HDD) {
            float sum = 0.0f;
            for (int split = 0; split < SPLITS; ++split) sum += part[2 * split * HDD + t];
            d_product[t] = t < HDD ? SCALE * sum : sum + d_alone[t % DD];
        }
        SYNC;
        EACH(t, HDD) {
            const int head = t / DD * DD, x = t / D % D, y = t % D;
            const float *d_qk = d_product + head, *d_ov = d_product + HDD + head;
            float query = 0.0f, key = 0.0f, value = 0.0f, output = 0.0f;
            FOR(i, D) {
                query += d_qk[D * i + y] * weight[KEY + head + D * x + i];
                key += d_qk[D * y + i] * weight[QUERY + head + D * x + i];
                value += d_ov[D * y + i] * weight[OUTPUT + head + D * i + x];
                output += d_ov[D * i + x] * weight[VALUE + head + D * y + i];
            }
            gradient[t] = query;
            gradient[HDD + t] = key;
            gradient[2 * HDD + t] = value;
            gradient[3 * HDD + t] = output;
        }
        SYNC;
        EACH(t, 4 * HDD) adam(QUERY + t, gradient[t]);
        SYNC;
    }
    EACH(i, P) {
        weights.data[begins + i] = weight[i];
        means.data[begins + i] = mean[i];
        squares.data[begins + i] = square[i];
    }
