/* The parts of a layer that are no matrix products with weights, forwards and backwards, in float32:
 * norm, gate, rotary positions and attention. Each walks over its rows once, where a chain of
 * elementwise operations would walk over them several times, and attention computes no masked block.
 *
 * Texts stand one behind the other, without padding. Every sum of a text runs in an order that
 * depends on its length alone.
 */

#include "vectors.h"

/* ------------------------------------------------------------ by row */

INLINE lanes load(const float *x, int count) {
    lanes value = {};
    if (count >= LANES) return *(const lanes *)x;
    for (int i = 0; i < count; i++) value[i] = x[i];
    return value;
}

INLINE void store(float *x, lanes value, int count) {
    if (count >= LANES) *(lanes *)x = value;
    else
        for (int i = 0; i < count; i++) x[i] = value[i];
}

static float root_factor(const float *x, int size, float epsilon) {
    lanes squares = {};
    for (int i = 0; i < size; i += LANES) {
        lanes value = load(x + i, size - i);
        squares += value * value;
    }
    return 1.0f / sqrtf(total(squares) / size + epsilon);
}

/* out = x / rms(x) * weight. */
void norm_rows(int64_t rows, int32_t size, const float *x, const float *weight, float epsilon, float *out) {
    for (int64_t row = 0; row < rows; row++, x += size, out += size) {
        float factor = root_factor(x, size, epsilon);
        for (int i = 0; i < size; i += LANES)
            store(out + i, load(x + i, size - i) * factor * load(weight + i, size - i), size - i);
    }
}

/* Gradient to x, plus `beside` unless that is null; the weight's is added to `for_weight`. */
void norm_rows_backward(
    int64_t rows, int32_t size, const float *gradient, const float *x, const float *weight, float epsilon,
    const float *beside, float *out, float *for_weight
) {
    for (int64_t row = 0; row < rows; row++, x += size, gradient += size, out += size) {
        float factor = root_factor(x, size, epsilon);
        lanes sums = {};
        for (int i = 0; i < size; i += LANES) {
            lanes product = load(gradient + i, size - i) * load(x + i, size - i) * factor;
            store(for_weight + i, load(for_weight + i, size - i) + product, size - i);
            sums += product * load(weight + i, size - i);
        }
        float inner = total(sums) / size * factor;
        for (int i = 0; i < size; i += LANES) {
            lanes value = load(gradient + i, size - i) * load(weight + i, size - i) - load(x + i, size - i) * inner;
            value *= factor;
            if (beside) value += load(beside + i, size - i);
            store(out + i, value, size - i);
        }
        if (beside) beside += size;
    }
}

/* out = silu(gate) * up. */
void gate_values(int64_t count, const float *gate, const float *up, float *out) {
    for (int64_t i = 0; i < count; i += LANES) {
        int left = count - i < LANES ? (int)(count - i) : LANES;
        lanes value = load(gate + i, left);
        store(out + i, value / (1.0f + exponential(-value)) * load(up + i, left), left);
    }
}

/* `gate_values` again, with the gradients to gate and up; `gradient` may be what is written to. */
void gate_values_backward(
    int64_t count, const float *gradient, const float *gate, const float *up, float *out, float *for_gate, float *for_up
) {
    for (int64_t i = 0; i < count; i += LANES) {
        int left = count - i < LANES ? (int)(count - i) : LANES;
        lanes value = load(gate + i, left), above = load(gradient + i, left);
        lanes share = 1.0f / (1.0f + exponential(-value)), other = load(up + i, left);
        lanes silu = value * share;
        store(out + i, silu * other, left);
        store(for_up + i, above * silu, left);
        store(for_gate + i, above * other * (share + silu * (1.0f - share)), left);
    }
}

/* Rotary positions of every head, in place; sign -1 turns back. cos and sin are [rows][size]. */
void rotate_rows(int64_t rows, int32_t heads, int32_t size, float *x, const float *cos, const float *sin, float sign) {
    int half = size / 2;
    for (int64_t row = 0; row < rows; row++, cos += size, sin += size)
        for (int head = 0; head < heads; head++, x += size)
            for (int i = 0; i < half; i += LANES) {
                int left = half - i;
                lanes low = load(x + i, left), high = load(x + half + i, left);
                store(x + i, low * load(cos + i, left) - high * load(sin + i, left) * sign, left);
                store(x + half + i, high * load(cos + half + i, left) + low * load(sin + half + i, left) * sign, left);
            }
}

/* ------------------------------------------------------------ small products */

/* Vectors of a row that are summed at once: four rows of them, and one more, fill the registers. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { WIDE = 4 };
#else
enum { WIDE = 2 };
#endif

/* out[r][c] (+)= sum over t of a[r * a_row + t * a_step] * b[t * b_step + c], in registers. */
INLINE void tile(
    int rows, int vectors, int64_t count, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_step,
    float *out, int64_t out_row, int add
) {
    lanes sums[4][WIDE] = {};
    for (int64_t t = 0; t < count; t++, a += a_step, b += b_step) {
        lanes columns[WIDE];
        UNROLL
        for (int v = 0; v < vectors; v++) columns[v] = *(const lanes *)(b + LANES * v);
        UNROLL
        for (int r = 0; r < rows; r++) {
            float value = a[r * a_row];
            UNROLL
            for (int v = 0; v < vectors; v++) sums[r][v] += columns[v] * value;
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < vectors; v++) {
            lanes *place = (lanes *)(out + r * out_row + LANES * v);
            if (add) sums[r][v] += *place;
            *place = sums[r][v];
        }
    }
}

/* At most four rows; `columns` is a multiple of LANES. */
static void strip(
    int rows, int64_t columns, int64_t count, const float *a, int64_t a_row, int64_t a_step, const float *b,
    int64_t b_step, float *out, int64_t out_row, int add
) {
#define CASE(r, v)                                                                                         \
    case WIDE * r + v: tile(r, v, count, a, a_row, a_step, b + from, b_step, out + from, out_row, add); break;
#if defined(__AVX512F__) || defined(__aarch64__)
#define CASES(r) CASE(r, 1) CASE(r, 2) CASE(r, 3) CASE(r, 4)
#else
#define CASES(r) CASE(r, 1) CASE(r, 2)
#endif
    for (int64_t from = 0; from < columns; from += WIDE * LANES) {
        int vectors = columns - from < WIDE * LANES ? (int)(columns - from) / LANES : WIDE;
        switch (WIDE * rows + vectors) { CASES(1) CASES(2) CASES(3) CASES(4) }
    }
#undef CASES
#undef CASE
}

/* ------------------------------------------------------------ attention */

enum { QUERIES = 128 }; /* of one text and head, whose attention weights exist at once */

/* One text of a block: its queries are those of its last tokens. */
typedef struct {
    int64_t keys, queries;
} Text;

/* Rows of one head, [count][wide], with zeros where wide is more than size. */
static void gather(int64_t count, int size, int wide, const float *from, int64_t stride, float *to) {
    for (int64_t i = 0; i < count; i++, from += stride, to += wide) {
        memcpy(to, from, size * sizeof(float));
        for (int j = size; j < wide; j++) to[j] = 0;
    }
}

static void scatter(int64_t count, int size, int wide, const float *from, float *to, int64_t stride) {
    for (int64_t i = 0; i < count; i++, from += wide, to += stride) memcpy(to, from, size * sizeof(float));
}

/* [count][wide] to [size][up_to(count, LANES)], zeros behind. */
static void transpose(int64_t count, int size, int wide, const float *from, float *to) {
    int64_t across = up_to(count, LANES);
    for (int64_t block = 0; block < across; block += LANES)
        for (int j = 0; j < size; j++) {
            lanes column = {};
            int64_t left = count - block < LANES ? count - block : LANES;
            const float *source = from + block * wide + j;
            if (left == LANES) {
                UNROLL
                for (int i = 0; i < LANES; i++) column[i] = source[i * wide];
            } else {
                for (int i = 0; i < left; i++) column[i] = source[i * wide];
            }
            *(lanes *)(to + j * across + block) = column;
        }
}

/* Scores to weights, in place: key j < seen has a share, those up to `limit` have none. */
static void shares(float *scores, int64_t seen, int64_t limit) {
    lanes best = {}, sums = {};
    best -= INFINITY;
    for (int64_t j = seen; j < limit; j++) scores[j] = -INFINITY;
    for (int64_t j = 0; j < limit; j += LANES) best = larger(*(lanes *)(scores + j), best);
    float top = largest(best);
    for (int64_t j = 0; j < limit; j += LANES) {
        lanes weight = exponential(*(lanes *)(scores + j) - top);
        *(lanes *)(scores + j) = weight;
        sums += weight;
    }
    float share = 1.0f / total(sums);
    for (int64_t j = 0; j < limit; j += LANES) *(lanes *)(scores + j) *= share;
}

/* Weights of queries first .. first + count of a text, [count][up_to(keys, LANES)]. Of a strip of four
 * queries, keys up to the next multiple of LANES behind its last one are written. */
static void weights_of(
    Text text, int64_t first, int64_t count, int size, int wide, const float *queries, const float *keys_across, float *weights
) {
    int64_t across = up_to(text.keys, LANES), before = text.keys - text.queries + first;
    float scale = 1.0f / sqrtf(size);
    for (int64_t i = 0; i < count; i += 4) {
        int rows = count - i < 4 ? (int)(count - i) : 4;
        int64_t limit = up_to(before + i + rows, LANES);
        float *own = weights + i * across;
        strip(rows, limit, size, queries + (first + i) * wide, wide, 1, keys_across, across, own, across, 0);
        for (int r = 0; r < rows; r++, own += across) {
            for (int64_t j = 0; j < limit; j += LANES) *(lanes *)(own + j) *= scale;
            shares(own, before + i + r + 1, limit);
        }
    }
}

/* Floats of working space for texts of at most `keys` keys. */
int64_t attention_space(int64_t keys, int32_t size) {
    int64_t wide = up_to(size, LANES), across = up_to(keys, LANES);
    return 8 * across * wide + 2 * QUERIES * across + 64;
}

/* Attention of packed texts: q and out are [queries][heads][size], k and v [keys][kv_heads][size]. */
void attend_rows(
    int64_t texts, const Text *text, int32_t heads, int32_t kv_heads, int32_t size, const float *q, const float *k,
    const float *v, float *out, float *space
) {
    int wide = (int)up_to(size, LANES), group = heads / kv_heads;
    int64_t row = (int64_t)heads * size, kv_row = (int64_t)kv_heads * size;
    for (; texts > 0; texts--, text++) {
        int64_t across = up_to(text->keys, LANES), area = across * wide;
        float *values = space, *turned = values + area, *queries = turned + area, *results = queries + area;
        float *weights = results + area;
        for (int head = 0; head < heads; head++) {
            if (head % group == 0) {
                gather(text->keys, size, wide, k + head / group * size, kv_row, values);
                transpose(text->keys, size, wide, values, turned);
                gather(text->keys, size, wide, v + head / group * size, kv_row, values);
            }
            gather(text->queries, size, wide, q + head * size, row, queries);
            for (int64_t first = 0; first < text->queries; first += QUERIES) {
                int64_t count = text->queries - first < QUERIES ? text->queries - first : QUERIES;
                int64_t before = text->keys - text->queries + first;
                weights_of(*text, first, count, size, wide, queries, turned, weights);
                for (int64_t i = 0; i < count; i += 4) {
                    int rows = count - i < 4 ? (int)(count - i) : 4;
                    strip(rows, wide, before + i + rows, weights + i * across, across, 1, values, wide,
                          results + (first + i) * wide, wide, 0);
                }
            }
            scatter(text->queries, size, wide, results, out + head * size, row);
        }
        q += text->queries * row, out += text->queries * row;
        k += text->keys * kv_row, v += text->keys * kv_row;
    }
}

/* Weights times (their gradient minus its mean under them), times the scale: gradient to scores. */
static void shares_backward(float *gradient, const float *weights, int64_t limit, float scale) {
    lanes sums = {};
    for (int64_t j = 0; j < limit; j += LANES) sums += *(lanes *)(gradient + j) * *(const lanes *)(weights + j);
    float mean = total(sums);
    for (int64_t j = 0; j < limit; j += LANES)
        *(lanes *)(gradient + j) = (*(lanes *)(gradient + j) - mean) * *(const lanes *)(weights + j) * scale;
}

/* out[j] += sum over the block's queries i that see key j of weights[i][j] * x[i]. */
static void to_keys(
    int64_t keys, int64_t before, int64_t count, int64_t across, int wide, const float *weights, const float *x, float *out
) {
    for (int64_t j = 0; j < keys && j < before + count; j += 4) {
        int rows = keys - j < 4 ? (int)(keys - j) : 4;
        int64_t from = j > before ? j - before : 0;
        strip(rows, wide, count - from, weights + from * across + j, 1, across, x + from * wide, wide, out + j * wide, wide, 1);
    }
}

/* Gradients of `attend_rows`, from the gradient to its result. */
void attend_rows_backward(
    int64_t texts, const Text *text, int32_t heads, int32_t kv_heads, int32_t size, const float *gradient, const float *q,
    const float *k, const float *v, float *for_q, float *for_k, float *for_v, float *space
) {
    int wide = (int)up_to(size, LANES), group = heads / kv_heads;
    int64_t row = (int64_t)heads * size, kv_row = (int64_t)kv_heads * size;
    float scale = 1.0f / sqrtf(size);
    for (; texts > 0; texts--, text++) {
        int64_t across = up_to(text->keys, LANES), area = across * wide;
        float *keys = space, *turned = keys + area, *values_turned = turned + area, *queries = values_turned + area;
        float *above = queries + area, *results = above + area, *key_sums = results + area, *value_sums = key_sums + area;
        float *weights = value_sums + area, *scores = weights + QUERIES * across;
        for (int head = 0; head < heads; head++) {
            if (head % group == 0) {
                gather(text->keys, size, wide, v + head / group * size, kv_row, keys);
                transpose(text->keys, size, wide, keys, values_turned);
                gather(text->keys, size, wide, k + head / group * size, kv_row, keys);
                transpose(text->keys, size, wide, keys, turned);
                memset(key_sums, 0, 2 * area * sizeof(float));
            }
            gather(text->queries, size, wide, q + head * size, row, queries);
            gather(text->queries, size, wide, gradient + head * size, row, above);
            for (int64_t first = 0; first < text->queries; first += QUERIES) {
                int64_t count = text->queries - first < QUERIES ? text->queries - first : QUERIES;
                int64_t before = text->keys - text->queries + first;
                weights_of(*text, first, count, size, wide, queries, turned, weights);
                to_keys(text->keys, before, count, across, wide, weights, above + first * wide, value_sums);
                for (int64_t i = 0; i < count; i += 4) {
                    int rows = count - i < 4 ? (int)(count - i) : 4;
                    int64_t limit = up_to(before + i + rows, LANES);
                    float *own = scores + i * across;
                    strip(rows, limit, size, above + (first + i) * wide, wide, 1, values_turned, across, own, across, 0);
                    for (int r = 0; r < rows; r++)
                        shares_backward(own + r * across, weights + (i + r) * across, limit, scale);
                    strip(rows, wide, before + i + rows, own, across, 1, keys, wide, results + (first + i) * wide, wide, 0);
                }
                to_keys(text->keys, before, count, across, wide, scores, queries + first * wide, key_sums);
            }
            scatter(text->queries, size, wide, results, for_q + head * size, row);
            if (head % group == group - 1) {
                scatter(text->keys, size, wide, key_sums, for_k + head / group * size, kv_row);
                scatter(text->keys, size, wide, value_sums, for_v + head / group * size, kv_row);
            }
        }
        q += text->queries * row, gradient += text->queries * row, for_q += text->queries * row;
        k += text->keys * kv_row, v += text->keys * kv_row, for_k += text->keys * kv_row, for_v += text->keys * kv_row;
    }
}
