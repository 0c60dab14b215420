/* Drawing tokens from logits. */

#include "vectors.h"

enum { SPAN = 256 }; /* ids whose weights are summed together when a token is drawn */

static int64_t likeliest(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

/* weights[i] = exp((logits[i] - top) / temperature); ends[s] = their sum up to the end of span s. */
static void weigh(const float *logits, int64_t count, float top, float inverse, float *weights, double *ends) {
    double sum = 0;
    for (int64_t from = 0; from < count; from += SPAN) {
        int64_t until = count - from < SPAN ? count - from : SPAN, i = 0;
        wide_lanes low = {}, high = {};
        for (; i < until; i += LANES) {
            lanes x = {};
            if (i + LANES <= until) x = *(const lanes *)(logits + from + i) - top;
            else
                for (int j = 0; j < LANES; j++) x[j] = i + j < until ? logits[from + i + j] - top : -INFINITY;
            lanes weight = exponential(x * inverse);
            *(lanes *)(weights + from + i) = weight;
            low += __builtin_convertvector(*(half_lanes *)&weight, wide_lanes);
            high += __builtin_convertvector(*((half_lanes *)&weight + 1), wide_lanes);
        }
        low += high;
        for (int j = 0; j < LANES / 2; j++) sum += low[j];
        ends[from / SPAN] = sum;
    }
}

/* The id whose slice of the cumulative weights holds the target; one of weight 0 never does. */
static int64_t search(const float *weights, const double *ends, int64_t count, double target) {
    int64_t span = 0, spans = (count + SPAN - 1) / SPAN;
    while (span + 1 < spans && ends[span] <= target) span++;
    double sum = span ? ends[span - 1] : 0;
    int64_t found = span * SPAN;
    for (int64_t i = span * SPAN; i < count && i < (span + 1) * SPAN; i++) {
        sum += weights[i];
        if (weights[i] > 0) found = i;
        if (sum > target) break;
    }
    return found;
}

static float entropy_of(const float *logits, const float *weights, int64_t count, float top, double sum) {
    double mean = 0;
    for (int64_t i = 0; i < count; i++)
        if (weights[i] > 0) mean += (double)weights[i] * (logits[i] - top);
    return (float)(log(sum) - mean / sum);
}

/* Draw a token of each row by inverse CDF, or take the likeliest where the temperature is 0, ties by
 * lowest id. `weights` holds one row, rounded up to whole vectors; `ends` one number per span. */
void draw(
    int32_t rows, int64_t vocabulary, const float *logits, float temperature, const double *uniforms, int64_t *tokens,
    float *log_probs, float *entropy, float *weights, double *ends
) {
    int64_t spans = (vocabulary + SPAN - 1) / SPAN;
    for (int row = 0; row < rows; row++, logits += vocabulary) {
        lanes best = {};
        best -= INFINITY;
        int64_t i = 0;
        for (; i + LANES <= vocabulary; i += LANES) best = larger(*(const lanes *)(logits + i), best);
        float top = largest(best);
        for (; i < vocabulary; i++) top = logits[i] > top ? logits[i] : top;
        if (entropy) {
            weigh(logits, vocabulary, top, 1.0f, weights, ends);
            entropy[row] = entropy_of(logits, weights, vocabulary, top, ends[spans - 1]);
        }
        if (temperature == 0) {
            tokens[row] = likeliest(logits, vocabulary);
            log_probs[row] = 0;
            continue;
        }
        float inverse = 1.0f / temperature;
        weigh(logits, vocabulary, top, inverse, weights, ends);
        double sum = ends[spans - 1];
        tokens[row] = search(weights, ends, vocabulary, uniforms[row] * sum);
        log_probs[row] = (logits[tokens[row]] - top) * inverse - (float)log(sum);
    }
}
