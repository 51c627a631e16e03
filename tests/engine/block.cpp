// Two steps of a kernel: by one thread as on a CPU, or, with BLOCK, by the threads of a GPU's block,
// whose words are given meanings here. Prints both losses and the sum of squares of the weights.
#include <pthread.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#ifdef BLOCK
#define __CUDACC__
#define __device__
#define __forceinline__ inline
#define __global__
#define __constant__
#define __shared__
#define __launch_bounds__(n)
struct Index { int x; };
thread_local Index threadIdx, blockIdx, gridDim;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
pthread_barrier_t barrier;
#define __syncthreads() pthread_barrier_wait(&barrier)
float4 shared[1 << 14];
#define _Pragma(x)
float __int_as_float(int x) { float y; std::memcpy(&y, &x, 4); return y; }
#endif
#include SOURCE

#ifdef BLOCK
void train_lane(int lane, int n_lanes, PARAMETERS) {
    pthread_barrier_init(&barrier, nullptr, B);
    for (auto& x : shared) x = {NAN, NAN, NAN, NAN};
    std::vector<std::thread> threads;
    for (int t = 0; t < B; ++t)
        threads.emplace_back([=] {
            threadIdx.x = t, blockIdx.x = lane, gridDim.x = n_lanes;
            train_chunk(ARGUMENTS);
        });
    for (auto& thread : threads) thread.join();
}
#endif

int main() {
    static_assert(FLOATS <= 4 << 14);
    const int n_steps = 2, n_examples = 100, zero = 0;
    std::mt19937 random;
    std::uniform_real_distribution<float> uniform(-0.3f, 0.3f);
    std::vector<float> weights(PARAMS), means(PARAMS), squares(PARAMS), seen(2 * n_steps);
    std::vector<float> factors(PARAMS, 0.5f);
    for (auto& x : weights) x = uniform(random);
    std::vector<int> examples(n_examples * WORDS);
    for (auto& x : examples)
        for (int i = 0; i < 4; ++i) x = x << 8 | random() % N;
    for (int i = WORDS - 1; WEIGHTED && i < (int)examples.size(); i += WORDS) {
        const float weight = (i % 7 + 1) / 700.0f;
        std::memcpy(&examples[i], &weight, 4);
    }
    const float scale = 0.5f, rates[n_steps] = {0.003f, 0.003f};
    train_lane(0, 1, n_steps, weights.data(), means.data(), squares.data(), &zero, examples.data(),
               &zero, 0, &n_examples, &scale, rates, factors.data(), seen.data());
    double sum = 0.0;
    for (float x : weights) sum += x * x;
    std::printf("%.7f %.7f %.7f\n", seen[0], seen[1], sum);
}
